"""Rule on the origin of a callable's output: a submission with kernels whose output torch computed does not pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["provenance_of", "reason_by_torch"]

LEAST_WRITTEN = 0.9
"""Least share of the output's elements whose last writer is a kernel; a kernel that stores the bytes that are there
already is not seen."""
MOST_BY_TORCH = 0.5
"""Largest share of the floating-point operations that torch may execute."""


def reason_by_torch(stated: Mapping[str, Any] | None) -> str:
    """Reason why the output is not that of the candidate's kernels; empty if it is, or the candidate has none.

    Parameters
    ----------
    stated : mapping, optional
        ``functions`` of the candidate, number of ``launches``, elements of the output by the last of ``writers``, and
        ``flops`` by executor; None for a candidate without kernels.
    """
    if not stated:
        return ""
    by_kernels, by_torch = _shares(stated)
    functions = ", ".join(stated["functions"]) or "no Triton function"
    launched = f"it defines {functions}, and launched {stated['launches']} kernels"
    if by_kernels < LEAST_WRITTEN:
        others = {name: count for name, count in stated["writers"].items() if not _is_kernel(name)}
        writer = max(others, key=lambda name: others[name])
        share = others[writer] / max(1, sum(stated["writers"].values()))
        who = "nothing wrote" if writer == "nobody" else f"{writer} wrote"
        return f"the output was computed by torch: {who} {share:.0%} of its elements last; {launched}"
    if by_torch > MOST_BY_TORCH:
        return f"the output was computed by torch, which executed {by_torch:.0%} of the operations; {launched}"
    return ""


def provenance_of(stated: Mapping[str, Any] | None) -> str:
    """The origin of an output in a few words, such as ``kernels 100%, torch 0% of operations``; empty if unknown."""
    if not stated:
        return ""
    by_kernels, by_torch = _shares(stated)
    return f"kernels {by_kernels:.0%}, torch {by_torch:.0%} of operations"


def _shares(stated: Mapping[str, Any]) -> tuple[float, float]:
    """Share of the elements that kernels wrote last, and of the operations that torch executed."""
    written = sum(count for name, count in stated["writers"].items() if _is_kernel(name))
    flops = stated["flops"]
    return written / max(1, sum(stated["writers"].values())), flops.get("torch", 0) / max(1, sum(flops.values()))


def _is_kernel(name: str) -> bool:
    return name.startswith("kernel ")
