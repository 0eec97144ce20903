"""From the results of each version to the matrix.

The first version that ran is the base, and the others are compared with it, array by array:

- outputs that are the same bits have not changed;
- a difference is *rounding* if it is no larger than the errors that both have against float64 anyway: in relative L2 at
  most sqrt(2) times the smaller of the two, which is how far two equally good outputs with independent roundings are
  apart, and in its worst row at most 2 times the smaller of the two worst rows. The errors count as half a unit
  roundoff u of the type at least, about what rounding the result alone costs, and those of a row as u: all its elements
  may be one unit in the last place off;
- anything more is a change: one of the two is better or worse, or wrong somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import make_inputs
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.rule.limits import UNIT_ROUNDOFF, measure
from sdpalab.judge.rule.reference import attention_float64
from sdpalab.judge.verdict import Errors
from sdpalab.problem import Problem
from sdpalab.torch_matrix.conclusion import conclude
from sdpalab.torch_matrix.matrix import (
    CONTRACT,
    OWN_CHOICE,
    Change,
    Conclusion,
    Drift,
    Matrix,
    Run,
    VersionRow,
    WitnessRow,
)

__all__ = ["compare"]

Array = npt.NDArray[Any]
Load = Callable[[str, Problem], Array]


def compare(specs: Sequence[CaseSpec], runs: Sequence[Run], load: Load) -> Matrix:
    """Make the matrix.

    Parameters
    ----------
    specs : sequence of CaseSpec
        The cases of every run, seeds included.
    runs : sequence of Run
        One a version, in order.
    load : callable
        ``load(digest, problem)``: an output [B, H, Sq, D] in the problem's dtype.
    """
    base = next((run for run in runs if not run.reason), None)
    if base is None:
        return Matrix(
            tuple(VersionRow(run) for run in runs), "", Conclusion.NOT_COMPARED, "none of the versions could be run"
        )
    outputs = _OutputComparison({spec.name: spec for spec in specs}, load)
    rows = tuple(VersionRow(run) if run.reason else outputs.row(run, base) for run in runs)
    return Matrix(rows, base.torch, *conclude(rows))


class _OutputComparison:
    """Arrays by case and digest, and the float64 reference of each case, computed once."""

    def __init__(self, specs: Mapping[str, CaseSpec], load: Load) -> None:
        self._specs, self._load = specs, load
        self._references: dict[str, npt.NDArray[np.float64]] = {}

    def row(self, run: Run, base: Run) -> VersionRow:
        """Everything about one version that ran."""
        own = _outputs_of(run)
        names = list(dict.fromkeys(name for case in own for name in (*run.witnesses[case], *run.missing)))
        chosen = [
            name for name in names if name != OWN_CHOICE and _witness_of(name, run) == _witness_of(OWN_CHOICE, run)
        ]
        return VersionRow(
            run,
            output=self._drift(own, _outputs_of(base)),
            contract=sum(self._meets_contract(case, digest, run) for case, digest in own.items()),
            own_choice=chosen[0] if chosen else "",
            witnesses=tuple(self._witness(name, run, base) for name in names),
        )

    def _meets_contract(self, case: str, digest: str | None, run: Run) -> bool:
        gap = self._apart(case, digest, run.witnesses[case].get(OWN_CHOICE))
        return gap is not None and all(getattr(gap, name) <= most for name, most in CONTRACT.items())

    def _witness(self, name: str, run: Run, base: Run) -> WitnessRow:
        mine, theirs, candidate = _witness_of(name, run), _witness_of(name, base), _outputs_of(run)
        errors = [self._error(case, digest) for case, digest in mine.items()]
        gaps = [self._apart(case, candidate.get(case), digest) for case, digest in mine.items()]
        return WitnessRow(
            name,
            rel_l2=_largest(errors, "rel_l2"),
            max_abs=_largest(errors, "max_abs"),
            drift=self._drift(mine, theirs) if mine and theirs else None,
            from_candidate=_largest(gaps, "rel_l2"),
            missing=run.missing.get(name, ""),
        )

    def _drift(self, ours: Mapping[str, str | None], theirs: Mapping[str, str | None]) -> Drift:
        """The distance of outputs, by case, from those of the base; one that is only on one side is a change."""
        differ = [case for case in dict.fromkeys((*theirs, *ours)) if ours.get(case) != theirs.get(case)]
        if not differ:
            return Drift(Change.SAME_BITS, 0.0, 0)
        gaps = {case: self._apart(case, ours.get(case), theirs.get(case)) for case in differ}
        rounding = all(self._is_rounding(case, gap, ours.get(case), theirs.get(case)) for case, gap in gaps.items())
        change = Change.ROUNDING if rounding else Change.CHANGED
        return Drift(change, _largest(list(gaps.values()), "rel_l2"), len(differ))

    def _is_rounding(self, case: str, gap: Errors | None, ours: str | None, theirs: str | None) -> bool:
        if gap is None or ours is None or theirs is None:
            return False
        errors = [self._error(case, digest) for digest in (ours, theirs)]
        u = UNIT_ROUNDOFF[self._specs[case].problem.dtype]
        return all(
            getattr(gap, name) <= factor * max(least, min(getattr(each, name) for each in errors if each is not None))
            for name, factor, least in (("rel_l2", math.sqrt(2.0), u / 2), ("worst_row_rel_l2", 2.0, u))
        )

    def _error(self, case: str, digest: str) -> Errors | None:
        """Distance of an output from float64, None if it is not finite."""
        if case not in self._references:
            spec = self._specs[case]
            inputs = make_inputs(spec.problem, spec.inputs, spec.seed or 0)
            self._references[case] = attention_float64(*inputs.qkv, **spec.problem.scoring_with(inputs.arrays))
        return self._measured(case, digest, self._references[case])

    def _apart(self, case: str, ours: str | None, theirs: str | None) -> Errors | None:
        """Distance of one output from another, None if one is missing or not finite."""
        if ours is None or theirs is None:
            return None
        other = self._load(theirs, self._specs[case].problem).astype(np.float64)
        return self._measured(case, ours, other) if np.isfinite(other).all() else None

    def _measured(self, case: str, digest: str, other: npt.NDArray[np.float64]) -> Errors | None:
        problem = self._specs[case].problem
        errors = measure(self._load(digest, problem), other, problem.dtype)
        return None if errors.not_finite else errors


def _outputs_of(run: Run) -> dict[str, str | None]:
    """Digest of the candidate's output, by case; None where it gave none."""
    return {case["name"]: case["digests"].get("o") for case in run.verdict["cases"]}


def _witness_of(name: str, run: Run) -> dict[str, str]:
    """Digest of a witness's output, for each case in which it gave one."""
    return {case: digests[name] for case, digests in run.witnesses.items() if name in digests}


def _largest(all_errors: Sequence[Errors | None], name: str) -> float | None:
    """The largest of one figure; None if there is none, or one is missing or not finite."""
    values = [getattr(errors, name) for errors in all_errors if errors is not None]
    return max(values) if values and len(values) == len(all_errors) else None
