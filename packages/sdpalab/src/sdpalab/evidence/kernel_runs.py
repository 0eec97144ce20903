"""Building and judging of several kernels concurrently, one thread per kernel, with their events in kernel order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from sdpalab.errors import UserError
from sdpalab.evidence.preparing import JudgedKernel, PreparedKernel, prepare
from sdpalab.judge.interrupt import SLEEP_SECONDS, Interrupt, wait_for
from sdpalab.judge.small_cases import hidden_seed
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import Problem

if TYPE_CHECKING:
    from sdpalab.compile.building import BuiltStep
    from sdpalab.evidence import BuiltModule
    from sdpalab.judge.options import Store
    from sdpalab.run import GpuExecutor

__all__ = ["CaseStarted", "Event", "JudgeRequest", "KernelOutcome", "KernelRun", "judged_side_by_side"]


@dataclass(frozen=True)
class CaseStarted:
    """A case began, at a time on the clock of ``time.monotonic``; ``total`` is the number of all cases."""

    name: str
    total: int
    since: float


Event: TypeAlias = PreparedKernel | CaseStarted | Case
"""Event of a kernel: it is built, then its cases begin and end."""


Put: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True)
class KernelOutcome:
    """Outcome of one kernel.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    steps : tuple of BuiltStep
        Builds and gates before the judgement.
    verdict : Verdict or None
        None without any case: judging was interrupted, or ``failure`` is the reason.
    builds : tuple of BuiltModule
        All builds that its cases ran.
    failure : str
        Reason why it could not be built or judged.
    seconds : float
        Seconds to build and judge it, concurrently with other kernels.
    interrupted : bool
        Whether judging was ended early; a verdict then has the finished cases.
    """

    kernel: str
    steps: tuple[BuiltStep, ...] = ()
    verdict: Verdict | None = None
    builds: tuple[BuiltModule, ...] = ()
    failure: str = ""
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def gate_ok(self) -> bool:
        """Whether every build keeps the kernel's static limits."""
        return all(step.gate.ok for step in self.steps)

    @property
    def passed(self) -> bool:
        """Whether gate and judge passed."""
        return self.gate_ok and self.verdict is not None and self.verdict.passed

    @property
    def machine_failed(self) -> bool:
        """Whether the missing verdict is due to the machine, and not to the kernel."""
        return self.verdict is not None and self.verdict.status is Status.INFRA_ERROR

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kernel": self.kernel,
            "passed": self.passed,
            "failure": self.failure,
            "seconds": self.seconds,
            "builds": [step.to_dict() for step in self.steps],
            "verdict": self.verdict.to_dict() if self.verdict else None,
        }


@dataclass(frozen=True)
class JudgeRequest:
    """Settings of the judgement of all kernels.

    Attributes
    ----------
    device : str
        As for :func:`sdpalab.judge.judge`.
    gpu : GpuExecutor or None
        The GPU of device ``gpu``.
    large : sequence of Problem
        As for :func:`sdpalab.evidence.preparing.prepare`.
    store : Store
        Receives the arrays of all cases, from several threads.
    case_seconds : float or None
        Most seconds of one case.
    numerics : str
        Numerics of the simulator's tensor-core sums.
    include_dirs : sequence of Path
        Further folders for ``#include``, of users' kernels.
    """

    device: str
    gpu: GpuExecutor | None
    large: Sequence[Problem]
    store: Store
    case_seconds: float | None
    numerics: str
    include_dirs: Sequence[Path]


class KernelRun:
    """One kernel while it is judged; iteration yields its events as they occur, and then the outcome is available."""

    def __init__(
        self, subject: JudgedKernel, work: Callable[[JudgedKernel, Put], KernelOutcome], pool: Executor
    ) -> None:
        self.subject = subject
        self._events: SimpleQueue[Event | None] = SimpleQueue()

        def until_none() -> KernelOutcome:
            try:
                return work(subject, self._events.put)
            finally:
                self._events.put(None)

        self._outcome = pool.submit(until_none)

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                event = self._events.get(timeout=SLEEP_SECONDS)
            except Empty:
                continue
            if event is None:
                return
            yield event

    def outcome(self) -> KernelOutcome:
        """The outcome, once available; raises the exception of the build or the judgement."""
        wait_for(self._outcome)
        return self._outcome.result()


