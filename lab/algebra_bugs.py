"""Bugs planted in sources, in exact arithmetic.

A bug runs on the small problems of the judge's stage and on its own problem. If none shows it, it runs on the problems
of the judge's quick cases (windows, lengths, groups of heads, other types and head dimensions) until one does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from lab.ring_subject import RingSubject, outcome_of
from sdpalab.bugs import Bug
from sdpalab.bugs.edit import SourceEdit
from sdpalab.campaigns.self_test import specs_of
from sdpalab.judge.algebra.stage import SCALE, algebra_problems, has_codes, reordered
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.problem import Problem
from warpsan import SimError

__all__ = ["NO_FORM", "SAME_CODE", "bug_entry", "excluded", "quick_problems"]

_ANOTHER_SCALE = "the kernel divides and multiplies by one and the same other scale: what is lost is precision"
_PADDING = "a weight of zero cancels every number behind a length, and the padding holds none that is not finite"
_NOT_DATA_FLOW = {
    "the maximum starts at 0": "a maximum cancels",
    "the maximum of the first part": "a maximum cancels",
    "maxima without the unit": "a maximum cancels",
    "flash: V behind a length is not cleared": _PADDING,
    "hopper: a tile that a length cuts is loaded with its padding": _PADDING,
    "in bfloat16": "precision",
    "in float16": "precision",
    "eight times too small": "saturation: nothing is too large for a code",
    "240 for the largest number of e4m3": _ANOTHER_SCALE,
    "fp8_simulated: the scale of the first head for all": _ANOTHER_SCALE,
    "fp8_simulated: the scale of a head's first rows": _ANOTHER_SCALE,
}
"""Bugs that do not change the data flow: words of the id, and the reason."""
_DATA_FLOW = frozenset({Status.INCORRECT, Status.NOT_FINITE})
MOST_STEPS = 4_000_000
"""Step limit of a launch: a bug may make it wait without end."""
_MISSED = ("not run", "equal", "not algebraic")
_OUTCOMES = (*_MISSED, "stopped", "log-sum-exp", "factor", "unequal")
"""Outcomes of a run; of several runs the outcome latest in this tuple counts."""
NO_FORM = "its problem has no form in a ring"
SAME_CODE = "it changes no code of a problem that can be asked in a ring"
_DEBUG = re.compile(r"^\s*(\.loc|\.file|//).*\n|\.section[^{]*\{[^}]*\}", re.MULTILINE)


def excluded(bug: Bug) -> str:
    """Reason why a bug does not change the data flow of a problem with a positive scale; empty if it does."""
    if bug.equivalent:
        return "the edit changes nothing"
    if not bug.statuses & _DATA_FLOW:
        return "a hazard: the values may be right"
    if bug.problem.scale <= 0:
        return "it shows only where the scale is not positive, and the codes have no sign"
    return next((reason for words, reason in _NOT_DATA_FLOW.items() if words in bug.id), "")


def quick_problems(bug: Bug) -> Iterator[Problem]:
    """Problems of the judge's quick cases for a bug of a kernel, that the kernel takes and that can run in a ring, each
    once."""
    taken = {*bug.candidate.features} if isinstance(bug.candidate, CudaKernel) else set()
    problems = (spec.problem for spec in specs_of(bug) if taken.issuperset(spec.problem.features))
    yield from dict.fromkeys(problem.with_(scale=SCALE) for problem in problems if has_codes(problem))


def bug_entry(bug: Bug) -> dict[str, str]:
    """Run a planted bug: its outcome and the problem.

    The outcome is ``left out``, with a reason, if the bug does not change the data flow, if no problem of it has a form
    in a ring (a layout, slopes), or if its code is that of the right kernel on every problem that has one.
    """
    kernel = bug.candidate
    assert isinstance(kernel, CudaKernel)
    assert isinstance(bug.edit, SourceEdit)
    free = {name: value for name, value in kernel.algebraic.items() if name not in bug.edit.knobs}
    config = kernel.default_config.but(**free)
    entry = {"bug": bug.id, "family": bug.family.value}
    if reason := excluded(bug):
        return {**entry, "outcome": "left out", "reason": reason}
    worst = {"outcome": "not run", "reason": "it computes none of the problems", "problem": ""}
    equal: list[RingSubject] = []
    own = [bug.problem.with_(scale=SCALE)] if has_codes(bug.problem) else []
    for problems in ((*algebra_problems(bug.problem), *own), quick_problems(bug)):
        for problem in problems:
            if kernel.why_not(problem, config) is not None:
                continue
            of = RingSubject(kernel, config, problem, (reordered(problem),))
            result = {**_outcome(of), "problem": problem.label}
            equal += [of] if result["outcome"] == "equal" else []
            if result["outcome"] not in _MISSED and _outcome(_right(of, bug.edit))["outcome"] != "equal":
                continue  # the right kernel is not equal, either: this is not due to the bug
            worst = max(worst, result, key=lambda each: _OUTCOMES.index(each["outcome"]))
            if worst["outcome"] == "unequal":
                return {**entry, **worst}
        if worst["outcome"] not in _MISSED:
            break
    if worst["outcome"] == "not run" and not has_codes(bug.problem):
        worst = {"outcome": "left out", "reason": NO_FORM}
    if worst["outcome"] == "equal" and not any(_changed(of, bug.edit) for of in equal):
        worst = {"outcome": "left out", "reason": SAME_CODE}
    return {**entry, **worst}


def _outcome(of: RingSubject) -> dict[str, str]:
    try:
        case = of.run(max_steps=MOST_STEPS)
    except SimError as error:
        return {"outcome": "stopped", "reason": str(error)}
    return {"outcome": outcome_of(case), "reason": case.reason}


def _right(of: RingSubject, edit: SourceEdit) -> RingSubject:
    """The kernel without the edit."""
    return RingSubject(replace(edit, replacements=()).apply(), of.config, of.problem, of.orders)


def _changed(of: RingSubject, edit: SourceEdit) -> bool:
    """True if the edit changes the code of a subject."""
    return [_code(built.ptx) for built in of.builds] != [_code(built.ptx) for built in _right(of, edit).builds]


def _code(ptx: bytes) -> str:
    """PTX without its debug information."""
    return _DEBUG.sub("", ptx.decode())
