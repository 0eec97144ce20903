"""What is proven on which GPU, read from records of verdicts; the code has no list of it.

The records are those that are shipped (``evidence/<gpu>/*.json``) and those that ``sdpalab prove`` keeps
(:mod:`sdpalab.evidence.kept`). One proves its kernel where its verdict is PASSED and names a GPU as what ran it: what
was simulated, or computed by a callable, proves nothing about a GPU. It proves the code that was judged, by its digest,
and not a later version of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sdpalab.compile import Build
from sdpalab.evidence.folders import EVIDENCE
from sdpalab.evidence.kept import AnyRecord, KeptRecord, read_records
from sdpalab.evidence.records import AttemptRecord
from sdpalab.judge.verdict import Status, Verdict
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.problem import EXTRAS, Problem

__all__ = ["EVIDENCE", "Proof", "ProvenKernel", "exactness_reason", "proof_of", "read_proofs", "recorded_verdicts"]

_LARGEST_TILE = 128
"""Rows or keys that a block takes at most: a length that is not a multiple of it may end in a part of a tile."""

_UNDECIDED = (Status.INFRA_ERROR, Status.UNSUPPORTED, Status.BUILD_FAILED)
"""Statuses without information on the code: it did not run."""


@dataclass(frozen=True)
class Proof:
    """A verdict on a kernel from a GPU.

    Attributes
    ----------
    kernel, config : str
        As in the record.
    gpu : str
        The GPU's name, as its driver gives it.
    arch : str
        What the kernel was built for.
    ptx_sha256 : frozenset of str
        Of what was run.
    problems : frozenset of Problem
        What it was judged on, or checked by sampled rows.
    record : str
        The record, as ``<gpu>/<file>``, or its path if it is the user's.
    code : frozenset of str
        :attr:`~sdpalab.compile.Build.code_sha256` of what was run; empty in a record that has only ``ptx_sha256``.
    keys : frozenset of str
        :attr:`~sdpalab.compile.Build.key` of what was run.
    driver : str or None
        Version of the driver; None where the record does not name it.
    lab : str or None
        The version of the lab that judged; None for a record that is shipped with this one.
    failure : str
        Why the kernel did not pass; empty if it did.
    coverage : tuple of str
        :attr:`sdpalab.judge.verdict.Verdict.covers`.
    verdict : Verdict or None
        The verdict itself.
    """

    kernel: str
    config: str
    gpu: str
    arch: str
    ptx_sha256: frozenset[str]
    problems: frozenset[Problem]
    record: str
    code: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    driver: str | None = None
    lab: str | None = None
    failure: str = ""
    coverage: tuple[str, ...] = ()
    verdict: Verdict | None = field(default=None, compare=False)

    def covers(self, problem: Problem) -> bool:
        """Whether problems with the same traits were judged, and some that were as large in each dimension."""
        alike = [judged for judged in self.problems if _traits(judged) == _traits(problem)]
        return bool(alike) and all(
            getattr(problem, size) <= max(getattr(judged, size) for judged in alike)
            for size in ("batch", "heads", "seq_q", "seq_kv")
        )

    def is_of(self, build: Build) -> bool:
        """Whether the code of ``build`` is among what was judged."""
        return build.ptx_sha256 in self.ptx_sha256 or build.code_sha256 in self.code


@dataclass(frozen=True)
class ProvenKernel:
    """A proven kernel, planned and built for one problem: its code is what was judged."""

    proof: Proof
    plan: LaunchPlan
    builds: tuple[Build, ...]


def _traits(problem: Problem) -> tuple[object, ...]:
    """What makes a kernel take another path, or another kernel be compiled."""
    return (
        problem.dtype,
        problem.head_dim,
        problem.causal,
        problem.group > 1,
        problem.seq_q == problem.seq_kv,
        bool(problem.seq_q % _LARGEST_TILE or problem.seq_kv % _LARGEST_TILE),
        problem.scale == problem.with_(scale=None).scale,
        *(getattr(problem, name) for name in EXTRAS),
    )


@cache
def read_proofs(folder: Path = EVIDENCE) -> tuple[Proof, ...]:
    """Every proof among the records in the folders of ``folder``, those that PASSED.

    Warns
    -----
    RecordWarning
        For each record that is damaged; it proves nothing.
    """
    folders = sorted(path for path in folder.glob("*") if path.is_dir())
    return tuple(proof for each in folders for proof in _proofs(each) if not proof.failure)


def recorded_verdicts(more: Path | None = None) -> dict[str, Verdict]:
    """PASSED verdicts from GPUs by their records: those that are shipped, and those in the folders of ``more``.

    :func:`sdpalab.measure.timing_gate.judge_for_timing` takes them.
    """
    proofs = (*read_proofs(), *(read_proofs(more) if more else ()))
    return {proof.record: proof.verdict for proof in proofs if proof.verdict is not None}


def _proofs(folder: Path) -> Iterator[Proof]:
    for path, record in read_records(folder):
        proof = proof_of(record, f"{path.parent.name}/{path.name}")
        if proof is not None:
            yield proof


def proof_of(record: AnyRecord, name: str, *, own: bool = False) -> Proof | None:
    """The proof or failure that a record holds for a kernel on a GPU; None if it holds none.

    Parameters
    ----------
    record : KeptRecord, AttemptRecord or BenchRecord
    name : str
        What :attr:`Proof.record` is to be.
    own : bool
        It is the user's, not shipped with the lab: then it holds for the lab's version that made it.
    """
    stored = record if isinstance(record, KeptRecord) else None
    attempt = stored.attempt if stored else record
    if not isinstance(attempt, AttemptRecord) or attempt.verdict is None:
        return None
    verdict = attempt.verdict
    archs = {build.arch for build in attempt.builds}
    if len(archs) != 1 or verdict.status in _UNDECIDED or verdict.device.startswith(("simulator", "cpu")):
        return None
    problems = {case.problem for case in verdict.cases}
    sampled = stored.sampled if stored else ()
    large = {each.problem for each in sampled if each.small in problems and not each.wrong}
    wrong = [f"{each.problem.label}: {each.wrong}" for each in sampled if each.wrong]
    return Proof(
        kernel=attempt.kernel,
        config=attempt.config,
        gpu=verdict.device,
        arch=archs.pop(),
        ptx_sha256=frozenset(build.ptx_sha256 for build in attempt.builds),
        problems=frozenset(problems | large),
        record=name,
        code=frozenset(stored.code.values() if stored else ()),
        keys=frozenset(build.key for build in attempt.builds),
        driver=stored.driver if stored else None,
        lab=stored.lab if stored and own else None,
        failure="; ".join(wrong) if verdict.passed else f"{verdict.status.value}: {verdict.reason}",
        coverage=tuple(verdict.covers),
        verdict=verdict,
    )


def exactness_reason(kernel: str, config: str) -> str | None:
    """Why a kernel cannot stand in for torch's own function, whatever is proven; None if it can.

    One that quantises its inputs, or accumulates in less than float32, stands in for none that does not. So does one
    that there is no longer, or not here, or not with these knobs.
    """
    if kernel not in KERNELS:
        return f"there is no kernel {kernel} any more"
    missing = needs(kernel)
    if missing is not None:
        return missing
    try:
        numerics = KERNELS[kernel].numerics_of(config_of(kernel, config))
    except UnsupportedProblem as error:
        return str(error)
    if numerics.quantised is not None:
        return f"{kernel} quantises its inputs, which torch's own function does not"
    if numerics.probabilities not in ("problem", "float32") or numerics.accumulate != "float32":
        return f"{kernel} computes less precisely than torch's own function"
    return None


def config_of(kernel: str, config: str) -> Config:
    """The configuration that was judged; raises UnsupportedProblem if the kernel has such knobs no longer."""
    return KERNELS[kernel].config_with(dict(knob.split("=", 1) for knob in config.split()))


def failures(builds: Sequence[Build], proofs: Sequence[Proof]) -> Iterator[Proof]:
    """The verdicts that did not pass on any of this very code."""
    return (proof for proof in proofs if proof.failure and any(proof.is_of(build) for build in builds))
