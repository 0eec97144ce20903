"""``sdpalab.prove``: judge kernels on this machine's GPU, sample large problems, time them, and keep the records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.store.certificate import why_not_exact
from sdpalab.evidence.store.choice import Choice, GpuPlatform, choose
from sdpalab.evidence.store.folders import records_folder
from sdpalab.evidence.store.lookup import forget
from sdpalab.evidence.store.record import SampledRecord, StoredRecord, check_writable, keep, sealed
from sdpalab.evidence.store.tuned import tuned_config
from sdpalab.inputs import TIMED_KINDS, make_inputs
from sdpalab.judge.cases import LEVELS, cases_for
from sdpalab.judge.same_code import cases_with_same_code
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels import equivalent
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.registry import SHIPPED, get, needs
from sdpalab.kernels.userfile import is_user_file
from sdpalab.packing import Packing
from sdpalab.problem import MISSION, Problem

if TYPE_CHECKING:
    from sdpalab.compile import Build
    from sdpalab.kernels.plan import Source
    from sdpalab.measure.session import MeasuredSession
    from sdpalab.run import GpuExecutor

__all__ = ["ProveAttempt", "ProveObserver", "ProveResult", "prove"]


@dataclass
class ProveAttempt:
    """Result of one kernel and configuration: the problems, the verdict, the sampled large problems, and the record."""

    kernel: Kernel
    config: Config
    problems: tuple[Problem, ...]
    verdict: Verdict | None = None
    failure: str = ""
    sampled: list[SampledRecord] = field(default_factory=list)
    record: Path | None = None

    @property
    def passed(self) -> bool:
        """True if judged PASSED without an error in a large problem."""
        return bool(self.verdict and self.verdict.passed) and not any(each.wrong for each in self.sampled)

    @property
    def machine_failed(self) -> bool:
        """Whether the missing verdict is due to the machine, and not to the kernel."""
        return self.verdict is not None and self.verdict.status is Status.INFRA_ERROR

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kernel": self.kernel.name,
            "status": self.verdict.status.value if self.verdict else "NOT JUDGED",
            "reason": self.verdict.reason if self.verdict else self.failure,
            "sampled": [each.to_dict() for each in self.sampled],
            "record": str(self.record) if self.record else None,
        }


@dataclass(frozen=True)
class ProveResult:
    """The outcome of :func:`prove`.

    Attributes
    ----------
    machine : GpuPlatform
    folder : Path
        Folder of the records.
    attempts : tuple of ProveAttempt
    times : tuple of Path
        Records of times, one for each problem that a kernel passed.
    timed : bool
        Whether every kernel with requested times has times on all kinds of inputs, or was left out as too slow.
    skipped : tuple of str
        Reasons why kernels were skipped.
    choices : mapping of Problem to Choice
        The op's current choice for each problem.
    """

    machine: GpuPlatform
    folder: Path
    attempts: tuple[ProveAttempt, ...]
    times: tuple[Path, ...]
    timed: bool
    skipped: tuple[str, ...]
    choices: dict[Problem, Choice]

    @property
    def passed(self) -> bool:
        """Whether all kernels passed, and all requested times were measured."""
        return self.timed and all(attempt.passed for attempt in self.attempts)

    @property
    def machine_failed(self) -> bool:
        """Whether the machine failed for every kernel that did not pass."""
        bad = [attempt for attempt in self.attempts if not attempt.passed]
        return bool(bad) and all(attempt.machine_failed for attempt in bad)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "machine": vars(self.machine),
            "folder": str(self.folder),
            "attempts": [attempt.to_dict() for attempt in self.attempts],
            "times": [str(path) for path in self.times],
            "skipped": list(self.skipped),
            "choices": [
                {
                    "problem": problem.to_dict(),
                    "kernel": choice.kernel.certificate.kernel if choice.kernel else None,
                    "reason": choice.reason,
                }
                for problem, choice in self.choices.items()
            ],
        }


class ProveObserver:
    """Progress of :func:`prove`; a subclass overrides the steps that it shows."""

    def begun(self, machine: GpuPlatform, folder: Path) -> None:
        """The GPU is open, and records can be kept in ``folder``."""

    @contextmanager
    def judging(self, kernel: str) -> Iterator[tuple[Callable[[str, int], None] | None, Callable[[Case], None] | None]]:
        """Context during which a kernel is judged: the judge's ``on_start`` and ``progress``."""
        yield None, None

    def judged(self, attempt: ProveAttempt) -> None:
        """A kernel has a verdict, or a failure with the reason."""

    def sampled(self, attempt: ProveAttempt, record: SampledRecord) -> None:
        """A large problem was launched, and its output was checked."""

    def not_sampled(self, attempt: ProveAttempt, problem: Problem, reason: str) -> None:
        """A large problem could not be launched."""

    def stored(self, path: Path) -> None:
        """A record was stored."""

    @contextmanager
    def timing(self, problem: Problem, inputs: str) -> Iterator[None]:
        """Context during which a problem is timed on a kind of inputs."""
        yield

    def timed(self, device: str, problem: Problem, inputs: str, session: MeasuredSession) -> None:
        """A session has ended."""

    def not_timed(self, problem: Problem) -> None:
        """No passed kernel supports the problem."""


