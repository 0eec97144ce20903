"""An entry of the catalogue of planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sdpalab.bugs.cause import Cause
from sdpalab.bugs.edit import SourceEdit
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.problem import Problem
from sdpalab.status import Status

__all__ = ["HAZARD", "WRONG", "Bug", "Family", "Implementation"]

Implementation = Callable[..., Any]
"""``attention(q, k, v, *, scale, causal) -> out`` on torch tensors, with the judge's arguments."""

WRONG = frozenset({Status.INCORRECT, Status.NOT_FINITE})
HAZARD = frozenset({Status.HAZARD})


class Family(str, Enum):
    """Families of bugs, by which the kill rate is published."""

    SOFTMAX = "softmax"
    """Scale, exponential, running maximum, rescale, and normalisation."""
    MASK = "mask"
    TILES = "tiles"
    """Tiles, rows and columns that are dropped, stale, swapped, or counted twice; heads and batches mixed up."""
    BOUNDARY = "boundary"
    """The last rows, keys and columns; padding."""
    PRECISION = "precision"
    """Lower precision than declared."""
    HISTORICAL = "historical"
    """Bugs of the project that preceded this one."""
    DEGENERATE = "degenerate"
    """Zeros, mean(V), V, constants, old outputs."""
    CUDA = "CUDA source"
    """Bugs of all these families in the source of the shipped kernels, run on the simulator."""
    GRADIENTS = "gradients"
    """The backward pass: delta, the recomputed P, its masks, the sums of dQ, dK and dV."""
    ALIGNMENT = "alignment"
    """The bottom-right alignment, another head dimension of V, and the merge of splits of the keys."""
    LAYOUT = "layouts"
    """Packed sequences, and pages of a cache."""
    LSE = "log-sum-exp"
    """A wrong log-sum-exp of a shipped kernel beside a right output."""
    SYNCHRONISATION = "synchronisation"
    """Barriers, waits, fences and arrivals that are missing from the shipped kernels or misplaced."""


@dataclass(frozen=True)
class Bug:
    """One planted bug; everything else in its candidate is right.

    Attributes
    ----------
    id : str
        The error in words; for a bug in a kernel's source, after the kernel's name. Unique, and the same in all
        records.
    family : Family
    cause : Cause, str or None
        The right diagnosis (the class of the error), or the kind of hazard that the simulator must report (such as
        ``deadlock``). None if no class fits, or if the hazard depends on the order of the warps.
    edit : SourceEdit or callable
        The edit of a shipped kernel's source, or an implementation in Python with the bug.
    problem : Problem
        The judge runs the quick cases of this problem.
    claims : bool
        Whether the judge also runs the cases on the candidate's claims, for a bug that does not change the problem's
        output.
    harmless : Problem, optional
        A problem on which the bug has no effect, so the candidate must pass: an error on ``problem`` is then due to
        this bug, and not to another error of the copy.
    statuses : frozenset of Status
        Statuses with which the judge may reject it; other statuses count as a miss.
    equivalent : str
        Reason why the edit has no effect, so the candidate must pass; empty for all others.
    words : str
        The error in a diagnosis, after the words of its cause, if the id does not fit there; ``{tile}`` is the number
        of keys of a tile, and ``{missing}`` that of the keys that its last one lacks.
    link : str
        Address of the report or the correction of this bug in a released library; empty for an invented one.
    """

    id: str
    family: Family
    cause: Cause | str | None
    edit: SourceEdit | Implementation
    problem: Problem
    harmless: Problem | None = None
    statuses: frozenset[Status] = WRONG
    equivalent: str = ""
    claims: bool = False
    words: str = ""
    link: str = ""

    @property
    def detail(self) -> str:
        """The error in a diagnosis."""
        return self.words or self.id

    @property
    def in_source(self) -> bool:
        """Whether the bug is planted in the source of a shipped kernel."""
        return isinstance(self.edit, SourceEdit)

    @property
    def candidate(self) -> CudaKernel | Implementation:
        """The implementation with the bug. Raises ValueError as :meth:`.edit.SourceEdit.apply`."""
        return self.edit.apply() if isinstance(self.edit, SourceEdit) else self.edit

    @property
    def expected(self) -> frozenset[Status]:
        """Statuses that count as a detection."""
        return frozenset({Status.PASSED}) if self.equivalent else self.statuses
