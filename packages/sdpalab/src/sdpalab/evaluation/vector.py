"""The vector of observations of one candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from sdpalab.judge.algebra.outcome import AlgebraStatus
from sdpalab.judge.provenance import provenance_of
from sdpalab.judge.verdict import Case, Verdict
from sdpalab.record import RECORD, JsonRecord, dataclass
from sdpalab.status import Status

__all__ = ["Evaluation", "vector_of"]


@dataclass(frozen=True, config=RECORD)
class Evaluation(JsonRecord):
    """Results of the stages of one candidate.

    Attributes
    ----------
    status : Status
        That of the first stage that failed; PASSED if each requested stage passed; INTERRUPTED if the budget ended
        first, without a failure.
    reason : str
        Reason for another status than PASSED.
    stages : mapping of str to str
        Status of each stage that ran, in order.
    compiled, ran : bool
        Whether a build succeeded, and whether a case had an output.
    hazards : mapping of str to int
        Hazards by kind.
    families : mapping of str to tuple
        Passed and judged cases: ``normal`` inputs, ``probes``, ``edges``, ``relations``, ``claims``, and ``code``.
    log10_error : float, optional
        Decimal logarithm of the largest share of a limit; None without an output.
    algebraic : mapping of str to int
        Problems in exact arithmetic, by status.
    blocks : tuple of int
        Executed and all basic blocks, over all entries; zeros if they are unknown.
    unjudged : tuple of str
        Code that no case executed.
    provenance : str
        Origin of the output of a function with kernels.
    gpu : str
        GPU of the next two; empty if none was asked for.
    modelled_us : float, optional
        Modelled time of one call at the task's size in microseconds, with inputs in L2, of a kernel that passed.
    floor_us : float, optional
        Least time of any kernel there in microseconds: the largest floor, with inputs in L2.
    not_modelled : str
        Reason for a missing modelled time.
    seconds : float
        Wall-clock time.
    """

    status: Status
    reason: str = ""
    stages: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = False
    ran: bool = False
    hazards: Mapping[str, int] = field(default_factory=dict)
    families: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    log10_error: float | None = None
    algebraic: Mapping[str, int] = field(default_factory=dict)
    blocks: tuple[int, int] = (0, 0)
    unjudged: tuple[str, ...] = ()
    provenance: str = ""
    gpu: str = ""
    modelled_us: float | None = None
    floor_us: float | None = None
    not_modelled: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether each requested stage passed."""
        return self.status is Status.PASSED

    def text(self, most: int = 500) -> str:
        """The evaluation in words, of at most ``most`` characters."""
        stage = ("compile", *self.stages)[-1]
        parts = [f"{self.status.value} at {stage}", self.reason, *self.unjudged]
        shown = "; ".join(filter(None, parts))
        return shown if len(shown) <= most else f"{shown[: most - 4]} ..."


def vector_of(
    status: Status,
    reason: str,
    stages: Mapping[str, str],
    verdicts: Sequence[Verdict],
    modelled: Mapping[str, Any],
    seconds: float,
) -> Evaluation:
    """The vector of some stages and their verdicts; ``modelled`` has its fields of the modelled time."""
    cases = [case for verdict in verdicts for case in verdict.cases]
    last = verdicts[-1] if verdicts else None
    families: dict[str, tuple[int, int]] = {}
    hazards: dict[str, int] = {}
    for case in cases:
        passed, judged = families.get(_family(case), (0, 0))
        families[_family(case)] = passed + case.passed, judged + 1
        for each in case.run.get("hazards", ()):
            hazards[each["kind"]] = hazards.get(each["kind"], 0) + 1
    shares = [max(case.shares.values()) for case in cases if case.shares]
    algebraic = [each.status for each in (last.algebra if last else ())]
    stated = [case.run["provenance"] for case in cases if case.run.get("provenance")]
    code = last.code if last else ()
    return Evaluation(
        status=status,
        reason=reason,
        stages=stages,
        compiled=stages.get("compile") == Status.PASSED.value or any(case.errors for case in cases),
        ran=any(case.errors for case in cases),
        hazards=hazards,
        families=families,
        log10_error=math.log10(max(*shares, 1e-12)) if shares else None,
        algebraic={kind.value: algebraic.count(kind) for kind in AlgebraStatus if kind in algebraic},
        blocks=(sum(each.executed for each in code), sum(each.blocks for each in code)),
        unjudged=tuple(sentence for each in code for sentence in each.sentences),
        provenance=provenance_of(stated[-1]) if stated else "",
        **modelled,
        seconds=round(seconds, 3),
    )


def _family(case: Case) -> str:
    if case.run.get("claim"):
        return "claims"
    if case.run.get("relation"):
        return "relations"
    if case.name.endswith(("reaches further code", "hidden length")):
        return "code"
    if "edge of" in case.name:
        return "edges"
    return "normal" if case.inputs == "normal" else "probes"