def prove(
    kernels: Sequence[str] = (),
    problems: Sequence[Problem] = (MISSION,),
    *,
    time: bool = False,
    seconds: float = 10.0,
    level: str = "quick",
    seed: int = 0,
    observer: ProveObserver | None = None,
) -> ProveResult:
    """Judge and time kernels on this machine's GPU, and keep the records; the op runs a kernel if its records allow it.

    Parameters
    ----------
    kernels : sequence of str
        Shipped kernels. Default: all kernels for this GPU that are as exact as torch.
    problems : sequence of Problem
        Problems to judge and time.
    time : bool
        Whether passed kernels are timed beside torch, on normal inputs and on kinds that are slowest for some kernels
        (:data:`sdpalab.inputs.TIMED_KINDS`); without a time the op runs no kernel.
    seconds : float
        Most seconds of timing for one problem and kind of inputs.
    level : {"quick", "full"}
    seed : int
        Public seed of the judge's inputs, not negative.
    observer : ProveObserver, optional
        Called at each step.

    Returns
    -------
    ProveResult

    Raises
    ------
    UserError
        If there is no GPU, a kernel or the level is unknown, a named kernel does not support a problem or is less exact
        than torch, or no kernel supports any problem.
    MachineError
        If records cannot be kept, or the driver fails.
    """
    watch = observer or ProveObserver()
    if level not in LEVELS:
        raise UserError(f"level is {' or '.join(LEVELS)}, not {level!r}")
    if not problems:
        raise UserError("there is no problem to prove a kernel for")
    named = _named(kernels)
    executor, machine = _open()
    attempts, skipped = _attempts(named, problems, executor)
    watch.begun(machine, check_writable())
    for attempt in attempts:
        _judge(watch, attempt, executor, machine, level, seed)
    times, timed = _time(watch, attempts, problems, executor, machine, seconds) if time else ([], True)
    forget()
    choices = {problem: choose(problem, machine) for problem in problems}
    return ProveResult(
        machine, records_folder(), tuple(attempts), tuple(times), timed, tuple(dict.fromkeys(skipped)), choices
    )


def _named(names: Sequence[str]) -> list[Kernel]:
    """The named kernels; raises UserError for a kernel that the op would never run."""
    kernels = []
    for name in dict.fromkeys(names):
        if is_user_file(name):
            raise UserError(
                f"prove takes shipped kernels; judge your own on the GPU with: sdpalab judge {name} --device gpu"
            )
        kernel = get(name)
        reason = why_not_exact(name, str(kernel.default_config))
        if reason is not None:
            raise UserError(f"{reason}; judge it with: sdpalab judge {name} --device gpu")
        kernels.append(kernel)
    return kernels


def _open() -> tuple[GpuExecutor, GpuPlatform]:
    """Open this machine's GPU; raises UserError if there is none, or torch does not find it."""
    import torch

    from sdpalab.run import GpuExecutor, gpu_problem, torch_gpu
    from sdpalab.run.driver_version import driver_version

    if problem := gpu_problem():
        raise UserError(
            f"prove judges kernels on a GPU, and there is none here: {problem}; sdpalab judge has a simulator"
        )
    if not torch_gpu.available():
        raise UserError(
            "torch finds no GPU here, so scaled_dot_product_attention can run no kernel: install torch's CUDA build"
        )
    executor = GpuExecutor()
    return executor, GpuPlatform(executor.device, driver_version(), torch.__version__, torch_gpu.properties(0).sm_count)


