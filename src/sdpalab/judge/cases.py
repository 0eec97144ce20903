"""Which cases a candidate is judged on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sdpalab.problem import TWELVE_CASES, Problem

__all__ = ["CaseSpec", "quick_cases", "twelve_cases"]

PROBES = ("uniform", "needle", "ramp", "large_logits")
"""Kinds of inputs that find what random normal ones let through."""

SMALL_SEQ = 192
"""Longest sequence of a probe: three tiles of 64, and cheap to simulate."""


@dataclass(frozen=True)
class CaseSpec:
    """One case to judge.

    A ``seed`` of None is hidden: the judge draws it once the candidate is fixed, and records it. A ``derived`` problem
    is the judge's own choice: a kernel that says it does not support it is not asked.
    """

    name: str
    problem: Problem
    inputs: str = "normal"
    seed: int | None = 0
    derived: bool = False


def twelve_cases(*, dtype: str = "float16", causal: bool = False) -> tuple[CaseSpec, ...]:
    """The twelve cases of the original contract, and one more with a hidden seed for each of their four shapes."""
    changed = [(problem.with_(dtype=dtype, causal=causal), seed) for problem, seed in TWELVE_CASES]
    public = [CaseSpec(f"{problem.label} seed {seed}", problem, "normal", seed) for problem, seed in changed]
    hidden = [_hidden(problem) for problem in dict.fromkeys(problem for problem, _ in changed)]
    return (*public, *hidden)


def quick_cases(problems: Iterable[Problem], *, seed: int = 0) -> tuple[CaseSpec, ...]:
    """For each problem: normal inputs with ``seed`` and with a hidden seed, and the probes on a small version of it."""
    specs: dict[str, CaseSpec] = {}
    for problem in problems:
        small = _small(problem)
        mine = [CaseSpec(f"{problem.label} seed {seed}", problem, "normal", seed), _hidden(problem)]
        mine += [
            CaseSpec(f"{small.label} {kind}", small, kind, seed, derived=small != problem)
            for kind in PROBES
            if _possible(small, kind)
        ]
        specs.update({spec.name: spec for spec in mine})
    return tuple(specs.values())


def _hidden(problem: Problem) -> CaseSpec:
    return CaseSpec(f"{problem.label} hidden seed", problem, "normal", None)


def _small(problem: Problem) -> Problem:
    """Same head_dim, dtype, mask, scale and group; one batch, at most two K/V heads, at most SMALL_SEQ long."""
    kv_heads = min(problem.kv_heads, 2)
    return problem.with_(
        batch=1,
        heads=kv_heads * problem.group,
        kv_heads=kv_heads,
        seq_q=min(problem.seq_q, SMALL_SEQ),
        seq_kv=min(problem.seq_kv, SMALL_SEQ),
    )


def _possible(problem: Problem, kind: str) -> bool:
    """A needle needs room in head_dim to tell the keys apart, and a scale."""
    return kind != "needle" or (problem.scale != 0.0 and 1 << problem.head_dim >= problem.seq_kv)
