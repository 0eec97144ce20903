"""``sdpalab.repro``: build, gate and judge kernels, and write a bundle and a report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpalab.doctor import examine
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.bundle import BundleWriter, WrittenBundle
from sdpalab.evidence.kernel_runs import JudgeRequest, KernelOutcome, KernelRun, judged_side_by_side
from sdpalab.evidence.preparing import JudgedKernel, judged_kernel
from sdpalab.evidence.signing import private_key
from sdpalab.evidence.user_source import user_files
from sdpalab.judge.same_code import LARGE_PROBLEMS
from sdpalab.judge.sandbox.guarded import fork_server
from sdpalab.kernels import registry
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import Problem
from warpsan import DEFAULT_NUMERICS
from warpsan import prepare as prepare_simulator
from warpsan.doctor import Check, Health

if TYPE_CHECKING:
    from sdpalab.run import GpuExecutor

__all__ = ["ReproObserver", "ReproResult", "repro"]


@dataclass(frozen=True)
class ReproResult:
    """The outcome of :func:`repro`.

    Attributes
    ----------
    attempts : tuple of KernelOutcome
        Outcome of every kernel that was tried, in order.
    skipped : mapping of str to str
        Kernels that were not tried, with reasons.
    unjudged : tuple of str
        Kernels that were not judged because of an interrupt.
    interrupted : bool
    bundle : WrittenBundle
        The verified bundle.
    seconds : float
        Wall-clock seconds.
    gpu : str
        Name of the GPU; empty for the simulator.
    """

    attempts: tuple[KernelOutcome, ...]
    skipped: Mapping[str, str]
    unjudged: tuple[str, ...]
    interrupted: bool
    bundle: WrittenBundle
    seconds: float
    gpu: str = ""

    @property
    def passed(self) -> bool:
        """Whether every kernel passed gate and judge."""
        return not self.interrupted and all(attempt.passed for attempt in self.attempts)

    @property
    def machine_failed(self) -> bool:
        """Whether the machine failed for every kernel that did not pass."""
        bad = [attempt for attempt in self.attempts if not attempt.passed]
        return bool(bad) and all(attempt.machine_failed for attempt in bad)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "passed": self.passed,
            "bundle": str(self.bundle.tarball),
            "report": str(self.bundle.report),
            "seconds": self.seconds,
            "skipped": dict(self.skipped),
            "unjudged": list(self.unjudged),
            "attempts": [attempt.to_dict() for attempt in self.attempts],
        }


class ReproObserver:
    """Progress of :func:`repro`; a subclass overrides the steps that it shows."""

    def preflight(self) -> None:
        """The machine is examined while the first kernels are built."""

    def examined(self, checks: Sequence[Check]) -> None:
        """The machine was examined."""

    def kernel(self, run: KernelRun) -> None:
        """A kernel is built and judged; iterating ``run`` yields its events."""

    def bundling(self) -> None:
        """The bundle is written and verified next."""


def repro(
    kernels: Sequence[str] = (),
    *,
    device: str = "auto",
    also_for: Sequence[Problem] | None = None,
    out: Path | str = Path("out"),
    case_seconds: float | None = None,
    numerics: str = DEFAULT_NUMERICS,
    include_dirs: Sequence[Path] = (),
    sign: Path | None = None,
    command: Sequence[str] = ("sdpalab.repro",),
    observer: ReproObserver | None = None,
) -> ReproResult:
    """Build, gate and judge kernels on the twelve cases and the probes, and write a bundle and a report.

    Parameters
    ----------
    kernels : sequence of str
        Registry names, or ``FILE.py[:NAME]``. Default: all shipped kernels.
    device : {"auto", "sim", "gpu"}
        As for :func:`sdpalab.judge.judge`.
    also_for : sequence of Problem, optional
        Further problems whose code is judged on small problems. Default: none; on a GPU the large timed shapes.
    out : Path or str
        Folder of the bundle and the report.
    case_seconds : float, optional
        Most seconds of one case, above 0. Default: 120; on a GPU 10.
    numerics : str
        Numerics of the simulator's tensor-core sums (:func:`warpsan.launch`).
    include_dirs : sequence of Path
        Folders for ``#include``, of users' kernels.
    sign : Path, optional
        An ed25519 private key, PEM or OpenSSH, with which the bundle is signed.
    command : sequence of str
        Command line for the bundle's manifest.
    observer : ReproObserver, optional
        Called at each step.

    Returns
    -------
    ReproResult
        Also after an interrupt, if a kernel was judged by then.

    Raises
    ------
    UserError
        If the kernel, device or GPU does not exist, or ``out`` is not writable.
    MachineError
        If this machine lacks a requirement of the job, or the bundle cannot be written.
    KeyboardInterrupt
        If interrupted before any kernel was judged.
    """
    start, watch = time.monotonic(), observer or ReproObserver()
    if device not in ("auto", "sim", "gpu"):
        raise UserError(f"device is auto, sim or gpu, not {device!r}")
    if case_seconds is not None and not 0 < case_seconds < float("inf"):
        raise UserError(f"case_seconds is a number of seconds above 0, not {case_seconds:g}")
    key = private_key(sign) if sign is not None else None
    asked = list(dict.fromkeys(kernels))
    gpu = _open_gpu() if device == "gpu" else None
    large = also_for if also_for is not None else LARGE_PROBLEMS if gpu else ()
    if gpu is None:
        prepare_simulator()  # compiled first, if needed, in another process
    skipped = {} if asked else {name: why for name in registry.KERNELS if (why := registry.needs(name))}
    with ExitStack() as processes:
        if len(asked) != 1:
            processes.enter_context(fork_server(torch=any(map(is_user_file, asked))))
        subjects = [
            judged_kernel(name, processes, gpu, include_dirs)
            for name in asked or registry.KERNELS
            if name not in skipped
        ]
        refused = {
            each.name: why for each in subjects if gpu and each.kernel and (why := each.kernel.why_not_on(gpu.arch))
        }
        if asked and refused:
            raise UserError(f"device gpu: {next(iter(refused.values()))}")
        subjects = [each for each in subjects if each.name not in refused]
        with BundleWriter(out, command=command) as bundle:
            request = JudgeRequest(device, gpu, large, bundle.arrays, case_seconds, numerics, include_dirs)
            attempts, left, interrupted = _judge(watch, subjects, request, bundle)
            if interrupted and not attempts:
                raise KeyboardInterrupt
            watch.bundling()
            written = bundle.write_verified(key)
    return ReproResult(
        tuple(attempts),
        skipped | refused,
        tuple(left),
        interrupted,
        written,
        time.monotonic() - start,
        gpu.device if gpu else "",
    )


def _open_gpu() -> GpuExecutor:
    """Open the GPU of the builds and the judgement; raises UserError if there is none."""
    from sdpalab.run import GpuExecutor, gpu_problem

    if problem := gpu_problem():
        raise UserError(f"device gpu: {problem}; device sim runs the PTX on the simulator")
    return GpuExecutor()


def _judge(
    watch: ReproObserver, subjects: Sequence[JudgedKernel], request: JudgeRequest, bundle: BundleWriter
) -> tuple[list[KernelOutcome], list[str], bool]:
    """Outcomes of judged kernels, which are in the bundle; names of the other kernels; and whether an interrupt ended
    judging."""
    attempts: list[KernelOutcome] = []
    left: list[str] = []
    interrupted = False
    with judged_side_by_side(subjects, request) as runs:
        watch.preflight()  # takes seconds, while the first kernels are built
        checks = examine()
        watch.examined(checks)
        missing = [check.name for check in checks if check.health is Health.FAIL]
        if missing:
            raise MachineError(f"this machine lacks what the job needs: {', '.join(missing)}; sdpalab doctor says more")
        for run in runs:
            if not interrupted or run.outcome().verdict:
                watch.kernel(run)
            outcome = run.outcome()
            interrupted |= outcome.interrupted
            if outcome.verdict or outcome.failure:
                attempts.append(outcome)
                _add(bundle, run.subject, outcome)
            else:
                left.append(run.subject.name)
    return attempts, left, interrupted


def _add(bundle: BundleWriter, subject: JudgedKernel, outcome: KernelOutcome) -> None:
    """Add the outcome of a kernel to the bundle."""
    kernel, verdict = subject.kernel, outcome.verdict
    bundle.add(
        subject.name,
        config=verdict.config if verdict else str(kernel.default_config) if kernel else "",
        idea=subject.idea,
        builds=outcome.builds,
        verdict=verdict,
        failure=outcome.failure,
        sources=user_files(subject.spec) if is_user_file(subject.spec) else None,
    )