@contextmanager
def judged_side_by_side(subjects: Sequence[JudgedKernel], request: JudgeRequest) -> Iterator[list[KernelRun]]:
    """Build and judge kernels in order: on the simulator one per core concurrently; on a GPU one at a time, while the
    next is built.

    Ctrl-C or an exception in this block ends all of them early.
    """
    from warpsan.host import usable_cpus

    cpus = usable_cpus()
    threads = 2 if request.gpu else min(max(1, len(subjects)), cpus)
    turn, interrupt = threading.Semaphore(1 if request.gpu else threads), Interrupt()
    workers = None if request.gpu or 2 * threads <= cpus else 1
    seeds: dict[str, int] = {}

    def work(subject: JudgedKernel, put: Put) -> KernelOutcome:
        return _judged(subject, request, put, turn=turn, interrupt=interrupt, workers=workers, seeds=seeds)

    with interrupt.installed(), ThreadPoolExecutor(threads) as pool:
        try:
            yield [KernelRun(subject, work, pool) for subject in subjects]
        except BaseException:
            interrupt.now()
            raise


def _judged(
    subject: JudgedKernel,
    request: JudgeRequest,
    put: Put,
    *,
    turn: threading.Semaphore,
    interrupt: Interrupt,
    workers: int | None,
    seeds: dict[str, int],
) -> KernelOutcome:
    """Build and judge one kernel.

    The lab's own kernels share the hidden ``seeds`` of a run by case name, and so inputs and references. A user's
    kernel has its own seeds, drawn when it is loaded: the inputs of earlier kernels do not reveal them.
    """
    from sdpalab.evidence import built_module
    from sdpalab.evidence.executed import ExecutedPlans
    from sdpalab.judge.sandbox.workshop import workshop_for
    from sdpalab.judge.session import JudgingInterrupted, judge_candidate

    start = time.monotonic()
    prepared: PreparedKernel | None = None
    verdict, failure, interrupted = None, "", False
    executed = ExecutedPlans()
    try:
        if interrupt.happened:
            return KernelOutcome(subject.name, interrupted=True)
        prepared = prepare(subject, request.gpu, request.large)
        put(prepared)
        own = is_user_file(subject.spec)
        specs = [
            spec if own or spec.seed is not None else replace(spec, seed=seeds.setdefault(spec.name, hidden_seed()))
            for spec in prepared.specs
        ]
        with turn:
            verdict = judge_candidate(
                subject.spec,
                specs,
                device=request.device,
                arch=prepared.arch,
                store=request.store,
                progress=put,
                on_start=lambda name, total: put(CaseStarted(name, total, time.monotonic())),
                on_plan=executed,
                workers=workers,
                timeout=request.case_seconds,
                numerics=request.numerics,
                include_dirs=request.include_dirs if own else (),
                interrupt=interrupt,
                coverage=True,
            )
    except JudgingInterrupted as stop:
        verdict, interrupted = stop.verdict, True
    except KeyboardInterrupt:  # before its first case was finished
        interrupted = True
    except UserError as error:
        failure = str(error)
    steps = prepared.steps if prepared else ()
    builds = tuple(built_module(step.module, step.build, step.resources, step.gate) for step in steps)
    if verdict:
        with workshop_for(subject.spec, request.include_dirs if is_user_file(subject.spec) else ()) as workshop:
            builds = executed.builds(verdict, builds, workshop=workshop)
    return KernelOutcome(subject.name, steps, verdict, builds, failure, time.monotonic() - start, interrupted)
