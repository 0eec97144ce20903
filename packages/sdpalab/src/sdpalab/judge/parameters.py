"""Parameters of a callable by name, and the keyword arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sdpalab.problem import FEATURES, Problem

__all__ = ["PARAMETERS", "arguments", "needed_features", "parameter_names"]

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "causal": ("causal", "is_causal"),
    "enable_gqa": ("enable_gqa",),
    **{name: (name,) for name in FEATURES if name not in ("backward", "e4m3_cache")},
    "window_size": ("window_size", "window"),
    "kv_lengths": ("kv_lengths", "seqused_k", "cache_seqlens", "seq_lens", "context_lens"),
    "varlen": ("cu_seqlens_q",),
    "cu_seqlens_k": ("cu_seqlens_k", "cu_seqlens_kv"),
    "max_seqlen_q": ("max_seqlen_q",),
    "max_seqlen_k": ("max_seqlen_k", "max_seqlen_kv"),
    "paged": ("block_table", "block_tables", "page_table"),
    "do": ("do", "dout", "grad_out", "grad_output"),
    "o": ("o", "out"),
    "lse": ("lse", "softmax_lse"),
}
"""Features that a function may claim by a parameter, and the parameter's names in the lab, torch and FlashAttention.
Functions get no cache in e4m3.

A function with a parameter for dO computes the gradients itself; those of any other function are torch's autograd's."""


def parameter_names(function: Callable[..., Any]) -> dict[str, str]:
    """The entries of :data:`PARAMETERS` that a function has, with their names in the function.

    ``**kwargs`` counts as ``scale`` and ``causal`` only, which every call passes; so does a function in C without a
    readable signature.
    """
    both = {"scale": "scale", "causal": "causal"}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return both
    names = {
        claim: next(name for name in spellings if name in parameters)
        for claim, spellings in PARAMETERS.items()
        if any(name in parameters for name in spellings)
    }
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return {**both, **names} if takes_any else names


def needed_features(function: Callable[..., Any]) -> list[str]:
    """Features ``varlen``, ``paged`` and ``bottom_right`` whose parameter has no default: the function takes no problem
    without them, and masks only in that alignment."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []
    names = parameter_names(function)
    needed = [name for name in ("varlen", "paged", "bottom_right") if name in names]
    return [name for name in needed if parameters[names[name]].default is inspect.Parameter.empty]


def arguments(function: Callable[..., Any], problem: Problem, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a call for a problem, by the function's parameter names.

    Parameters
    ----------
    extra : mapping of str to Tensor
        The buffers of :attr:`sdpalab.packing.Packing.inputs` beside Q, K and V.
    """
    names = parameter_names(function)
    values = {**problem.scoring, **extra, **({"enable_gqa": True} if problem.group > 1 else {})}
    values |= {"varlen": extra.get("cu_seqlens_q"), "paged": extra.get("block_table")}
    values |= {"max_seqlen_q": problem.seq_q, "max_seqlen_k": problem.seq_kv} if problem.varlen else {}
    values = {name: value for name, value in values.items() if value is not None}
    values = {name: value for name, value in values.items() if not name.endswith("_lengths") or name in extra}
    values |= {name: True for name in ("bottom_right",) if name in values}
    values |= {"head_dim_v": problem.dim_v} if problem.head_dim_v else {}
    return {names[name]: value for name, value in values.items() if name in names}
