"""One frozen attention problem, its work, and the named shapes.

O = softmax(scale * Q K^T + mask) V with Q [B, H, Sq, D], K and V [B, Hkv, Skv, D], O [B, H, Sq, D].
The causal mask is torch's ``is_causal``: query i sees keys 0..i (aligned to the top left), also when Sq != Skv.

Further fields change the scores, in the vocabulary of FlashAttention's interface and torch's
(:mod:`sdpalab.scoring` has the formula):

- ``window_size=(left, right)``: query i sees keys i - left to i + right, aligned as the causal mask is; -1 is no bound;
- ``softcap``: a score s becomes softcap * tanh(s / softcap), after the scale and before any mask;
- ``kv_lengths``: number of valid keys of each batch entry; keys beyond are padding, which no row sees;
- ``q_lengths``: number of valid queries of each batch entry; rows beyond are padding, and their outputs arbitrary;
- ``bottom_right``: the causal mask, the window and ALiBi are aligned to the last key instead of the first, as in
  FlashAttention since version 2.1: query i is at position i + Skv - Sq, with the lengths of the batch entry;
- ``head_dim_v``: V is [B, Hkv, Skv, Dv] and O [B, H, Sq, Dv];
- ``task="backward"``: the gradients dQ, dK and dV of sum(O * dO), for a given dO of the shape of O;
- ``attn_mask``: a mask [1 or B, 1 or H, Sq, Skv], boolean (True: seen) or added to the scores;
- ``alibi_slopes``: a slope for each query head, times abs(i - j), is subtracted from the scores;
- ``sinks``: a logit for each query head, whose exponential is added to the softmax denominator;
- ``layout``: how the sequences lie in device memory (:mod:`sdpalab.layout`); the computation is the same.

A row that sees no key has O = 0 and a log-sum-exp of -inf, or its sink.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from sdpalab.layout import Layout
from sdpalab.scoring import (
    ARRAYS,
    FEATURES,
    FIELDS,
    TASKS,
    MaskForm,
    ProblemError,
    Scoring,
    checked_lengths,
    checked_window,
    is_number,
    parse_lengths,
    parse_window,
    refitted_lengths,
)

__all__ = [
    "ARRAYS",
    "DTYPES",
    "FEATURES",
    "FIELDS",
    "HALF_DTYPES",
    "MISSION",
    "NAMED_PROBLEMS",
    "TWELVE_CASES",
    "MaskForm",
    "Problem",
    "ProblemError",
    "Scoring",
    "parse_lengths",
    "parse_shape",
    "parse_window",
]

DTYPES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Element types of a problem, with their size in bytes."""
HALF_DTYPES = ("float16", "bfloat16")
"""The 16-bit types, which all shipped kernels and peers support."""
ITEM_BYTES = {**DTYPES, "uint8": 1, "int32": 4}
"""Element types of the arrays beside Q, K and V, with their size in bytes."""


