"""Certificates of kernels on GPUs, read from records of verdicts; the code contains no list of them.

The records are the shipped ones (``evidence/<gpu>/*.json``) and those of ``sdpalab prove``
(:mod:`sdpalab.evidence.store.record`). A record certifies its kernel if its verdict is PASSED and was run on a GPU:
simulated runs and callables certify nothing about a GPU. It certifies the judged code, by its digest, and not a later
version of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sdpalab.compile import Build
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.store.record import AnyRecord, StoredRecord
from sdpalab.judge.verdict import Status, Verdict
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.registry import SHIPPED, get, needs
from sdpalab.problem import FEATURES, Problem

__all__ = [
    "Certificate",
    "CertifiedKernel",
    "certificate_of",
    "why_not_exact",
]

_LARGEST_TILE = 128
"""Most rows or keys of a block's tile; a length that is not a multiple of it may end in a partial tile."""

_UNDECIDED = (Status.INFRA_ERROR, Status.UNSUPPORTED, Status.BUILD_FAILED)
"""Statuses without information on the code, which did not run."""


@dataclass(frozen=True)
class Certificate:
    """A verdict on a kernel from a GPU.

    Attributes
    ----------
    kernel, config : str
        Kernel and configuration of the record.
    gpu : str
        Name of the GPU in its driver.
    arch : str
        Target architecture of the build.
    ptx_sha256 : frozenset of str
        Digests of the executed PTX.
    problems : frozenset of Problem
        Problems that were judged, or checked by sampled rows.
    record : str
        The record, as ``<gpu>/<file>``, or the path of a user's record.
    code : frozenset of str
        :attr:`~sdpalab.compile.Build.code_sha256` of the executed builds; empty in a record that has only
        ``ptx_sha256``.
    keys : frozenset of str
        :attr:`~sdpalab.compile.Build.key` of the executed builds.
    driver : str or None
        Version of the driver; None if the record lacks it.
    lab : str or None
        Version of the lab that judged; None for a record shipped with this version.
    failure : str
        Reason why the kernel did not pass; empty if it passed.
    coverage : tuple of str
        :attr:`sdpalab.judge.verdict.Verdict.covers`.
    not_covered : tuple of str
        :attr:`sdpalab.judge.verdict.Verdict.not_covered`.
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
    not_covered: tuple[str, ...] = ()
    verdict: Verdict | None = field(default=None, compare=False)

    def covers(self, problem: Problem) -> bool:
        """Whether problems with the same traits were judged, including some that are as large in each dimension."""
        alike = [judged for judged in self.problems if _traits(judged) == _traits(problem)]
        return bool(alike) and all(
            getattr(problem, size) <= max(getattr(judged, size) for judged in alike)
            for size in ("batch", "heads", "seq_q", "seq_kv")
        )

    def is_of(self, build: Build) -> bool:
        """Whether the code of ``build`` was judged."""
        return build.ptx_sha256 in self.ptx_sha256 or build.code_sha256 in self.code


@dataclass(frozen=True)
class CertifiedKernel:
    """A certified kernel, planned and built for one problem; its code is the judged code."""

    certificate: Certificate
    plan: LaunchPlan
    builds: tuple[Build, ...]


def _traits(problem: Problem) -> tuple[object, ...]:
    """Traits of a problem that select another code path or another compiled kernel.

    Lengths are data: they count as present or not, and in another layout than dense the sizes have no relation that a
    kernel knows of.
    """
    dense = problem.layout == "dense"
    return (
        problem.dtype,
        problem.head_dim,
        problem.causal,
        problem.group > 1,
        dense and problem.seq_q == problem.seq_kv,
        dense and bool(problem.seq_q % _LARGEST_TILE or problem.seq_kv % _LARGEST_TILE),
        problem.scale == problem.with_(scale=None).scale,
        *(bool(getattr(problem, name)) if name.endswith("_lengths") else getattr(problem, name) for name in FEATURES),
        problem.layout,
    )


def certificate_of(record: AnyRecord, name: str, *, own: bool = False) -> Certificate | None:
    """The certificate or failure of a kernel on a GPU in a record; None if there is none.

    Parameters
    ----------
    record : StoredRecord, AttemptRecord or BenchRecord
    name : str
        Value of :attr:`Certificate.record`.
    own : bool
        Whether it is the user's, not shipped with the lab; it is then valid for the version of the lab that made it.
    """
    stored = record if isinstance(record, StoredRecord) else None
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
    return Certificate(
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
        not_covered=tuple(verdict.not_covered),
        verdict=verdict,
    )


def why_not_exact(kernel: str, config: str) -> str | None:
    """Reason why a kernel cannot replace torch's own function, independent of certificates; None if it can.

    Kernels that quantise their inputs, or accumulate in less than float32, cannot replace it. Kernels that no longer
    exist, are not available here, or lack these knobs cannot either.
    """
    if kernel not in SHIPPED:
        return f"there is no kernel {kernel} any more"
    missing = needs(kernel)
    if missing is not None:
        return missing
    try:
        numerics = get(kernel).numerics_of(config_of(kernel, config))
    except UnsupportedProblem as error:
        return str(error)
    if numerics.quantised is not None:
        return f"{kernel} quantises its inputs, which torch's own function does not"
    if numerics.probabilities not in ("problem", "float32") or numerics.accumulate != "float32":
        return f"{kernel} computes less precisely than torch's own function"
    return None


def config_of(kernel: str, config: str) -> Config:
    """The judged configuration; raises UnsupportedProblem if the kernel no longer has these knobs."""
    return get(kernel).config_with(dict(knob.split("=", 1) for knob in config.split()))
