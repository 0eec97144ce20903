"""Interfaces of peers: a function with FlashAttention's or torch's signature as a function of the lab's.

:data:`SIGNATURES` has a row for each interface: the peer's names of the lab's arguments, and its conventions. An
:class:`Adapter` calls a function of that form; the judge then sees a function of the form of
:mod:`sdpalab.judge.sandbox.callables` whose parameters are those that the peer's signature names.

Sources: docstrings of flash_attn/flash_attn_interface.py (FlashAttention 2.8), hopper/flash_attn_interface.py, and
torch.nn.functional.scaled_dot_product_attention (torch 2.13).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpalab.errors import UserError
from sdpalab.judge.sandbox.callables import BadOutput
from sdpalab.kernels.userfile import file_of, is_user_file
from sdpalab.problem import Problem

if TYPE_CHECKING:
    import torch

__all__ = ["LAB", "SIGNATURES", "PeerCall", "Signature", "adapted", "signature_of"]

LAB = "sdpalab"
"""Name of the lab's own form for ``--signature``: nothing is recognised or translated."""

_FLASH: Mapping[str, str] = {
    "scale": "softmax_scale",
    "causal": "causal",
    "window_size": "window_size",
    "softcap": "softcap",
    "alibi_slopes": "alibi_slopes",
    "deterministic": "deterministic",
}
_ONLY_FLASH = ("dropout_p", "deterministic", "return_attn_probs")
"""Parameters of FlashAttention's functions that no function of the lab's form has."""
_VARLEN = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_TORCH = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Signature:
    """A peer's interface.

    Attributes
    ----------
    name : str
    names : mapping of str to str
        The peer's parameter for each argument of the lab (:data:`sdpalab.judge.parameters.PARAMETERS`).
    marks : tuple of tuple of str
        The form is recognised by one parameter of each group.
    needs : tuple of str
        Features without which a problem does not have this form. ``bottom_right``: masks are aligned to the last key.
    heads_last : bool
        Whether dense tensors are [B, S, H, D] instead of [B, H, S, D].
    cache : bool
        Whether K and V are a cache, to which a call may append keys.
    problems : tuple of Problem
        Default problems; those of the lab if empty.
    """

    name: str
    names: Mapping[str, str]
    marks: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...] = ("bottom_right",)
    heads_last: bool = True
    cache: bool = False
    problems: tuple[Problem, ...] = field(default=(), compare=False)

    def in_form(self, problem: Problem) -> Problem:
        """The problem with this interface's alignment of masks; the same problem where that changes nothing."""
        return problem.with_(bottom_right=True) if "bottom_right" in self.needs else problem


SIGNATURES: Mapping[str, Signature] = {
    each.name: each
    for each in (
        Signature(
            "flash_attn_with_kvcache",
            {**_FLASH, "kv_lengths": "cache_seqlens", "paged": "block_table"},
            (("k_cache",), ("v_cache",)),
            cache=True,
            problems=(
                Problem(3, 8, 1, 64, kv_heads=2, seq_kv=300, kv_lengths=(300, 0, 129)),
                Problem(2, 4, 5, 64, kv_heads=4, seq_kv=150, kv_lengths=(150, 64), causal=True, bottom_right=True),
            ),
        ),
        Signature(
            "flash_attn_varlen_func",
            {**_FLASH, **{name: name for name in _VARLEN}, "kv_lengths": "seqused_k", "paged": "block_table"},
            (("cu_seqlens_q",), ("softmax_scale",), _ONLY_FLASH),
            needs=("varlen", "bottom_right"),
            problems=(
                Problem(
                    *(5, 8, 150, 64),
                    kv_heads=2,
                    layout="varlen",
                    q_lengths=(120, 0, 150, 65, 90),
                    kv_lengths=(150, 70, 130, 0, 77),
                ),
            ),
        ),
        Signature("flash_attn_func", _FLASH, (("causal",), ("softmax_scale",), _ONLY_FLASH)),
        Signature(
            "torch",
            {"scale": "scale", "causal": "is_causal", "attn_mask": "attn_mask", "enable_gqa": "enable_gqa"},
            (("is_causal",), ("attn_mask",), ("dropout_p",)),
            needs=(),
            heads_last=False,
        ),
    )
}
"""Interfaces by name, the most particular first."""


