"""What a callable takes, by the names of its parameters, and the keyword arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sdpalab.problem import EXTRAS, Problem

__all__ = ["PARAMETERS", "arguments", "parameter_names"]

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "causal": ("causal", "is_causal"),
    "enable_gqa": ("enable_gqa",),
    **{name: (name,) for name in EXTRAS},
    "window_size": ("window_size", "window"),
}
"""What a function may claim by a parameter, and the names of that: the lab's, torch's and FlashAttention's."""


def parameter_names(function: Callable[..., Any]) -> dict[str, str]:
    """Which of :data:`PARAMETERS` a function has, and the name of each there.

    What ``**kwargs`` would take, a function need not use: that is ``scale`` and ``causal`` alone, which every call has;
    so it is where a function in C has no signature to read.
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


def arguments(function: Callable[..., Any], problem: Problem, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call for a problem, by the names of the function's own parameters.

    Parameters
    ----------
    extra : mapping of str to Tensor
        The arrays of :attr:`sdpalab.problem.Problem.array_shapes`.
    """
    names = parameter_names(function)
    values = {**problem.scoring, **extra, **({"enable_gqa": True} if problem.group > 1 else {})}
    return {names[name]: value for name, value in values.items() if name in names}
