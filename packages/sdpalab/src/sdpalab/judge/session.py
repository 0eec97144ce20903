"""Judging one candidate: the request, and the processes that run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.judge.algebra.stage import algebra_problems
from sdpalab.judge.cases import CaseSpec, cases_for
from sdpalab.judge.interrupt import Interrupt
from sdpalab.judge.judgement import JudgeRun, JudgingInterrupted, NoCaseSuits, Store
from sdpalab.judge.recorded import RecordedRuns, Recording
from sdpalab.judge.sandbox.candidate import Candidate, prepare
from sdpalab.judge.sandbox.isolation import CandidateProcesses
from sdpalab.judge.sandbox.plans import SentPlan
from sdpalab.judge.verdict import Case, Verdict
from sdpalab.problem import Problem
from sdpalab.run import gpu_problem
from warpsan import DEFAULT_NUMERICS

__all__ = [
    "CASE_SECONDS",
    "DEVICES",
    "GPU_CASE_SECONDS",
    "JudgingInterrupted",
    "NoCaseSuits",
    "Store",
    "described",
    "judge",
    "judge_candidate",
    "judge_recorded",
]

DEVICES = ("auto", "sim", "cpu", "gpu")
CASE_SECONDS = 120.0
"""Most wall-clock seconds of one case, both runs together."""
GPU_CASE_SECONDS = 10.0
"""Most seconds of one case on a GPU, without builds; a kernel that runs longer hangs, and only the end of its process
stops it."""


def judge(
    kernel: Candidate,
    problems: Iterable[Problem] | None = None,
    *,
    device: str = "auto",
    level: str = "quick",
    seed: int = 0,
    claims: bool = True,
) -> Verdict:
    """Judge a kernel: run it in a separate process and compare its outputs with float64.

    Parameters
    ----------
    kernel : str, CudaKernel or callable
        A registry name, ``FILE.py:NAME`` or ``FILE.py``, a CudaKernel, or ``fn(q, k, v, *, scale, causal) -> out`` on
        torch CPU tensors [B, H, S, D] of the problem's dtype, with further parameters for further features
        (:data:`sdpalab.judge.parameters.PARAMETERS`).
    problems : iterable of Problem, optional
        Problems to judge. Default: the twelve cases, and one with a hidden seed for each of their shapes. Probes, edges
        and relations are added (:mod:`sdpalab.judge.cases`).
    device : {"auto", "sim", "cpu", "gpu"}
        ``sim``: the simulator, for kernels that the lab builds; ``gpu``: the GPU, for these; ``cpu``: torch on the CPU,
        for callables; ``auto``: the simulator or the CPU, so that a verdict does not depend on the machine.
    level : {"quick", "full"}
        ``quick`` takes about a minute, ``full`` many minutes.
    seed : int
        Public seed of the inputs for ``problems``; the twelve cases have their own.
    claims : bool
        Whether the kernel is also judged on small problems beyond the request that it claims to support, for example
        with a causal mask (:mod:`sdpalab.judge.claims`). :attr:`Verdict.covers` lists the judged features.

    Returns
    -------
    Verdict
        A kernel that crashes, hangs or cheats gets a status; it raises no exception here.

    Raises
    ------
    UserError
        If the request is invalid: an unknown kernel, a file that does not load, an unsupported problem, source that
        does not compile, an unknown device or level.
    MachineError
        If no worker process can be started.
    """
    specs = cases_for(level, problems, seed=seed, claims=claims)
    return judge_candidate(kernel, specs, device=device, level=level, seed=seed)


def judge_candidate(
    candidate: Candidate,
    specs: Sequence[CaseSpec],
    *,
    device: str = "auto",
    arch: str | None = None,
    sms: int | None = None,
    config: Mapping[str, str] | None = None,
    level: str = "quick",
    seed: int = 0,
    store: Store | None = None,
    progress: Callable[[Case], None] | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_plan: Callable[[Problem, SentPlan, str], None] | None = None,
    workers: int | None = None,
    timeout: float | None = None,
    max_steps: int | None = None,
    numerics: str = DEFAULT_NUMERICS,
    until_failure: bool = False,
    algebra: bool = True,
    include_dirs: Sequence[Path] = (),
    interrupt: Interrupt | None = None,
    secret: bytes | None = None,
    recording: Recording | None = None,
) -> Verdict:
    """:func:`judge` with every option: the cases, the architecture, knobs, the store of arrays, limits and callbacks.

    Parameters
    ----------
    candidate, device, level, seed
        As for :func:`judge`; ``level`` and ``seed`` are only recorded.
    specs : sequence of CaseSpec
        See :mod:`sdpalab.judge.cases`.
    arch : str, optional
        Target architecture of the build and of the simulator, such as ``sm_89``. Default: that of the GPU, or the
        kernel's default architecture (:attr:`sdpalab.kernels.kernel.Kernel.default_arch`).
    sms : int, optional
        Multiprocessors of the GPU that the kernel's plans are for. Default: those of the GPU, or on the simulator those
        of the default GPU of the architecture (:func:`warpsan.gpus.default_gpu`).
    config : mapping of str to str, optional
        Knobs that differ from the kernel's default configuration.
    store : Store, optional
        Receives each case's q, k, v, o (and o_second, if it differs) and yardstick.
    progress : callable, optional
        Called with each finished Case, one at a time, in the order in which they finish.
    on_start : callable, optional
        Called at the start of each case, one at a time, with its name and the number of all cases for the candidate.
    on_plan : callable, optional
        Called, one at a time, with a problem, its launch plan, and the architecture.
    workers : int, optional
        Concurrent sets of the candidate's processes. Default: 1, and a second set on several CPUs if the first cases
        show that the others take long (:mod:`sdpalab.judge.pace`).
    timeout : float, optional
        Most seconds of one case. Default: 120, and 10 on a GPU without builds. A kernel that hangs twice is judged no
        further.
    max_steps : int, optional
        Most steps of one warp on the simulator; a warp with more counts as an endless loop (:func:`warpsan.launch`).
    numerics : str
        Numerics of the simulator's tensor-core sums (:func:`warpsan.launch`).
    until_failure : bool
        Stop at the first case that fails; the verdict has the cases finished by then.
    algebra : bool
        Whether a kernel on the simulator is also run in exact arithmetic (:mod:`sdpalab.judge.algebra`), on small
        versions of the first problem.
    include_dirs : sequence of Path
        Folders for ``#include`` beside those of the kernel.
    interrupt : Interrupt, optional
        Ends this judgement early; the caller installs it. Default: a new one, installed while cases run.
    secret : bytes, optional
        Source of the hidden seeds. Default: random bytes of the operating system.
    recording : Recording, optional
        Records the answers of the candidate's processes for :func:`judge_recorded`.

    Raises
    ------
    JudgingInterrupted
        On Ctrl-C, if a case was finished: with the verdict so far.
    """
    if not specs:
        raise UserError("there is no problem to judge")
    if device not in DEVICES:
        raise UserError(f"device must be one of {', '.join(DEVICES)}, not {device!r}")
    if device == "gpu" and (reason := gpu_problem()):
        raise UserError(f"{reason}; device sim runs the PTX on the simulator")
    candidate_spec, gpu = prepare(candidate), device == "gpu"
    timeout = timeout or (GPU_CASE_SECONDS if gpu else CASE_SECONDS)
    processes = partial(
        CandidateProcesses,
        candidate_spec,
        arch=arch,
        sms=sms,
        config=config,
        timeout=timeout,
        gpu=gpu,
        max_steps=max_steps,
        numerics=numerics,
        include_dirs=include_dirs,
    )
    algebraic = _algebraic(specs, algebra, gpu)
    started = recording.of(processes) if recording else processes
    session = JudgeRun(started, specs, store, progress, on_start, on_plan, until_failure, algebraic, interrupt, secret)
    return session.run(device, level, seed, workers)


def judge_recorded(
    answers: Sequence[Any],
    about: Mapping[str, Any],
    specs: Sequence[CaseSpec],
    *,
    secret: bytes,
    device: str = "auto",
    level: str = "quick",
    seed: int = 0,
    until_failure: bool = False,
    algebra: bool = True,
) -> Verdict:
    """The verdict of :func:`judge_candidate` with one worker, from recorded answers; the kernel is not run.

    Parameters
    ----------
    answers : sequence of dict
        Answers of a :class:`~sdpalab.judge.recorded.Recording` from an untrusted worker.
    about : mapping
        The candidate's description from :func:`described`, with one entry of ``rejects`` for each of ``specs``.
    specs, secret, device, level, seed, until_failure, algebra
        As for :func:`judge_candidate`.

    Raises
    ------
    UserError, MachineError
        As :func:`judge_candidate`; MachineError also if the answers are malformed or belong to other cases.
    """
    algebraic = _algebraic(specs, algebra, device == "gpu")
    started = partial(RecordedRuns(answers, about).processes, gpu=device == "gpu")
    session = JudgeRun(started, specs, None, None, None, None, until_failure, algebraic, None, secret)
    return session.run(device, level, seed, 1)


def described(
    candidate: Candidate,
    problems: Sequence[Problem],
    *,
    arch: str | None = None,
    sms: int | None = None,
    config: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """A candidate's description from a process of this machine, which loads it without running ``problems``.

    Raises
    ------
    UserError, MachineError
        As :class:`~sdpalab.judge.sandbox.isolation.CandidateProcesses`.
    """
    options: dict[str, Any] = {"arch": arch, "sms": sms, "config": config, "timeout": CASE_SECONDS}
    with closing(CandidateProcesses(prepare(candidate), tuple(problems), **options)) as processes:
        return processes.about


def _algebraic(specs: Sequence[CaseSpec], algebra: bool, gpu: bool) -> tuple[Problem, ...]:
    return tuple(algebra_problems(specs[0].problem)) if algebra and not gpu else ()
