"""Score modifiers beyond scale and causal mask: the further fields of a problem and their text forms.

With query row i and key j of one head, the score is, in this order,

    s = scale * q_i k_j                         the product
    s = softcap * tanh(s / softcap)             ``softcap``
    s = s - slope_h * |i - j|                   ``alibi_slopes``
    s = s + mask[i, j]                          an additive ``attn_mask``

and row i sees key j if none of these hides it: the causal mask, ``window_size``, ``kv_lengths``, and ``attn_mask``
(True, or more than -inf). The weights are exp(s) over the sum of all exp(s) that the row sees, plus exp(sink_h) with
``sinks``. With ``bottom_right`` the causal mask, the window and ALiBi use i + keys - queries in place of i, where keys
and queries are the valid ones of the batch entry: the last query sees the last key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from sdpalab.errors import UserError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ARRAYS",
    "FEATURES",
    "FIELDS",
    "TASKS",
    "MaskForm",
    "ProblemError",
    "Scoring",
    "checked_lengths",
    "checked_window",
    "is_number",
    "parse_lengths",
    "parse_window",
    "refitted_lengths",
]

ARRAYS = ("kv_lengths", "attn_mask", "alibi_slopes", "sinks", "q_lengths")
"""The features that have an input array of the same name beside Q, K and V."""

_SETTINGS = ("window_size", "softcap", *ARRAYS, "bottom_right", "head_dim_v")
FIELDS = (*_SETTINGS, "task", "layout")
"""Fields that most problems lack: :meth:`sdpalab.problem.Problem.to_dict` contains them only where they are set."""
FEATURES = (*_SETTINGS, "backward", "varlen", "paged", "e4m3_cache")
"""Features that most problems lack. A kernel or callable has to declare that it supports them."""
TASKS = {"forward": ("o",), "backward": ("dq", "dk", "dv")}
"""Tasks, and the outputs of each; a forward kernel may also write ``lse``."""


class ProblemError(UserError):
    """An invalid shape, dtype, scale or further field of an attention problem."""


class _PlainScoring(TypedDict):
    scale: float
    causal: bool


class Scoring(_PlainScoring, total=False):
    """Score modifiers: the arguments beside Q, K and V of every function that computes attention.

    Arrays have the shapes of :attr:`sdpalab.problem.Problem.array_shapes`; without the inputs of a problem only the
    lengths are set. ``bottom_right`` is Sq, the number of queries without ``q_lengths``.
    """

    window_size: tuple[int, int]
    softcap: float
    bottom_right: int
    kv_lengths: Sequence[int] | npt.NDArray[Any]
    q_lengths: Sequence[int] | npt.NDArray[Any]
    attn_mask: npt.NDArray[Any]
    alibi_slopes: npt.NDArray[Any]
    sinks: npt.NDArray[Any]


class MaskForm(NamedTuple):
    """Form of ``attn_mask``: ``bool`` or ``float``, and the first two axes that are not broadcast."""

    type: str
    per_batch: bool
    per_head: bool

    @classmethod
    def parse(cls, text: object) -> MaskForm:
        """Parse ``bool``, ``float:B,1`` and similar forms; without axes the mask is [1, 1, Sq, Skv].

        Raises
        ------
        ProblemError
            If the text has another form.
        """
        kind, colon, axes = text.partition(":") if isinstance(text, str) else ("", "", "")
        batch, comma, heads = (axes if colon else "1,1").partition(",")
        if kind not in ("bool", "float") or not comma or batch not in ("1", "B") or heads not in ("1", "H"):
            raise ProblemError(
                "attn_mask must be bool or float, with the first two axes of its shape such as bool:1,1, float:B,1 or "
                f"float:B,H, not {text!r}"
            )
        return cls(kind, batch == "B", heads == "H")

    def __str__(self) -> str:
        return f"{self.type}:{'B' if self.per_batch else '1'},{'H' if self.per_head else '1'}"


def is_number(value: object) -> bool:
    """Whether the value is a finite int or float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def checked_window(sides: Sequence[int] | None, causal: bool) -> tuple[int, int] | None:
    """The window in canonical form: None if it hides no key beyond the causal mask.

    Raises
    ------
    ProblemError
        If it is not two integers from -1 up.
    """
    if sides is None:
        return None
    valid = isinstance(sides, (tuple, list)) and len(sides) == 2
    if not valid or any(isinstance(side, bool) or not isinstance(side, int) or side < -1 for side in sides):
        raise ProblemError(
            f"window_size must be two integers (left, right) from 0 up, or -1 for no bound, not {sides!r}"
        )
    left, right = sides
    if causal:
        return (left, 0) if left >= 0 else None
    return None if left == right == -1 else (left, right)


def checked_lengths(name: str, lengths: Sequence[int] | None, batch: int, seq: int) -> tuple[int, ...] | None:
    """The valid keys or queries of each batch entry as a tuple.

    Parameters
    ----------
    name : {"kv_lengths", "q_lengths"}
    seq : int
        Skv or Sq.

    Raises
    ------
    ProblemError
        If there is not one integer from 0 to ``seq`` for each batch entry.
    """
    if lengths is None:
        return None
    valid = isinstance(lengths, (tuple, list)) and len(lengths) == batch
    if not valid or any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= seq for n in lengths):
        raise ProblemError(
            f"{name} must be one integer from 0 to seq_{name[:-8]} = {seq} for each of {batch} batch entries, "
            f"not {lengths!r}"
        )
    return tuple(lengths)


def refitted_lengths(lengths: Sequence[int], seq: int, new_batch: int, new_seq: int) -> list[int]:
    """Lengths scaled to another batch and number of keys or queries; a nonzero length stays nonzero."""
    shares = [lengths[n % len(lengths)] for n in range(new_batch)]
    return [max(min(share, 1), min(new_seq, share * new_seq // seq)) for share in shares]


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def parse_window(text: str) -> tuple[int, int]:
    """Parse ``L,R`` of the command line.

    Raises
    ------
    ProblemError
        If there are not two integers.
    """
    try:
        left, right = _integers(text)
    except ValueError:
        raise ProblemError(
            f"--window takes two integers L,R such as 128,0, with -1 for no bound, not {text!r}"
        ) from None
    return left, right


def parse_lengths(name: str, text: str) -> tuple[int, ...]:
    """Parse ``N,N,...`` of the command line; ``name`` is ``kv_lengths`` or ``q_lengths``.

    Raises
    ------
    ProblemError
        If an entry is not an integer.
    """
    try:
        return _integers(text)
    except ValueError:
        raise ProblemError(
            f"--{name.replace('_', '-')} takes one integer for each batch entry, such as 512,200, not {text!r}"
        ) from None
