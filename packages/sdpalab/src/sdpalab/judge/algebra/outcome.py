"""Record of the algebraic stage: the outputs of a kernel in the ring."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import ClassVar

from pydantic.dataclasses import dataclass

from sdpalab.record import RECORD, JsonRecord, ProblemField

__all__ = ["AlgebraCase", "AlgebraStatus"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


class AlgebraStatus(str, Enum):
    """Outcome of a problem in the ring. Only UNEQUAL counts against a kernel."""

    EQUAL = "EQUAL"
    """Every output equals that of attention in the ring."""
    UNEQUAL = "UNEQUAL"
    """An output differs: the kernel's data flow is not that of attention."""
    NOT_ALGEBRAIC = "NOT_ALGEBRAIC"
    """The kernel executes an instruction without a meaning in a ring; this does not count against the kernel."""
    NOT_RUN = "NOT_RUN"
    """The kernel does not support the problem, or the simulator does not run it in a ring."""


@dataclass(frozen=True, config=RECORD)
class AlgebraCase(JsonRecord):
    """One problem in the ring.

    Attributes
    ----------
    name : str
    problem : Problem
    seed : int
        Seed of the codes of Q, K and V.
    status : AlgebraStatus
    reason : str
        The unequal outputs, the instruction that is not algebraic, or why the problem was not run; empty if EQUAL.
    prime : int
        p of the ring; 0 if it was not run.
    factor, expected_factor : int
        scale * log2 e mod p - 1: the factor of the comparison, and the factor of the problem's scale.
    compared, unequal : int
        Number of elements of the outputs, and number of those that differ.
    left_out : int
        Rows whose sum of weights is 0 mod p.
    lse_unequal : int, optional
        Rows whose log-sum-exp differs; None where the kernel writes no algebraic log-sum-exp.
    digests : mapping of str to str
        sha256 of the words of the inputs, the outputs and, if written, lse.
    ptx_sha256 : tuple of str
        Digest of the PTX of each launch.
    lse_refusal : str
        Instruction of the log-sum-exp that is not algebraic, where O was compared without it.
    config : str
        Knobs of the run that differ from the judged ones.

    Raises
    ------
    ValueError
        On construction, if the record is invalid: EQUAL with an unequal element or without its arrays, UNEQUAL without
        an unequal element, or a status other than EQUAL without a reason.
    """

    sparse: ClassVar[tuple[str, ...]] = ("config",)

    name: str
    problem: ProblemField
    seed: int
    status: AlgebraStatus
    reason: str = ""
    prime: int = 0
    factor: int = 0
    expected_factor: int = 0
    compared: int = 0
    unequal: int = 0
    left_out: int = 0
    lse_unequal: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    ptx_sha256: tuple[str, ...] = ()
    lse_refusal: str = ""
    config: str = ""

    def __post_init__(self) -> None:
        for name, digest in self.digests.items():
            if not _SHA256.fullmatch(digest):
                raise ValueError(f"{self.name}: the digest of {name} is not a sha256: {digest!r}")
        differs = bool(self.unequal or self.lse_unequal)
        if self.status is AlgebraStatus.EQUAL:
            if differs or not self.compared or not {*"qkv", *self.problem.outputs} <= set(self.digests):
                raise ValueError(f"{self.name}: EQUAL with unequal elements, or without what shows it")
            return
        if not self.reason:
            raise ValueError(f"{self.name}: {self.status.value} needs a reason")
        if differs is not (self.status is AlgebraStatus.UNEQUAL):
            raise ValueError(f"{self.name}: {self.status.value} with {self.unequal} unequal elements")

    @property
    def scale_explained(self) -> bool:
        """Whether the factor of the scores is the one expected for the problem's scale."""
        return self.factor == self.expected_factor
