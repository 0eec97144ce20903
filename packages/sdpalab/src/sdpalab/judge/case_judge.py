"""One case: its run by the candidate's processes, and its verdict."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs, with_forward
from sdpalab.judge.agreement import agreement
from sdpalab.judge.case_inputs import case_inputs
from sdpalab.judge.claims import claimed_by
from sdpalab.judge.options import JudgeOptions
from sdpalab.judge.rule.evaluate import Evidence, declared_numerics, evaluate
from sdpalab.judge.rule.relations import RELATIONS, broken_relation
from sdpalab.judge.sandbox.isolation import CandidateProcesses
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.judge.stale import other_inputs
from sdpalab.judge.strides import Strides, expandable
from sdpalab.judge.verdict import Case, Status

__all__ = ["CaseJudge", "RunOfCase"]

Array = npt.NDArray[Any]


class RunOfCase(NamedTuple):
    """Result of a candidate's processes for a case; ``other``: the inputs of the run between the two."""

    number: int
    inputs: Inputs
    other: Inputs
    reply: Mapping[str, Any]
    outputs: Mapping[str, Array]

    @property
    def failed(self) -> bool:
        """Whether no output exists to judge."""
        return self.reply.get("status") is not None


class CaseJudge:
    """Judges cases of one candidate, in any thread.

    Parameters
    ----------
    specs : sequence of CaseSpec
        The cases; hidden seeds are drawn here, after the candidate was loaded, so it cannot depend on these inputs.
    about : mapping
        The candidate's description of itself.
    options : JudgeOptions

    Attributes
    ----------
    specs : list of CaseSpec
        The cases, each with its seed.
    """

    def __init__(self, specs: Sequence[CaseSpec], about: Mapping[str, Any], options: JudgeOptions) -> None:
        self._about, self._store, self._lock = about, options.store, threading.Lock()
        self._secret = options.secret or os.urandom(16)
        self._compared = _compared(specs)
        self.specs = [
            spec if spec.seed is not None else replace(spec, seed=self._hidden("seed", n, 6))
            for n, spec in enumerate(specs)
        ]

    def hidden_length(self) -> int:
        """A number that selects the length of a case."""
        return self._hidden("length", 0, 6)

    def add(self, spec: CaseSpec) -> int:
        """Add a case with a hidden seed; return its number."""
        self.specs.append(replace(spec, seed=self._hidden("seed", len(self.specs), 6)))
        return len(self.specs) - 1

    def run(self, n: int, worker: CandidateProcesses) -> RunOfCase:
        """Run a case."""
        spec, inputs = self.specs[n], case_inputs(self.specs[n])
        other = other_inputs(inputs, self._hidden("other", n, 8))
        other = replace(other, k=expandable(other.k, spec.strides), v=expandable(other.v, spec.strides))
        other = with_forward(spec.problem, other) if spec.problem.backward else other
        return RunOfCase(n, inputs, other, *worker.run(spec.problem, inputs.arrays, other.arrays, strides=spec.strides))

    def case(self, run: RunOfCase, worker: CandidateProcesses | None = None) -> Case:
        """Judge the outputs of a case; for a case with a relation, ``worker`` also runs the related inputs."""
        evidence = self._evidence(run)
        if worker is not None and self.specs[run.number].relation and evidence.status is Status.PASSED:
            evidence = self._related(run, evidence, worker)
        return self._case(run.number, run.inputs, evidence)

    def failed(self, n: int, status: Status, reason: str) -> Case:
        """A case without outputs."""
        return self._case(n, case_inputs(self.specs[n]), Evidence(status, reason))

    def keep(self, array: Array) -> str:
        """Keep an array in the store, if there is one; return the sha256 of its bytes."""
        if self._store is None:
            return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        with self._lock:
            return self._store.put(array)

    def _evidence(self, run: RunOfCase) -> Evidence:
        problem, inputs = self.specs[run.number].problem, run.inputs
        evidence = evaluate(problem, inputs, self._about, run.reply, run.outputs, other=run.other)
        if run.number == self._compared and evidence.judged is not None and not problem.backward:
            distances = agreement(problem, inputs, evidence.arrays["o"])
            evidence = replace(evidence, run={**evidence.run, "witnesses": distances.to_dict() if distances else None})
        return evidence

    def _related(self, run: RunOfCase, evidence: Evidence, worker: CandidateProcesses) -> Evidence:
        """Run and judge the related inputs of a case that passes."""
        spec = self.specs[run.number]
        relation, numerics = RELATIONS[spec.relation], declared_numerics(self._about)
        problem, related = relation.inputs(spec.problem, run.inputs)
        reply, outputs = worker.attempt(problem, related.arrays)
        if reply.get("status") is not None:
            return replace(evidence, status=Status(reply["status"]), reason=str(reply["reason"]))
        own = {name: evidence.arrays[name] for name in spec.problem.outputs}
        broken, differs = broken_relation(relation, spec.problem, own, problem, related, outputs, numerics)
        notes = {**evidence.run, "relation": {"name": relation.name, "elements_that_differ": differs}}
        return replace(evidence, status=Status.INCONSISTENT if broken else evidence.status, reason=broken, run=notes)

    def _hidden(self, what: str, n: int, size: int) -> int:
        """A number of ``size`` bytes for a case, derived from the secret of this judgement."""
        return int.from_bytes(hashlib.sha256(self._secret + f"{what} {n}".encode()).digest()[:size], "little")

    def _case(self, n: int, inputs: Inputs, evidence: Evidence) -> Case:
        spec = self.specs[n]
        run, reason = dict(evidence.run), evidence.reason
        if spec.trial:
            run["trial"] = True
        if spec.strides != Strides.CONTIGUOUS:
            strides = Strides(spec.strides)
            run["strides"] = strides.value
            reason = reason and f"{reason}; Q, K and V lie {strides.says}"
        if spec.claim:
            run["claim"] = spec.claim
            reason = reason and f"{reason}; judged unasked, because {claimed_by(spec.claim, self._about)}"
        return Case(
            name=spec.name,
            problem=spec.problem,
            inputs=spec.inputs,
            seed=spec.seed or 0,
            status=evidence.status,
            reason=reason,
            errors=evidence.errors,
            limits=evidence.limits,
            digests={name: self.keep(array) for name, array in {**inputs.arrays, **evidence.arrays}.items()},
            run=run,
            figures={} if evidence.judged is None or not spec.problem.backward else evidence.judged.figures,
        )


def _compared(specs: Sequence[CaseSpec]) -> int | None:
    """The case that the torch backends compute: the largest problem with normal inputs from a public seed.

    One case suffices to compare outputs, and a public seed makes it reproducible.
    """
    public = [n for n, spec in enumerate(specs) if spec.inputs == "normal" and spec.seed is not None]
    return max(public, key=lambda n: specs[n].problem.scores, default=None)
