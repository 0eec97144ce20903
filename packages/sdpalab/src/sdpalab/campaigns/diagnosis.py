"""How often the judge's diagnosis names the right class of a planted bug: the table in docs/judge.md.

The bugs of the catalogue that are written in Python run on the quick cases, in this process. The right class of each is
the ``cause`` of its entry. For a bug without one, such as the output of the call before, nothing that is said is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel

from sdpalab.bugs import Bug, Family
from sdpalab.bugs.catalogue import BUGS
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.inputs import make_inputs
from sdpalab.jobs import Executor
from sdpalab.jobs.calling import values
from sdpalab.judge.diagnose.diagnosis import Diagnosis, diagnose
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.tensors import output_of
from sdpalab.judge.verdict import Status
from sdpalab.record import RECORD

__all__ = ["PACKAGES", "Diagnosed", "bug_job", "run"]

PACKAGES = ("numpy", "torch")
BUG_SECONDS = 600.0
"""Most for one bug."""


def failures(bug: Bug) -> list[Failure]:
    """The quick cases that a bug in Python fails by its numbers."""
    failures = []
    for spec in (spec for spec in bug.specs if spec.is_for(quantises=False)):
        problem, inputs = spec.problem, make_inputs(spec.problem, spec.inputs, 1 if spec.seed is None else spec.seed)
        assert callable(bug.edit)
        out = output_of(bug.edit, problem, inputs, spec.layout)
        judged = judge_output(problem, inputs, out, UNDECLARED)
        if judged.status is not Status.PASSED:
            failures.append(Failure(problem, inputs, out, judged.errors, judged.limits, written=True))
    return failures


class Diagnosed(BaseModel):
    """The value of a job: whether the diagnosis names the bug's cause, and the diagnosis."""

    model_config = RECORD

    outcome: Literal["right", "wrong", "none"]
    diagnosis: str


def bug_job(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Diagnose the bug with that ``id`` (:class:`Diagnosed`)."""
    torch.set_num_threads(1)
    bug = BUGS[inputs["id"]]
    diagnosis: Diagnosis | None = diagnose(failures(bug))
    outcome = "none" if diagnosis is None else "right" if diagnosis.cause is bug.cause else "wrong"
    return {"outcome": outcome, "diagnosis": str(diagnosis)}


def run(words: str, verbose: bool, say: Say, executor: Executor) -> CampaignResult:
    """Diagnose the bugs whose name has ``words`` in it; ``verbose`` prints every diagnosis, not only the wrong ones."""
    counts: dict[Family, Counter[str]] = {}
    bugs = [bug for bug in BUGS.values() if not (bug.in_source or bug.equivalent) and words in bug.id]
    diagnoses = values(executor, "diagnosis", [{"id": bug.id} for bug in bugs], seconds=BUG_SECONDS)
    for bug, result in zip(bugs, diagnoses, strict=True):
        outcome = result["outcome"]
        counts.setdefault(bug.family, Counter())[outcome] += 1
        if verbose or outcome != "right":
            say(f"{outcome:5} {bug.family.value}: {bug.id} [{bug.problem.label}]: {result['diagnosis']}")
    say("| family | bugs | right | another class | no diagnosis |\n|---|---|---|---|---|")
    total: Counter[str] = sum(counts.values(), Counter())
    for name, count in [*((family.value, count) for family, count in counts.items()), ("all", total)]:
        say(f"| {name} | {count.total()} | {count['right']} | {count['wrong']} | {count['none']} |")
    content = {"totals": dict(total), "classes": {family.value: dict(count) for family, count in counts.items()}}
    return CampaignResult(content, True, f"{total['right']} of {total.total()} bugs are diagnosed rightly")
