"""Judging one candidate: what is asked, and which processes answer it."""

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
"""Most seconds of wall clock for one case, both runs together."""
GPU_CASE_SECONDS = 10.0
"""The same on a GPU, builds apart: a kernel that takes longer there waits for what never comes, and nothing but the end
of its process ends it."""


def judge(
    kernel: Candidate,
    problems: Iterable[Problem] | None = None,
    *,
    device: str = "auto",
    level: str = "quick",
    seed: int = 0,
    claims: bool = True,
) -> Verdict:
    """Judge a kernel: run it in a process of its own and hold its outputs against float64.

    Parameters
    ----------
    kernel : str, CudaKernel or callable
        A registry name, ``FILE.py:NAME`` or ``FILE.py``, a CudaKernel, or ``fn(q, k, v, *, scale, causal) -> out`` on
        torch CPU tensors [B, H, S, D] of the problem's dtype, with further parameters for what else it computes
        (:data:`sdpalab.judge.parameters.PARAMETERS`).
    problems : iterable of Problem, optional
        What to judge it on. Default: the twelve cases, and one with a hidden seed for each of their shapes. Probes,
        edges and relations come on top (:mod:`sdpalab.judge.cases`).
    device : {"auto", "sim", "cpu", "gpu"}
        ``sim``: the simulator, for kernels that the lab builds; ``gpu``: the GPU, for these; ``cpu``: torch on the CPU,
        for callables; ``auto``: the simulator or the CPU, so that a verdict does not depend on the machine.
    level : {"quick", "full"}
        How much is judged: in a minute, or in many.
    seed : int
        Public seed of the inputs for ``problems``; the twelve cases have their own.
    claims : bool
        Whether the kernel is also judged on small problems that nobody asked for and that it claims to compute, such as
        with a causal mask (:mod:`sdpalab.judge.claims`). :attr:`Verdict.covers` says what was judged.

    Returns
    -------
    Verdict
        A kernel that crashes, hangs or cheats has a status there; it raises nothing here.

    Raises
    ------
    UserError
        If the request is invalid: no such kernel, a file that does not load, a problem that the kernel does not
        support, source that does not compile, no such device or level.
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
        What to build for, and what the simulator is to be, such as ``sm_89``. Default: what the GPU is, or what the
        kernel is built for by default (:attr:`sdpalab.kernels.kernel.Kernel.default_arch`).
    sms : int, optional
        Multiprocessors of the GPU that the kernel's plans are for. Default: those of the GPU, or on the simulator of
        the one that stands for the architecture (:func:`warpsan.gpus.default_gpu`).
    config : mapping of str to str, optional
        Knobs that differ from the kernel's default configuration.
    store : Store, optional
        Given each case's q, k, v, o (and o_second, if it differs) and yardstick.
    progress : callable, optional
        Called with each finished Case, one at a time, in the order in which they finish.
    on_start : callable, optional
        Called with the name of each case that begins, one at a time, and the number of all cases that suit the
        candidate.
    on_plan : callable, optional
        Called, one at a time, with a problem, the launch plan that is executed for it, and the architecture.
    workers : int, optional
        Sets of the candidate's processes at a time. Default: 1, and a second one on several CPUs as soon as the first
        cases show that the others will take long (:mod:`sdpalab.judge.pace`).
    timeout : float, optional
        Seconds that one case may take. Default: 120, and 10 on a GPU, where builds are not counted. A kernel that hangs
        twice is judged no further.
    max_steps : int, optional
        Steps of one warp on the simulator, above which it counts as an endless loop (:func:`warpsan.launch`).
    numerics : str
        Rule of the simulator's tensor-core sums (:func:`warpsan.launch`).
    until_failure : bool
        Stop at the first case that fails: the verdict then has the cases that were finished by then.
    algebra : bool
        Whether a kernel on the simulator is also run in exact arithmetic (:mod:`sdpalab.judge.algebra`), on small
        versions of the first problem.
    include_dirs : sequence of Path
        Folders for ``#include`` beside those of the kernel.
    interrupt : Interrupt, optional
        What ends this judgement early, heard by the caller. Default: one of its own, heard while cases run.
    secret : bytes, optional
        What hidden seeds are drawn from. Default: bytes of the operating system.
    recording : Recording, optional
        Keeps what the candidate's processes answer, for :func:`judge_recorded`.

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
    """The verdict of :func:`judge_candidate` with one worker, from the answers that it recorded: nothing is run.

    Parameters
    ----------
    answers : sequence of dict
        Those of a :class:`~sdpalab.judge.recorded.Recording`, from a worker that need not be honest.
    about : mapping
        The candidate's description from :func:`described`, with one entry of ``rejects`` for each of ``specs``.
    specs, secret, device, level, seed, until_failure, algebra
        As they were given there.

    Raises
    ------
    UserError, MachineError
        As there; MachineError also if the answers are malformed, or those to other cases.
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
    """A candidate's description from a process of this machine, which runs it on none of ``problems``.

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