def _attempts(
    named: Sequence[Kernel], problems: Sequence[Problem], executor: GpuExecutor
) -> tuple[list[ProveAttempt], list[str]]:
    """Each kernel with its supported problems, and the reasons why others are skipped.

    Raises
    ------
    UserError
        If a named kernel does not support a problem or the GPU, or no kernel supports any problem.
    """
    skipped = []
    chosen = list(named)
    if not named:
        tasks = {problem.task for problem in problems}
        for name in SHIPPED:
            why = needs(name)
            if why is None and get(name).task in tasks:
                why = why_not_exact(name, str(get(name).default_config))
                chosen += [get(name)] if why is None else []
            skipped += [why] if why else []
    attempts = []
    for kernel in chosen:
        refused = kernel.why_not_on(executor.arch)
        reasons = {problem: refused or kernel.why_not(problem) for problem in problems}
        wrong = list(dict.fromkeys(reason for reason in reasons.values() if reason))
        if wrong and named:
            raise UserError(wrong[0])
        skipped += wrong
        taken = tuple(problem for problem in problems if reasons[problem] is None)
        groups: dict[Config, list[Problem]] = {}
        for problem in taken:
            groups.setdefault(tuned_config(kernel, problem, executor.device), []).append(problem)
        attempts += [ProveAttempt(kernel, config, tuple(group)) for config, group in groups.items()]
    if not attempts:
        raise UserError(f"no kernel can be proven for these shapes on {executor.device}: {'; '.join(skipped)}")
    return attempts, skipped


def _judge(
    watch: ProveObserver,
    attempt: ProveAttempt,
    executor: GpuExecutor,
    machine: GpuPlatform,
    level: str,
    seed: int,
) -> None:
    """Judge a kernel on all its problems, and keep the result, passed or failed."""
    from sdpalab.judge import judge_candidate

    kernel, config = attempt.kernel, attempt.config
    small = small_ones(attempt.problems, kernel, config, machine.sms)
    large = [problem for problem, judged in small.items() if judged != problem]
    specs = [
        *cases_for(level, small.values(), seed=seed),
        *cases_with_same_code(kernel, config, large, sms=machine.sms).specs,
    ]
    try:
        with watch.judging(kernel.name) as (on_start, progress):
            attempt.verdict = judge_candidate(
                kernel.name,
                list({spec.name: spec for spec in specs}.values()),
                device="gpu",
                arch=executor.arch,
                config={name: str(value) for name, value in config.items()},
                level=level,
                seed=seed,
                progress=progress,
                on_start=on_start,
            )
    except UserError as error:
        attempt.failure = str(error)
    watch.judged(attempt)
    if attempt.verdict is None or attempt.machine_failed:
        return
    if attempt.verdict.passed:
        for problem in large:
            try:
                record = sample(kernel, config, problem, small[problem], executor)
            except MachineError as error:
                watch.not_sampled(attempt, problem, str(error))
            else:
                attempt.sampled.append(record)
                watch.sampled(attempt, record)
    attempt.record = keep(_record(attempt, attempt.verdict, executor, machine), kernel.name)
    watch.stored(attempt.record)


def small_ones(problems: Sequence[Problem], kernel: Kernel, config: Config, sms: int) -> dict[Problem, Problem]:
    """The judged problem for each problem: itself, or for a large one a small problem with the same code, if there is
    one."""
    judged_on = {}
    for problem in problems:
        large = problem.flops > equivalent.MOST_FLOPS
        other = equivalent.problem_with_same_code(kernel, config, problem, sms=sms).problem if large else None
        judged_on[problem] = other or problem
    return judged_on


def sample(kernel: Kernel, config: Config, problem: Problem, small: Problem, executor: GpuExecutor) -> SampledRecord:
    """Launch a large problem once and check rows of its output.

    Raises
    ------
    MachineError
        If the GPU has no memory for it, or fails.
    """
    from sdpalab.judge.rule.numerics import on_architecture
    from sdpalab.measure.outputs import Outputs
    from sdpalab.run import KernelFault

    seed = int.from_bytes(os.urandom(6), "little")
    inputs = make_inputs(problem, "normal", seed)
    packing = Packing(problem)
    outputs, numerics = Outputs(problem, inputs, seed), on_architecture(kernel.numerics_of(config), executor.arch)
    try:
        result = executor.run(kernel.launch_plan(problem, config, sms=executor.sms), packing.pack(inputs.arrays))
        damage = [*result.hazards, *(f"it wrote to its input {name}" for name in result.changed_inputs)]
        wrong = "; ".join(damage) or outputs.wrong(packing.unpack(result.outputs), numerics)
    except KernelFault as error:
        wrong = str(error)
    chosen = outputs.references.rows
    rows = problem.seq_q if chosen is None else len(chosen)
    return SampledRecord(problem=problem, small=small, rows=rows, seed=seed, wrong=wrong)


