"""Accuracy of the diagnosis on the edits of CUDA sources, which no hypothesis was written for.

A hypothesis is a bug of the catalogue in Python, so those bugs cannot measure it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sdpalab.bugs import Bug
from sdpalab.bugs.catalogue import BUGS
from sdpalab.bugs.cause import Cause
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.errors import UserError
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.diagnose.diagnosis import ranked_diagnoses
from sdpalab.judge.diagnose.summary import FailedArrays, failures_of
from sdpalab.judge.session import judge_candidate

__all__ = ["PACKAGES", "Named", "diagnosed", "edits", "run"]

PACKAGES = ("numpy", "torch", "ml_dtypes")

CAUSES = {
    "rescale of O lost": Cause.RESCALE,
    "rescale of the sum lost": Cause.RESCALE,
    "the output is not rescaled": Cause.RESCALE,
    "merged without rescaling": Cause.RESCALE,
    "no log2(e)": Cause.SCORES,
    "no normalisation": Cause.NORMALISATION,
    "clamped exponents": Cause.EXPONENTIAL,
    "query i sees key i + 1": Cause.MASK,
    "the tile at the edge is not masked": Cause.MASK,
    "ragged tile dropped": Cause.KEYS,
    "the part with the last keys left out": Cause.KEYS,
    "zeros past the last key count": Cause.PADDING,
    "query head h reads K/V head": Cause.HEADS,
    "K and V of batch 0": Cause.HEADS,
    "template: delta of dQ": Cause.DELTA,
    "template: delta of dK is the sum": Cause.DELTA,
    "template: delta is added": Cause.DELTA,
    "template: the log-sum-exp": Cause.LOG_SUM,
    "template: dQ is not scaled": Cause.FACTOR,
    "template: dK is scaled twice": Cause.FACTOR,
    "template: dV is scaled": Cause.FACTOR,
    "template: dS lacks P": Cause.SUMS,
    "template: the last query head of a group": Cause.GROUP,
    "template: dK and dV of K/V head h": Cause.GROUP,
    "template: dK: key j is not seen": Cause.MASK,
    "template: dQ: the loop over keys ends": Cause.KEYS,
    "template: dK and dV of keys that no query sees": Cause.RANGE,
    "template: the sum of dQ begins": Cause.SUMS,
    "template: dV is the sum of P Q": Cause.OPERANDS,
    "two_pass: delta": Cause.DELTA,
    "two_pass: the derivative of the soft cap": Cause.SLOPE,
    "two_pass: all query heads of a group": Cause.GROUP,
    "two_pass: the causal mask": Cause.MASK,
    "two_pass: the loop over queries ends": Cause.KEYS,
    "two_pass: the distance of ALiBi": Cause.ALIBI,
}
"""Cause by words of an edit's id."""
KINDS = ("normal", "ramp")


@dataclass(frozen=True)
class Named:
    """The causes that the diagnosis named for an edit, the likeliest first; none if no case failed."""

    id: str
    cause: Cause
    failed: int
    named: tuple[Cause, ...]
    likely: str


def edits(words: str = "") -> dict[str, Cause]:
    """The cause of each edit that has one, by its id."""
    return {
        bug.id: cause
        for bug in BUGS.values()
        for of, cause in CAUSES.items()
        if bug.in_source and not bug.claims and of in bug.id and words in bug.id
    }


def diagnosed(bug: Bug, cause: Cause) -> Named:
    """Judge an edit on its problem, with ordinary inputs and with a growing maximum, and diagnose its failures."""
    arrays = FailedArrays()
    specs = [CaseSpec(kind, bug.problem, inputs=kind, seed=0) for kind in KINDS]
    verdict = judge_candidate(bug.candidate, specs, workers=1, algebra=False, store=arrays)
    failures = list(failures_of(verdict.cases, arrays.of).values())
    ranked = ranked_diagnoses(failures)
    likely = str(ranked[0]) if ranked else ""
    return Named(bug.id, cause, len(failures), tuple(one.cause for one in ranked), likely)


def run(words: str, say: Say) -> CampaignResult:
    """Diagnose the edits with these words in their id.

    Raises
    ------
    UserError
        If there is no such edit.
    """
    chosen = edits(words)
    if not chosen:
        raise UserError(f"no edit whose cause is certain has {words!r} in its id")
    results = []
    for name, cause in chosen.items():
        result = diagnosed(BUGS[name], cause)
        say(
            f"{name}: {result.likely or 'no diagnosis'}{'' if cause in result.named[:1] else f'; it is: {cause.value}'}"
        )
        results.append(result)
    failed = [result for result in results if result.failed]
    first, three = (sum(result.cause in result.named[:most] for result in failed) for most in (1, 3))
    totals = {"edits": len(results), "failed": len(failed), "first": first, "first_three": three}
    summary = f"the diagnosis names the cause of {first} of {len(failed)} edits first, and of {three} among three"
    content = {"format": 2, "totals": totals, "edits": [asdict(result) for result in results]}
    return CampaignResult(content, True, summary)
