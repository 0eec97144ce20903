"""What is proven on which GPU: read from committed records of verdicts, so that no list in the code says it.

``evidence/<gpu>/*.json`` holds attempts (:class:`~sdpalab.evidence.records.AttemptRecord`), as bundles do. One proves
its kernel where its verdict is PASSED and names a GPU as what ran it: what was simulated, or computed by a callable,
proves nothing about a GPU. And it proves the PTX that was judged, by its digest, not what the kernel has become since.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from sdpalab.compile import Build, build
from sdpalab.errors import MachineError
from sdpalab.evidence.records import AttemptRecord
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.registry import CUDA_KERNELS, KERNELS, needs
from sdpalab.problem import Problem

__all__ = ["EVIDENCE", "Proof", "ProvenKernel", "proof_for", "proven_kernel", "read_proofs"]

EVIDENCE = Path(__file__).resolve().parents[3] / "evidence"
"""The committed records of a source tree; an installed copy has none, and so nothing that is proven."""

_LARGEST_TILE = 128
"""Rows or keys that a block takes at most: a length that is no multiple of it may end in a part of a tile."""


@dataclass(frozen=True)
class Proof:
    """A kernel that was judged PASSED on a GPU.

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
        What it was judged on.
    record : str
        The record, as ``<gpu>/<file>``.
    """

    kernel: str
    config: str
    gpu: str
    arch: str
    ptx_sha256: frozenset[str]
    problems: frozenset[Problem]
    record: str

    def covers(self, problem: Problem) -> bool:
        """Whether problems with the same traits were judged, and some that were as large in each dimension."""
        alike = [judged for judged in self.problems if _traits(judged) == _traits(problem)]
        return bool(alike) and all(
            getattr(problem, size) <= max(getattr(judged, size) for judged in alike)
            for size in ("batch", "heads", "seq_q", "seq_kv")
        )


@dataclass(frozen=True)
class ProvenKernel:
    """A proven kernel, planned and built for one problem: its PTX is what was judged."""

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
    )


@cache
def read_proofs(folder: Path = EVIDENCE) -> tuple[Proof, ...]:
    """Every proof among the records in the folders of ``folder``; other files there are skipped.

    Raises
    ------
    MachineError
        If a record of an attempt is not a legal one: the installation is damaged.
    """
    proofs = []
    for path in sorted(folder.glob("*/*.json")):
        name = f"{path.parent.name}/{path.name}"
        try:
            data = json.loads(path.read_bytes())
            if not (isinstance(data, dict) and {"kernel", "builds", "verdict"} <= data.keys()):
                continue
            proof = _proof(AttemptRecord.model_validate(data), name)
        except (OSError, ValueError) as error:
            raise MachineError(f"{name} in the evidence is no legal record: {' '.join(str(error).split())}") from None
        if proof is not None:
            proofs.append(proof)
    return tuple(proofs)


def _proof(attempt: AttemptRecord, record: str) -> Proof | None:
    verdict = attempt.verdict
    archs = {build.arch for build in attempt.builds}
    if verdict is None or not verdict.passed or len(archs) != 1:
        return None
    if verdict.device.startswith(("simulator", "cpu")):
        return None
    return Proof(
        kernel=attempt.kernel,
        config=attempt.config,
        gpu=verdict.device,
        arch=archs.pop(),
        ptx_sha256=frozenset(build.ptx_sha256 for build in attempt.builds),
        problems=frozenset(case.problem for case in verdict.cases),
        record=record,
    )


def proof_for(problem: Problem, gpu: str, proofs: Sequence[Proof]) -> tuple[Proof | None, str]:
    """The best kernel that is proven for ``problem`` on ``gpu``, and why it is or why there is none.

    The best is the highest rung of the ladder; one in Triton only where there is no other. A kernel that quantises its
    inputs, or accumulates in less than float32, stands in for none that does not.
    """
    here = [proof for proof in proofs if proof.gpu == gpu]
    if not here:
        return None, f"no kernel is proven on {gpu}: no committed verdict from it is PASSED"
    rungs = list(KERNELS)
    fit = [proof for proof in here if proof.covers(problem) and _as_exact_as_torch(proof)]
    if not fit:
        return None, f"no kernel that is proven on {gpu} covers {problem.label}"
    best = max(fit, key=lambda proof: (proof.kernel in CUDA_KERNELS, rungs.index(proof.kernel)))
    return best, f"{best.kernel} is proven for {problem.label} on {gpu} by {best.record}"


def _config(proof: Proof) -> Config:
    """The configuration that was judged; raises UnsupportedProblem if the kernel has such knobs no longer."""
    return KERNELS[proof.kernel].config_with(dict(knob.split("=", 1) for knob in proof.config.split()))


def _as_exact_as_torch(proof: Proof) -> bool:
    if proof.kernel not in KERNELS or needs(proof.kernel) is not None:
        return False
    try:
        numerics = KERNELS[proof.kernel].numerics_of(_config(proof))
    except UnsupportedProblem:
        return False
    exact = numerics.probabilities in ("problem", "float32")
    return exact and numerics.accumulate == "float32" and numerics.quantised is None


@lru_cache(maxsize=4096)
def proven_kernel(
    problem: Problem, gpu: str, folder: Path = EVIDENCE, *, lse: bool = False
) -> tuple[ProvenKernel | None, str]:
    """The best kernel that is proven for ``problem`` on ``gpu``, built, and why it is or why there is none.

    What :func:`proof_for` finds, unless the kernel's PTX is no longer what was judged, or it writes no log-sum-exp and
    is asked for one. The judge asks for it wherever a kernel writes it, so that its verdict covers that, too.

    Raises
    ------
    MachineError
        As :func:`read_proofs`, or if there is no compiler.
    """
    proof, why = proof_for(problem, gpu, read_proofs(folder))
    if proof is None:
        return None, why
    kernel, config = KERNELS[proof.kernel], _config(proof)
    refused = kernel.reject_reason(problem, config)
    if refused is not None:
        return None, refused
    if lse and not kernel.lse:
        return None, f"{proof.kernel} writes no log-sum-exp"
    plan = kernel.launch_plan(problem, config, lse=lse)
    builds = tuple(build(step.module, proof.arch) for step in plan.launches if step.module is not None)
    if not {built.ptx_sha256 for built in builds} <= proof.ptx_sha256:
        return (
            None,
            f"the PTX of {proof.kernel} is not what {proof.record} proves: it or its compiler was changed since",
        )
    return ProvenKernel(proof, plan, builds), why