class PeerCall:
    """A function of a peer's form, callable as one of the lab's.

    Parameters
    ----------
    function : callable
    signature : Signature

    Attributes
    ----------
    claims : list of str
        The features that the peer's parameters name, and ``append``.
    heads_last : bool
        As in :class:`Signature`.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self._function, self.signature = function, signature
        self.heads_last = signature.heads_last
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))
        known = _parameters(function)
        self._has = frozenset(signature.names.values() if known is None else known)
        self._no_default = frozenset(
            name for name, each in (known or {}).items() if each.default is inspect.Parameter.empty
        )
        own = [name for name, theirs in signature.names.items() if theirs in self._has and name not in signature.needs]
        own += [] if signature.name == "torch" else ["enable_gqa"]
        self.claims = [*signature.needs, *own, *(["append"] if signature.cache and {"k", "v"} <= self._has else [])]
        if "paged" in own and "kv_lengths" not in own:
            own.append("kv_lengths")  # a call needs them for pages alone
        parameter, keyword = inspect.Parameter, inspect.Parameter.KEYWORD_ONLY
        spelling = {"varlen": "cu_seqlens_q", "paged": "block_table"}
        self.__signature__ = inspect.Signature(
            [
                *(parameter(name, parameter.POSITIONAL_OR_KEYWORD) for name in ("q", "k", "v")),
                *(parameter(spelling.get(name, name), keyword) for name in signature.needs),
                *(
                    parameter(spelling.get(name, name), keyword, default=None)
                    for name in own
                    if name not in ("deterministic", "cu_seqlens_q")
                ),
            ]
        )

    def __call__(self, q: Any, k: Any, v: Any, *, append: int = 0, **given: Any) -> Any:
        """O in the lab's form, from Q, K, V and the arguments in the lab's form.

        Parameters
        ----------
        append : int
            Last keys of each batch entry that the call itself writes into the cache.

        Raises
        ------
        BadOutput
            If the cache does not hold them after the call.
        """
        table, lengths = given.get("block_table"), given.get("kv_lengths")
        dense = table is None and "cu_seqlens_q" not in given
        if dense and self.heads_last:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        values = {"paged" if name == "block_table" else name: value for name, value in given.items()}
        if q.requires_grad:
            values["deterministic"] = True
        if self.signature.cache:
            values["kv_lengths"] = lengths = _full_lengths(k) if lengths is None else lengths
        elif table is not None and lengths is not None:  # packed queries, and pages
            values |= self._lengths_of_pages(lengths)
        if values.get("attn_mask") is not None and values.get("causal"):
            values |= {"attn_mask": _causal(values["attn_mask"]), "causal": False}
        names = self.signature.names
        call = {names[name]: value for name, value in values.items() if name in names and names[name] in self._has}
        out = self._appended(q, k, v, append, call) if append else self._function(q, k, v, **call)
        if isinstance(out, (tuple, list)) and out:
            out = out[0]  # and the log-sum-exp
        turned = dense and self.heads_last and getattr(out, "ndim", 0) == 4
        return out.transpose(1, 2) if turned else out

    def _lengths_of_pages(self, lengths: torch.Tensor) -> dict[str, Any]:
        """Lengths of sequences in pages as ``seqused_k``, or else as ``cu_seqlens_k``; as both if both are required."""
        import torch

        cumulated = torch.tensor([0, *accumulate(lengths.tolist())], dtype=torch.int32)
        if "seqused_k" not in self._has:
            return {"cu_seqlens_k": cumulated, "kv_lengths": None}
        return {"cu_seqlens_k": cumulated if "cu_seqlens_k" in self._no_default else None}

    def _appended(self, q: Any, k: Any, v: Any, count: int, call: dict[str, Any]) -> Any:
        """The result of a call that appends the last ``count`` keys of each batch entry, whose rows are NaN before."""
        import torch

        lengths, table = call["cache_seqlens"], call.get("block_table")
        entries = torch.arange(len(lengths)).repeat_interleave(count)
        rows = (lengths.long().unsqueeze(1) - count + torch.arange(count)).flatten()
        places = (entries, rows) if table is None else (table[entries, rows // k.shape[1]].long(), rows % k.shape[1])
        given = {name: cache[places].unflatten(0, (-1, count)) for name, cache in (("k", k), ("v", v))}
        for cache in (k, v):
            cache[places] = torch.nan
        out = self._function(q, k, v, **given, **{**call, "cache_seqlens": lengths - count})
        for name, cache in (("k", k), ("v", v)):
            wrong = (_bits(cache[places]) != _bits(given[name].flatten(0, 1))).flatten(1).any(1).nonzero()
            if len(wrong):
                first = int(wrong[0])
                place = f"row {rows[first]} of batch entry {entries[first]}"
                raise BadOutput(f"after the call {name}_cache does not hold the appended {name} in {place}")
        return out


def adapted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function`` itself, or with the name of a peer's signature as an :class:`Adapter`."""
    return PeerCall(function, SIGNATURES[name]) if name else function