def _record(attempt: ProveAttempt, verdict: Verdict, executor: GpuExecutor, machine: GpuPlatform) -> StoredRecord:
    """The verdict as a record, with the records of all builds that it ran.

    Raises
    ------
    MachineError
        If a build of this process differs from the executed build, which was not kept.
    """
    from sdpalab.compile import build
    from sdpalab.evidence.built import built_module
    from sdpalab.evidence.records import AttemptRecord

    kernel = attempt.kernel
    builds: dict[str, tuple[Source, Build]] = {}
    for case in verdict.cases:
        for module in equivalent.modules_of(kernel.launch_plan(case.problem, attempt.config, sms=machine.sms)):
            built = build(module, executor.arch)
            builds[built.ptx_sha256] = module, built
    ran = {digest for case in verdict.cases for digest in case.run.get("ptx_sha256", ())}
    if not ran <= builds.keys():
        raise MachineError(
            f"the code of {kernel.name} that was judged differs from its build in this process: "
            "the build cache stored nothing"
        )
    return sealed(
        gpu=machine.gpu,
        driver=machine.driver,
        code={digest: built.code_sha256 for digest, (_, built) in builds.items()},
        sampled=tuple(attempt.sampled),
        attempt=AttemptRecord(
            kernel=kernel.name,
            config=verdict.config,
            idea=kernel.idea,
            builds=tuple(
                built_module(module, built).record(f"build/{number:02d}-{kernel.name}")
                for number, (module, built) in enumerate(builds.values())
            ),
            verdict=verdict,
        ),
    )


def _time(
    watch: ProveObserver,
    attempts: Sequence[ProveAttempt],
    problems: Sequence[Problem],
    executor: GpuExecutor,
    machine: GpuPlatform,
    seconds: float,
) -> tuple[list[Path], bool]:
    """Time the passed kernels beside torch by the eager clock, on each kind of inputs; one record per problem.

    Returns the paths, and whether every kernel has its times or was left out as too slow.
    """
    from sdpalab.evidence.store.measured import bench_record, session_result
    from sdpalab.evidence.store.timings import TORCH, codes_of
    from sdpalab.measure.benchmark import benchmark, cuda_device
    from sdpalab.measure.peers import peers_named
    from sdpalab.measure.samples import ClockKind
    from sdpalab.measure.session import MeasureStatus
    from sdpalab.measure.stopping import StoppingRule
    from sdpalab.measure.timing_gate import permit_by

    device, rule, peers = cuda_device(), StoppingRule(seconds=seconds), peers_named([TORCH])
    paths, good = [], True
    for problem in problems:
        passed = [each for each in attempts if each.passed and problem in each.problems]
        if not passed:
            watch.not_timed(problem)
            continue
        permits = []
        for each in passed:
            assert each.verdict is not None, "what passed has a verdict"
            verdicts, arch = {_name(each): each.verdict}, executor.arch
            permits.append(permit_by(each.kernel, each.config, [problem], verdicts, arch=arch, sms=machine.sms))
        pairs = [(permit.kernel, permit.config) for permit in permits]
        code = codes_of(pairs, problem, executor.arch, machine.sms)
        results = []
        for kind in TIMED_KINDS:
            with watch.timing(problem, kind):
                session = benchmark(
                    problem, peers, permits, device, clock=ClockKind.EAGER, rule=rule, executor=executor, kind=kind
                )
            watch.timed(device.name, problem, kind, session)
            results.append(session_result(problem, ClockKind.EAGER, kind, session, code))
            statuses = {session.of(permit.name).status for permit in permits}
            good &= statuses <= {MeasureStatus.MEASURED, MeasureStatus.LEFT_OUT}
        times = bench_record(machine.gpu, [_judged(each) for each in passed], results)
        paths.append(keep(sealed(gpu=machine.gpu, driver=machine.driver, bench=times), "times"))
        watch.stored(paths[-1])
    return paths, good


def _name(attempt: ProveAttempt) -> str:
    """The record of an attempt, as ``<gpu>/<file>``."""
    assert attempt.record is not None, "what passed is kept"
    return f"{attempt.record.parent.name}/{attempt.record.name}"


def _judged(attempt: ProveAttempt) -> dict[str, Any]:
    """A kernel's verdict in a record of times, in the form of ``bench`` for a certified kernel."""
    return {
        "kernel": attempt.kernel.name,
        "config": str(attempt.config),
        "passed": True,
        "left_out": {},
        "proven_by": {problem.label: _name(attempt) for problem in attempt.problems},
    }
