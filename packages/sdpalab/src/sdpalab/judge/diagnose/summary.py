"""Summary of a failed verdict for the author of the kernel: for the command line, its JSON, the report and the pytest
plugin.

The likely cause, the map of the error and the next step are debugging hints, and not part of the verdict.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.judge.diagnose.diagnosis import diagnose
from sdpalab.judge.diagnose.error_map import error_map
from sdpalab.judge.diagnose.failure import Failure, place
from sdpalab.judge.diagnose.gradients import GradientFailure, failure_of_gradients
from sdpalab.judge.verdict import Case, Status, Verdict, broken_rules
from sdpalab.problem import FIELDS, Problem
from warpsan.report import HazardGroup, merge

__all__ = ["FailedArrays", "FailureSummary", "failures_of", "options_of", "summarise"]

Array = npt.NDArray[Any]
ArraysOf = Callable[[Case], "tuple[Inputs, Mapping[str, Array]]"]

_SMALL_SCORES = 1 << 18
"""Most scores of a problem in a next step; the simulator runs it in seconds in every order."""
_TILE_SCORES = 32 * 32
"""Fewest scores of a problem in a next step; a smaller one is less than a tile."""
_NUMBERS = (Status.INCORRECT, Status.NOT_FINITE)
_RUN_AGAIN = (*_NUMBERS, Status.HAZARD, Status.NONDETERMINISTIC, Status.INCONSISTENT, Status.TIMED_OUT)
"""Statuses whose cause the simulator may show in another order of the warps."""


class _OuterStore(Protocol):
    """See :class:`sdpalab.judge.session.Store`."""

    def put(self, array: Array) -> str: ...


class FailedArrays:
    """A store of the arrays of failed cases.

    Parameters
    ----------
    store : optional
        Another store, which receives all arrays.
    """

    def __init__(self, store: _OuterStore | None = None) -> None:
        self._store = store
        self._arrays: dict[str, Array] = {}
        self._uses: Counter[str] = Counter()

    def put(self, array: Array) -> str:
        """See :class:`sdpalab.judge.session.Store`."""
        put = self._store.put if self._store is not None else _digest
        digest = put(array)
        self._arrays[digest] = array
        self._uses[digest] += 1
        return digest

    def forget_if_passed(self, case: Case) -> None:
        """Drop the arrays that no other case uses."""
        for digest in case.digests.values() if case.passed else ():
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._arrays[digest]

    def then(self, progress: Callable[[Case], None]) -> Callable[[Case], None]:
        """:meth:`forget_if_passed` and ``progress``, for each finished case."""

        def finished(case: Case) -> None:
            self.forget_if_passed(case)
            progress(case)

        return finished

    def of(self, case: Case) -> tuple[Inputs, dict[str, Array]]:
        """Inputs and outputs, by name, of a failed case with outputs."""
        names = ("q", "k", "v", *case.problem.array_shapes)
        inputs = Inputs(**{name: self._arrays[case.digests[name]] for name in names})
        return inputs, {name: self._arrays[case.digests[name]] for name in case.problem.outputs}


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@dataclass(frozen=True)
class FailureSummary:
    """The summary of the failed cases; fields that do not apply are empty.

    Attributes
    ----------
    hazards : tuple of HazardGroup
        Hazards by kind and pair of source lines, over all cases; ``runs`` are the cases with the hazard.
    mapped, error_map : str
        Name of a case with a wrong output, and the map of its error (:mod:`.error_map`).
    worst_row : str
        The worst row over all cases with a wrong output, with its case.
    likely : str
        The likely bug.
    next_step : str
        A command line.
    """

    hazards: tuple[HazardGroup, ...] = ()
    mapped: str = ""
    error_map: str = ""
    worst_row: str = ""
    likely: str = ""
    next_step: str = ""

    def lines(self) -> list[str]:
        """The summary as text, without the hazards."""
        labelled = [
            ("error of", f"{self.mapped}, {self.error_map}" if self.mapped else ""),
            ("worst row:", self.worst_row),
            ("likely:", self.likely),
            ("next:", self.next_step),
        ]
        return [f"{label} {text}" for label, text in labelled if text]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        hazards = [group.to_dict() for group in self.hazards]
        return {**vars(self), "hazards": hazards, "error_map": self.error_map.splitlines()}


def summarise(
    verdict: Verdict, arrays: ArraysOf, candidate: object = None, options: Sequence[str] = ()
) -> FailureSummary:
    """The summary of a verdict; empty for a passed one.

    Parameters
    ----------
    verdict : Verdict
    arrays : callable
        Returns the inputs and the output of a failed case (:meth:`FailedArrays.of`).
    candidate : optional
        The judged candidate; the next step names it if it is a name or ``FILE.py:NAME``.
    options : sequence of str
        Further command-line options of the next step, such as ``--set`` and its value.
    """
    if verdict.passed:
        return FailureSummary()
    wrong = failures_of(verdict.cases, arrays)
    worst = {
        name: failure.worst if isinstance(failure, GradientFailure) else failure for name, failure in wrong.items()
    }
    mapped = next(iter(wrong), "")
    diagnosis = diagnose(list(wrong.values()))
    return FailureSummary(
        hazards=_hazards(verdict),
        mapped=mapped,
        error_map=error_map(worst[mapped]) if wrong else "",
        worst_row=_worst_row(worst),
        likely=str(diagnosis) if diagnosis else "",
        next_step=_next_step(verdict, candidate, options),
    )


def failures_of(cases: Sequence[Case], arrays: ArraysOf) -> dict[str, Failure | GradientFailure]:
    """The cases with a wrong output, by name; a wrong log-sum-exp beside a right output is left out."""
    wrong: dict[str, Failure | GradientFailure] = {}
    for case in cases:
        errors, limits = case.errors, case.limits
        if case.status not in _NUMBERS or not errors or not limits or not set(broken_rules(errors, limits)) - {"lse"}:
            continue
        problem, (inputs, outputs) = case.problem, arrays(case)
        if problem.backward:
            figures = {name: (each.errors, each.limits) for name, each in case.figures.items()}
            wrong[case.name] = failure_of_gradients(problem, inputs, outputs, figures)
        else:
            written = "o_second" not in case.digests
            wrong[case.name] = Failure(problem, inputs, outputs["o"], errors, limits, written=written)
    return wrong


def _hazards(verdict: Verdict) -> tuple[HazardGroup, ...]:
    return merge(
        replace(HazardGroup.from_dict(group), runs=(case.name,))
        for case in verdict.cases
        for group in case.run.get("hazards", ())
    )


def _worst_row(wrong: dict[str, Failure]) -> str:
    """The row that exceeds its limit by the largest factor."""
    if not wrong:
        return ""
    name, failure = max(wrong.items(), key=lambda item: item[1].limited["worst_row_rel_l2"].share)
    worst = failure.limited["worst_row_rel_l2"]
    if worst.share <= 1:
        return ""
    rows = f"{int(failure.bad.sum())} of {failure.bad.size} rows are over the limit"
    where = place(failure.errors.worst_row)
    output = "" if failure.output == "o" else f"{failure.output} "
    return f"{output}{where} of {name}: relative L2 {worst.error:.3g}, {worst.share:.3g}x the limit; {rows}"


def _next_step(verdict: Verdict, candidate: object, options: Sequence[str]) -> str:
    """The command for further diagnosis; empty if there is none, or the candidate has no name on the command line."""
    failed = [case for case in verdict.cases if case.status in _RUN_AGAIN]
    if not isinstance(candidate, str) or not failed:
        return ""
    built = any("ptx_sha256" in case.run for case in verdict.cases) or not verdict.device.startswith("cpu")
    smallest = min((case.problem for case in failed), key=lambda one: (one.scores < _TILE_SCORES, one.scores))
    named = options_of(smallest) if smallest.scores <= _SMALL_SCORES else []
    if not built and not named:
        return ""
    return shlex.join(["sdpalab", "sanitize" if built else "judge", candidate, *named, *options])


def options_of(problem: Problem) -> list[str]:
    """Command-line options that describe a problem."""
    shape = f"{problem.batch},{problem.heads},{problem.seq_q},{problem.head_dim}"
    options = ["--shape", shape]
    if problem.kv_heads != problem.heads:
        options += ["--kv-heads", str(problem.kv_heads)]
    if problem.seq_kv != problem.seq_q:
        options += ["--seq-kv", str(problem.seq_kv)]
    if problem.dtype != "float16":
        options += ["--dtype", problem.dtype]
    options += ["--causal"] if problem.causal else []
    for name, value in problem.to_dict().items():
        if name in FIELDS:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            options += [_OPTIONS.get(name, f"--{name.replace('_', '-')}"), *([] if value is True else [text])]
    return options


_OPTIONS = {"window_size": "--window"}
"""Options whose name is not that of the field."""