def signature_of(candidate: object, asked: str | None = None) -> Signature | None:
    """The peer's signature of a candidate: the one asked for, or recognised by its parameters; None for the lab's own.

    Parameters
    ----------
    candidate : str, Kernel or callable
        Nothing is imported: parameters of ``FILE.py:NAME`` are read in the file's text, and a function that is imported
        there, or given as ``module:NAME``, is recognised by a name of :data:`SIGNATURES`.
    asked : str, optional
        A name of :data:`SIGNATURES`, or :data:`LAB`.

    Raises
    ------
    UserError
        If there is no such signature.
    """
    if asked is not None:
        if asked not in (*SIGNATURES, LAB):
            raise UserError(f"--signature is {', '.join(SIGNATURES)} or {LAB}, not {asked!r}")
        return SIGNATURES.get(asked)
    if not isinstance(candidate, str):
        function = candidate if callable(candidate) else None
        known = _parameters(function) if function is not None else {}
        return _recognised(str(getattr(candidate, "__name__", "")), known)
    if not is_user_file(candidate):
        return _recognised(candidate.partition(":")[2], None)
    defined = _functions(file_of(candidate))
    name = candidate.partition(".py:")[2] or next(iter(defined), "")
    return _recognised(name, defined.get(name))


def _recognised(name: str, parameters: Collection[str] | None) -> Signature | None:
    """The signature with these parameters, or of that name if the parameters are not known."""
    if parameters is None:
        return SIGNATURES.get("torch" if name == _TORCH else name if name != "torch" else "")
    marked = (each for each in SIGNATURES.values() if all(set(group) & set(parameters) for group in each.marks))
    return next(marked, None)


def _functions(path: Path) -> dict[str, list[str]]:
    """Parameter names of the functions that a file defines; empty if it cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    names = {}
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            own = each.args
            names[each.name] = [one.arg for one in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    return names


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Parameters of a function; None for one in C without a readable signature, or with ``**kwargs``."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    return None if _takes_any(parameters.values()) else parameters


def _takes_any(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


def _full_lengths(cache: torch.Tensor) -> torch.Tensor:
    """Lengths of a dense cache [B, S, H, D] whose rows are all valid."""
    import torch

    return torch.full((cache.shape[0],), cache.shape[1], dtype=torch.int32)


def _causal(mask: torch.Tensor) -> torch.Tensor:
    """A mask with the causal mask in it: torch takes one of the two."""
    import torch

    hidden = torch.ones(mask.shape[-2:], dtype=torch.bool).triu(1)
    return mask.masked_fill(hidden, False if mask.dtype == torch.bool else -torch.inf)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)
