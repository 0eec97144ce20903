"""What the judge's self-test is made of: candidates with one planted bug each, and what must become of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Kernel
from sdpalab.problem import Problem

__all__ = ["BF16", "CAUSAL", "CROSS", "GROUPED", "PLAIN", "WRONG", "Bug", "Mutant", "planted"]

PLAIN = Problem(1, 2, 200, 64)
CAUSAL = PLAIN.with_(causal=True)
CROSS = Problem(1, 2, 90, 64, seq_kv=150, causal=True)
GROUPED = Problem(2, 4, 100, 64, kv_heads=2)
BF16 = PLAIN.with_(dtype="bfloat16")

WRONG = frozenset({Status.INCORRECT, Status.NOT_FINITE})


class Bug(str, Enum):
    """Classes of bugs, by which the kill rate is published."""

    SOFTMAX = "softmax"
    """Scale, exponential, running maximum, rescale, normalisation."""
    MASK = "mask"
    TILES = "tiles"
    """Tiles, rows and columns that are dropped, stale, swapped, or counted twice; heads and batches mixed up."""
    BOUNDARY = "boundary"
    """The last rows, keys and columns; padding."""
    PRECISION = "precision"
    """Lower precision than any declares."""
    HISTORICAL = "historical"
    """What this project started from."""
    DEGENERATE = "degenerate"
    """Zeros, mean(V), V, constants, old outputs."""
    CUDA = "CUDA source"
    """Bugs of all these classes in the source of the shipped kernels, run on the simulator."""
    LSE = "log-sum-exp"
    """What the shipped kernels write as log-sum-exp beside a right output."""
    SYNCHRONISATION = "synchronisation"
    """Barriers, waits and fences missing from the shipped kernels, found by the simulator's checks."""


@dataclass(frozen=True)
class Mutant:
    """A candidate with one bug.

    Attributes
    ----------
    bug : Bug
    name : str
        What is wrong, in words.
    candidate : callable or Kernel
    problem : Problem
        It is judged on the quick cases of this problem.
    statuses : frozenset of Status
        What the judge may say of it: rejected for another reason is not killed.
    equivalent : str
        Why it is no bug after all, for one that computes the same; it must then pass. Empty for all others.
    harmless : Problem, optional
        A problem on which the bug changes nothing, so that the candidate must pass: what is found on ``problem`` is
        then this bug, and not that the copy is wrong altogether.
    """

    bug: Bug
    name: str
    candidate: Callable[..., Any] | Kernel
    problem: Problem = PLAIN
    statuses: frozenset[Status] = WRONG
    equivalent: str = ""
    harmless: Problem | None = None


def planted(
    bug: Bug, name: str, problem: Problem = PLAIN, *, equivalent: str = "", into: list[Mutant]
) -> Callable[[type[Any]], type[Any]]:
    """Class decorator: an instance of the class is a mutant, put into a list."""

    def note(made: type[Any]) -> type[Any]:
        into.append(Mutant(bug, name, made(), problem, equivalent=equivalent))
        return made

    return note
