"""How often the judge's diagnosis names the right class of a planted bug: the table in docs/judge.md.

The bugs of the catalogue that are written in Python run on the quick cases, in this process. The right class of each is
the ``cause`` of its entry. For a bug without one, such as the output of the call before, nothing that is said is right.
"""

from __future__ import annotations

from collections import Counter

import torch

from sdpalab.bugs import Bug, Family
from sdpalab.bugs.catalogue import BUGS
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.inputs import make_inputs
from sdpalab.judge.cases import quick_cases
from sdpalab.judge.diagnose.diagnosis import Diagnosis, diagnose
from sdpalab.judge.diagnose.failure import Failure
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.verdict import Status

__all__ = ["PACKAGES", "run"]

PACKAGES = ("numpy", "torch")


def failures(bug: Bug) -> list[Failure]:
    """The quick cases that a bug in Python fails by its numbers."""
    failures = []
    for spec in quick_cases([bug.problem]):
        problem, inputs = spec.problem, make_inputs(spec.problem, spec.inputs, 1 if spec.seed is None else spec.seed)
        tensors = [to_torch(array.copy()) for array in vars(inputs).values()]
        assert callable(bug.edit)
        out = from_torch(bug.edit(*tensors, scale=problem.scale, causal=problem.causal))
        judged = judge_output(problem, inputs, out, UNDECLARED)
        if judged.status is not Status.PASSED:
            failures.append(Failure(problem, inputs, out, judged.errors, judged.limits))
    return failures


def run(words: str, verbose: bool, say: Say) -> CampaignResult:
    """Diagnose the bugs whose name has ``words`` in it; ``verbose`` prints every diagnosis, not only the wrong ones."""
    torch.set_num_threads(1)
    counts: dict[Family, Counter[str]] = {}
    for bug in BUGS.values():
        if bug.in_source or bug.equivalent or words not in bug.id:
            continue
        diagnosis: Diagnosis | None = diagnose(failures(bug))
        outcome = "none" if diagnosis is None else "right" if diagnosis.cause is bug.cause else "wrong"
        counts.setdefault(bug.family, Counter())[outcome] += 1
        if verbose or outcome != "right":
            say(f"{outcome:5} {bug.family.value}: {bug.id} [{bug.problem.label}]: {diagnosis}")
    say("| family | bugs | right | another class | no diagnosis |\n|---|---|---|---|---|")
    total: Counter[str] = sum(counts.values(), Counter())
    for name, count in [*((family.value, count) for family, count in counts.items()), ("all", total)]:
        say(f"| {name} | {count.total()} | {count['right']} | {count['wrong']} | {count['none']} |")
    content = {"totals": dict(total), "classes": {family.value: dict(count) for family, count in counts.items()}}
    return CampaignResult(content, True, f"{total['right']} of {total.total()} bugs are diagnosed rightly")