@dataclass(frozen=True)
class Problem:
    """One scaled-dot-product-attention problem.

    Parameters
    ----------
    batch, heads, seq_q, head_dim : int
        B, H, Sq and D; each at least 1.
    kv_heads : int, optional
        Hkv; must divide ``heads`` (grouped-query attention). Default: ``heads``.
    seq_kv : int, optional
        Skv. Default: ``seq_q``.
    dtype : {"float16", "bfloat16", "float32"}
        Type of Q, K, V and O.
    causal : bool
        Query i sees keys 0..i only (top-left aligned, as torch's ``is_causal``).
    scale : float, optional
        Factor on Q K^T. Default: 1 / sqrt(head_dim).
    window_size : (int, int), optional
        ``(left, right)``: query i sees keys i - left to i + right only; -1 is no bound. Under ``causal`` the right side
        is always 0. Default: no window, the same as ``(-1, -1)``, or ``(-1, 0)`` under ``causal``.
    softcap : float, optional
        A score s becomes softcap * tanh(s / softcap). Default: 0, no soft cap.
    kv_lengths : sequence of int, optional
        Valid keys of each batch entry, from 0 to Skv; no row sees keys beyond. Default: Skv for all.
    attn_mask : str, optional
        ``bool`` or ``float``, and the first two axes of the mask, 1 if broadcast: ``bool:1,1`` is one mask [1, 1, Sq,
        Skv], ``float:B,H`` an additive mask for each batch entry and head. Default: no mask.
    alibi_slopes : bool
        Whether slope_h * abs(i - j) is subtracted from the scores (Press et al. 2022, "Train Short, Test Long").
    sinks : bool
        Whether each head has a sink: a logit without a key (Xiao et al. 2024, "Attention Sinks"; gpt-oss).
    q_lengths : sequence of int, optional
        Valid queries of each batch entry, from 0 to Sq. Default: Sq for all.
    bottom_right : bool
        Whether the causal mask, the window and ALiBi are aligned to the last valid key. False in the canonical form of
        a problem where that changes nothing: without any of the three, or with Sq = Skv and no lengths.
    head_dim_v : int, optional
        Dv; 0 in the canonical form of a problem where it is D.
    task : {"forward", "backward"}
        Result: O, or the gradients dQ, dK and dV.
    layout : str
        ``dense``, ``varlen``, ``varlen:gaps``, ``paged:N`` or ``varlen,paged:N``, or ``paged:N:e4m3`` (pages of e4m3;
        :mod:`sdpalab.layout`). Layouts other than dense have lengths: by default all are Skv, and Sq for packed
        queries.

    Raises
    ------
    ProblemError
        If a size is not a positive integer, ``kv_heads`` does not divide ``heads``, the dtype is unknown, the scale is
        not finite, a side of the window is not an integer from -1 up, the soft cap is negative or not finite,
        ``kv_lengths`` (``q_lengths``) is not one length from 0 to Skv (Sq) for each batch entry, ``attn_mask`` has
        another form, or the layout is unknown or excludes the mask or the task.
    """

    batch: int
    heads: int
    seq_q: int
    head_dim: int
    kv_heads: int = 0
    seq_kv: int = 0
    dtype: str = "float16"
    causal: bool = False
    scale: float = 0.0
    window_size: tuple[int, int] | None = None
    softcap: float = 0.0
    kv_lengths: tuple[int, ...] | None = None
    attn_mask: str = ""
    alibi_slopes: bool = False
    sinks: bool = False
    q_lengths: tuple[int, ...] | None = None
    bottom_right: bool = False
    head_dim_v: int = 0
    task: str = "forward"
    layout: str = "dense"

    def __init__(
        self,
        batch: int,
        heads: int,
        seq_q: int,
        head_dim: int,
        *,
        kv_heads: int | None = None,
        seq_kv: int | None = None,
        dtype: str = "float16",
        causal: bool = False,
        scale: float | None = None,
        window_size: Sequence[int] | None = None,
        softcap: float = 0.0,
        kv_lengths: Sequence[int] | None = None,
        attn_mask: str = "",
        alibi_slopes: bool = False,
        sinks: bool = False,
        q_lengths: Sequence[int] | None = None,
        bottom_right: bool = False,
        head_dim_v: int | None = None,
        task: str = "forward",
        layout: str = "dense",
    ) -> None:
        sizes = {
            "batch": batch,
            "heads": heads,
            "seq_q": seq_q,
            "head_dim": head_dim,
            "kv_heads": heads if kv_heads is None else kv_heads,
            "seq_kv": seq_q if seq_kv is None else seq_kv,
            "head_dim_v": head_dim_v or head_dim,
        }
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ProblemError(f"{name} must be a positive integer, not {value!r}")
        if heads % sizes["kv_heads"]:
            raise ProblemError(f"kv_heads must divide heads, and {sizes['kv_heads']} does not divide {heads}")
        if dtype not in DTYPES:
            raise ProblemError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        if task not in TASKS:
            raise ProblemError(f"task must be one of {', '.join(TASKS)}, not {task!r}")
        flags = {"causal": causal, "alibi_slopes": alibi_slopes, "sinks": sinks, "bottom_right": bottom_right}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise ProblemError(f"{name} must be True or False, not {flag!r}")
        if scale is not None and not (isinstance(scale, (int, float)) and math.isfinite(scale)):
            raise ProblemError(f"scale must be a finite number, not {scale!r}")
        if not is_number(softcap) or softcap < 0.0:
            raise ProblemError(f"softcap must be a positive number, or 0 for none, not {softcap!r}")
        sizes["head_dim_v"] *= sizes["head_dim_v"] != head_dim
        for name, value in {**sizes, **flags}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "task", task)
        object.__setattr__(self, "scale", 1.0 / math.sqrt(head_dim) if scale is None else float(scale))
        object.__setattr__(self, "window_size", checked_window(window_size, causal))
        object.__setattr__(self, "softcap", float(softcap))
        form = Layout.parse(layout)
        if not form.dense and attn_mask:
            raise ProblemError(f"layout {form} has no attn_mask: a mask belongs to the dense layout")
        if form.page_size and task == "backward":
            raise ProblemError(f"layout {form} has no gradients: pages belong to a cache, which is not trained")
        if not form.dense:
            kv_lengths = (self.seq_kv,) * batch if kv_lengths is None else kv_lengths
        if form.packed:
            q_lengths = (seq_q,) * batch if q_lengths is None else q_lengths
        object.__setattr__(self, "layout", str(form))
        object.__setattr__(self, "kv_lengths", checked_lengths("kv_lengths", kv_lengths, batch, self.seq_kv))
        object.__setattr__(self, "q_lengths", checked_lengths("q_lengths", q_lengths, batch, seq_q))
        object.__setattr__(self, "attn_mask", str(MaskForm.parse(attn_mask)) if attn_mask else "")
        positions = causal or self.window_size is not None or alibi_slopes
        same = self.seq_kv == seq_q and self.kv_lengths is None and self.q_lengths is None
        object.__setattr__(self, "bottom_right", bottom_right and positions and not same)

    @property
    def features(self) -> tuple[str, ...]:
        """Names among :data:`FEATURES` that this problem sets. Lengths that a layout implies are no feature."""
        form = self.layout_form
        implied = {"q_lengths": form.packed, "kv_lengths": form.page_size or (form.packed and not form.gaps)}
        return tuple(name for name in FEATURES if getattr(self, name) and not implied.get(name))

    @property
    def layout_form(self) -> Layout:
        """The layout in its parts."""
        return Layout.parse(self.layout)

    @property
    def varlen(self) -> bool:
        """Whether the queries are packed, and the keys unless they are in pages."""
        return self.layout_form.packed

    @property
    def paged(self) -> int:
        """Rows of a page of K and V; 0 without pages."""
        return self.layout_form.page_size

    @property
    def e4m3_cache(self) -> bool:
        """Whether pages of K and V hold e4m3, with a scale for each head."""
        return self.layout_form.e4m3

    @property
    def backward(self) -> bool:
        """Whether the task is the gradients."""
        return self.task == "backward"

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs of the task by name, all of the problem's dtype."""
        shapes = {"o": self.o_shape, "dq": self.q_shape, "dk": self.kv_shape, "dv": self.v_shape}
        return {name: shapes[name] for name in TASKS[self.task]}

    @property
    def scoring(self) -> Scoring:
        """Score arguments as keywords: ``scale``, ``causal`` and the :attr:`features` that are not arrays;
        :meth:`scoring_with` adds the arrays."""
        scoring: Scoring = {"scale": self.scale, "causal": self.causal}
        if self.window_size is not None:
            scoring["window_size"] = self.window_size
        if self.softcap:
            scoring["softcap"] = self.softcap
        if self.bottom_right:
            scoring["bottom_right"] = self.seq_q
        for name in ("kv_lengths", "q_lengths"):
            if getattr(self, name) is not None:
                scoring[name] = getattr(self, name)
        return scoring

    def scoring_with(self, arrays: Mapping[str, Any]) -> Scoring:
        """Score arguments as keywords, with the further arrays taken from ``arrays`` by name."""
        further = {name: arrays[name] for name in ARRAYS if name in self.array_shapes and name in arrays}
        return {**self.scoring, **further}  # type: ignore[typeddict-item]

    def narrowed(self, most: int) -> Problem:
        """The problem with each side of its window at most ``most``."""
        if self.window_size is None:
            return self
        left, right = (min(side, most) for side in self.window_size)
        return self.with_(window_size=(left, right))

    @property
    def mask_form(self) -> MaskForm | None:
        """Form of ``attn_mask``; None without a mask."""
        return MaskForm.parse(self.attn_mask) if self.attn_mask else None

    @property
    def array_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each input array beside Q, K and V, by name.

        Lengths are int32 [B]; a mask is [1 or B, 1 or H, Sq, Skv], of bytes (0: hidden, 1: seen) or of the problem's
        dtype; slopes and sinks are float32 [H], scales of a cache in e4m3 float32 [Hkv]. The gradients need dO, and O
        and the log-sum-exp (float32 [B, H, Sq]) of the forward pass.
        """
        shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        for name in ("kv_lengths", "q_lengths"):
            if getattr(self, name) is not None:
                shapes[name] = ((self.batch,), "int32")
        if (form := self.mask_form) is not None:
            first = (self.batch if form.per_batch else 1, self.heads if form.per_head else 1)
            shapes["attn_mask"] = ((*first, self.seq_q, self.seq_kv), "uint8" if form.type == "bool" else self.dtype)
        for name in ("alibi_slopes", "sinks"):
            if getattr(self, name):
                shapes[name] = ((self.heads,), "float32")
        if self.e4m3_cache:
            shapes |= dict.fromkeys(("k_scale", "v_scale"), ((self.kv_heads,), "float32"))
        if self.backward:
            shapes |= {"do": (self.o_shape, self.dtype), "o": (self.o_shape, self.dtype)}
            shapes["lse"] = (self.o_shape[:3], "float32")
        return shapes

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of Q: (B, H, Sq, D)."""
        return (self.batch, self.heads, self.seq_q, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of K, and of V where Dv = D: (B, Hkv, Skv, D)."""
        return (self.batch, self.kv_heads, self.seq_kv, self.head_dim)

    @property
    def v_shape(self) -> tuple[int, int, int, int]:
        """Shape of V: (B, Hkv, Skv, Dv)."""
        return (self.batch, self.kv_heads, self.seq_kv, self.dim_v)

    @property
    def o_shape(self) -> tuple[int, int, int, int]:
        """Shape of O: (B, H, Sq, Dv)."""
        return (self.batch, self.heads, self.seq_q, self.dim_v)

    @property
    def dim_v(self) -> int:
        """Dv: columns of V and O."""
        return self.head_dim_v or self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share one K/V head."""
        return self.heads // self.kv_heads

    @cached_property
    def scores(self) -> int:
        """Number of (query, key) pairs that the masks let through, over all heads; an ``attn_mask`` counts as all
        visible, because its content is part of the inputs."""
        return self.heads * sum(self._visible(*lengths)[0] * count for lengths, count in self._lengths.items())

    @property
    def _lengths(self) -> Counter[tuple[int, int]]:
        """Number of batch entries with each pair of valid queries and valid keys."""
        rows = self.q_lengths or (self.seq_q,) * self.batch
        return Counter(zip(rows, self.kv_lengths or (self.seq_kv,) * self.batch, strict=True))

    def _visible(self, rows: int, keys: int) -> tuple[int, int, int]:
        """Visible (query, key) pairs of one head with these valid queries and keys, its rows that see a key, and its
        keys that a row sees."""
        left, right = self.window_size or (-1, 0 if self.causal else -1)
        if left < 0 and right < 0:
            return rows * keys, rows * (keys > 0), keys * (rows > 0)
        ahead = keys - rows if self.bottom_right else 0
        first_of = [max(row + ahead - left, 0) if left >= 0 else 0 for row in range(rows)]
        last_of = [min(row + ahead + right, keys - 1) if right >= 0 else keys - 1 for row in range(rows)]
        spans = [(first, last) for first, last in zip(first_of, last_of, strict=True) if last >= first]
        if not spans:
            return 0, 0, 0
        return sum(last - first + 1 for first, last in spans), len(spans), spans[-1][1] - spans[0][0] + 1

    @property
    def flops(self) -> int:
        """Floating-point operations of the products: 2 (D + Dv) for each visible (query, key) pair, and for the
        gradients, of five products, 2 (3 D + 2 Dv)."""
        columns = 3 * self.head_dim + 2 * self.dim_v if self.backward else self.head_dim + self.dim_v
        return 2 * columns * self.scores

    @property
    def exponentials(self) -> int:
        """Least number of exponentials: one for each visible (query, key) pair."""
        return self.scores

    @property
    def least_bytes(self) -> int:
        """Least DRAM traffic in bytes: Q, K, V and any other array read once, O written once; for the gradients O,
        dO and the log-sum-exp read once, dQ, dK and dV written once.

        Only rows of Q that see a key and keys that a row sees are counted.
        """
        counts = [(self._visible(*lengths), count) for lengths, count in self._lengths.items()]
        rows, keys = (sum(seen[axis] * count for seen, count in counts) for axis in (1, 2))
        written = self.batch * self.seq_q if self.q_lengths is None else sum(self.q_lengths)
        q_and_o = self.heads * (rows * self.head_dim + written * self.dim_v)
        k_and_v = self.kv_heads * keys * (self.head_dim + self.dim_v)
        arrays = {name: form for name, form in self.array_shapes.items() if name not in ("do", "o", "lse")}
        others = sum(math.prod(shape) * ITEM_BYTES[dtype] for shape, dtype in arrays.values())
        if self.backward:  # rows of Q, O and dO are read, and rows of dQ written; K and V have gradients of their size
            q_and_o = self.heads * (rows * (self.head_dim + 2 * self.dim_v) + written * self.head_dim)
            k_and_v, others = 2 * k_and_v, others + 4 * self.heads * rows
        return DTYPES[self.dtype] * q_and_o + (1 if self.e4m3_cache else DTYPES[self.dtype]) * k_and_v + others

    @property
    def label(self) -> str:
        """Short unambiguous name, such as ``1x8x512x64``, ``2x8x333x64/kv2x400 causal bf16``."""
        text = f"{self.batch}x{self.heads}x{self.seq_q}x{self.head_dim}"
        if (self.kv_heads, self.seq_kv) != (self.heads, self.seq_q):
            text += f"/kv{self.kv_heads}x{self.seq_kv}"
        if self.causal:
            text += " causal"
        if self.dtype != "float16":
            text += f" {self.dtype}"
        if self.scale != 1.0 / math.sqrt(self.head_dim):
            text += f" scale={self.scale:g}"
        if self.window_size is not None:
            text += " window={},{}".format(*self.window_size)
        if self.softcap:
            text += f" softcap={self.softcap:g}"
        if self.kv_lengths is not None:
            text += f" kv_lengths={','.join(map(str, self.kv_lengths))}"
        if self.q_lengths is not None:
            text += f" q_lengths={','.join(map(str, self.q_lengths))}"
        if self.attn_mask:
            text += f" attn_mask={self.attn_mask}"
        if self.head_dim_v:
            text += f" head_dim_v={self.head_dim_v}"
        flags = ("alibi_slopes", "sinks", "bottom_right", "backward")
        layout = () if self.layout == "dense" else (f"layout={self.layout}",)
        return " ".join((text, *layout, *(name for name in flags if getattr(self, name))))

    def with_(self, **changes: Any) -> Problem:
        """A copy with some fields changed, validated like any other.

        Fields with their default (``kv_heads``, ``seq_kv``, ``scale``) take the default of the changed fields. Lengths
        are scaled to another batch and number of keys.
        """
        changed = self.to_dict()
        if self.kv_heads == self.heads:
            changed["kv_heads"] = None
        if self.seq_kv == self.seq_q:
            changed["seq_kv"] = None
        if self.scale == 1.0 / math.sqrt(self.head_dim):
            changed["scale"] = None
        changed |= changes
        batch, seq_q = int(changed["batch"]), int(changed["seq_q"])
        sizes = {"q_lengths": (self.seq_q, seq_q), "kv_lengths": (self.seq_kv, int(changed["seq_kv"] or seq_q))}
        for name, (seq, new_seq) in sizes.items():
            if getattr(self, name) is not None and name not in changes:
                changed[name] = refitted_lengths(getattr(self, name), seq, batch, new_seq)
        return Problem(**changed)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values, those of :data:`FIELDS` only where they are set; ``Problem(**d)`` is the
        inverse."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        unset = {each.name for each in fields(self) if each.name in FIELDS and values[each.name] == each.default}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name not in unset
        }


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """Read ``B,H,S,D`` as on the command line.

    Raises
    ------
    ProblemError
        If there are not four integers, or one is below 1.
    """
    parts = text.split(",")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        raise ProblemError(f"--shape takes four integers B,H,S,D such as 1,8,512,64, not {text!r}") from None
    if len(numbers) != 4:
        raise ProblemError(f"--shape takes four integers B,H,S,D such as 1,8,512,64, and {text!r} has {len(numbers)}")
    for name, number in zip("BHSD", numbers, strict=True):
        if number < 1:
            raise ProblemError(f"--shape {text!r}: {name} must be at least 1, not {number}")
    batch, heads, seq, dim = numbers
    return batch, heads, seq, dim


MISSION = Problem(1, 8, 512, 64)
"""The mission shape: the kernel must be faster than torch's SDPA on an L4, and correct."""

TWELVE_CASES: tuple[tuple[Problem, int], ...] = tuple(
    (problem, seed)
    for problem in (Problem(1, 2, 64, 64), Problem(1, 4, 128, 64), MISSION, Problem(2, 2, 64, 64))
    for seed in (0, 1, 2)
)
"""The twelve cases of the original contract: four shapes, three seeds each."""

NAMED_PROBLEMS: dict[str, Problem] = {
    "mission": MISSION,
    "mission-causal": MISSION.with_(causal=True),
    "small": Problem(1, 2, 64, 64),
    "ragged": Problem(2, 4, 333, 64),
    "gqa": Problem(1, 8, 512, 64, kv_heads=2),
    "wide": Problem(1, 4, 129, 128),
    "prefill-4k": Problem(1, 8, 4096, 64),
}
"""Named shapes for the command line's ``--shape NAME`` and for benchmarks."""
