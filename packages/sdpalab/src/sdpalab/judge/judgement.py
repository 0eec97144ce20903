"""One running judgement: distributes the cases over sets of a candidate's processes, and assembles the verdict."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.algebra.outcome import AlgebraCase
from sdpalab.judge.algebra.stage import algebra_case, algebra_problems, drawn
from sdpalab.judge.case_judge import CaseJudge, RunOfCase
from sdpalab.judge.interrupt import Interrupt, wait_for
from sdpalab.judge.options import JudgeOptions
from sdpalab.judge.pace import BackgroundJudge, Pace
from sdpalab.judge.reaching import Reaching
from sdpalab.judge.sandbox.executed import Executed
from sdpalab.judge.sandbox.isolation import CandidateDied, CandidateProcesses
from sdpalab.judge.sandbox.plans import SentPlan
from sdpalab.judge.selection import suitable_cases
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.judge.unjudged import EntryCode
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.problem import Problem
from warpsan.host import usable_cpus

__all__ = ["JudgeRun", "JudgingInterrupted", "Start"]

_MOST_HANGS = 2
"""Hanging cases after which a kernel is judged no further: each costs ten seconds of GPU time, or two minutes of
simulator time."""


Start = Callable[[tuple[Problem, ...], JudgeOptions], CandidateProcesses]
"""Starts a candidate's processes for some problems."""


class JudgingInterrupted(KeyboardInterrupt):
    """Judging was interrupted from the keyboard: ``verdict`` has the finished cases, at least one."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def _declared(about: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a candidate's description that its cases depend on, and that must be the same in every process."""
    return {name: about.get(name) for name in ("name", "kind", "config", "lse", "numerics", "features")}


def _import_torch() -> None:
    """Import torch; a failure is reported later, where torch is used."""
    with contextlib.suppress(Exception):
        importlib.import_module("torch")


class JudgeRun:
    """State that the threads of one judgement share."""

    def __init__(self, processes: Start, specs: Sequence[CaseSpec], options: JudgeOptions) -> None:
        self._processes, self._specs, self._options = processes, list(specs), options
        self._interrupt = options.interrupt or Interrupt()
        algebraic = tuple(algebra_problems(specs[0].problem)) if options.algebra and not options.gpu else ()
        self._algebraic, self._algebra = iter(algebraic), list[AlgebraCase]()
        self._live: list[CandidateProcesses] = []
        self._hangs = 0
        self._abandoned = self._interrupted = False
        self._cases: dict[int, Case] = {}
        self._lock = threading.Lock()
        self._queue: Iterator[int] = iter(())
        self._pace: Pace | None = None
        self._alone = False
        """Whether one set of processes has all cores, so that one launch on the simulator may use them."""
        self._declared: dict[str, Any] | None = None
        self._executed, self._code = Executed(), tuple[EntryCode, ...]()

    def run(self) -> Verdict:
        """Judge all cases and assemble the verdict."""
        workers = self._options.workers
        # The yardstick needs torch, whose import takes seconds; the candidate's processes start meanwhile.
        threading.Thread(target=_import_torch, daemon=True).start()
        self._alone = workers is None
        first = self._worker()
        try:
            about = first.about
            self._declared = _declared(about)
            judge = CaseJudge(suitable_cases(self._specs, about, self._options.device), about, self._options)
            self._specs = judge.specs
            self._queue = iter(range(len(self._specs)))
            sets = min(workers or 1, len(self._specs))
            installed = contextlib.nullcontext() if self._options.interrupt else self._interrupt.installed()
            with installed, self._interrupt.on_interrupt(self._stop), ThreadPoolExecutor(max(sets, 2)) as pool:
                servers = [pool.submit(self._serve, judge, worker) for worker in (first, *[None] * (sets - 1))]
                if workers is None and usable_cpus() > 1:
                    self._pace = Pace(len(self._specs), partial(self._start_another, judge, pool, servers))
                try:
                    for server in servers:  # which may add another
                        wait_for(server)
                        server.result()
                    if self._options.coverage and self._verdict(about).passed and about["kind"] == "cuda":
                        self._reach_code(judge)
                except BaseException:
                    self._abandon()
                    raise
        finally:
            for worker in self._live:
                worker.close()
        if self._interrupted and not self._cases:
            raise KeyboardInterrupt
        verdict = self._verdict(about)
        if self._interrupted:
            raise JudgingInterrupted(verdict)
        if verdict.cases[0].status is Status.BUILD_FAILED:
            raise UserError(verdict.cases[0].reason)
        return verdict

    def _verdict(self, about: Mapping[str, Any]) -> Verdict:
        cases = tuple(self._cases[n] for n in sorted(self._cases))
        unjudged = tuple(spec.name for n, spec in enumerate(self._specs) if n not in self._cases)
        algebra = tuple(sorted(self._algebra, key=lambda each: each.name))
        about_run = about["name"], about["config"], about["device"], self._options.level, self._options.seed
        return Verdict(*about_run, cases, unjudged, algebra, self._code)

    def _worker(self) -> CandidateProcesses:
        problems = tuple(spec.problem for spec in self._specs)
        worker = self._processes(problems, replace(self._options, on_plan=self._options.on_plan and self._planned))
        with self._lock:
            self._live.append(worker)
            worker.executed = self._executed
            worker.alone = self._alone
            if self._abandoned:
                worker.kill()
        if self._declared not in (None, declared := _declared(worker.about)):
            worker.close()
            raise UserError(f"the candidate declares {declared} in this process, and {self._declared} in the first")
        return worker

    def _start_another(self, judge: CaseJudge, pool: ThreadPoolExecutor, servers: list[Future[None]]) -> None:
        """Start a second set of processes, which shares the cores with the first; called with the lock held."""
        self._alone = False
        for worker in self._live:
            worker.alone = False
        servers.append(pool.submit(self._serve, judge, None))

    def _abandon(self) -> None:
        """Stop early: start no further case, and wait for no worker."""
        with self._lock:
            self._abandoned = True
            self._queue = iter(())
            for worker in self._live:
                worker.kill()

    def _stop(self) -> None:
        """Stop early on Ctrl-C."""
        self._interrupted = True
        self._abandon()

    def _serve(self, judge: CaseJudge, worker: CandidateProcesses | None) -> None:
        """Take cases off the queue until it is empty; a worker that died is replaced.

        An output is judged while the candidate's processes compute the next one.
        """
        with BackgroundJudge() as background:
            try:
                while (n := self._next()) is not None:
                    case: Case | None = None
                    try:
                        worker = worker or self._worker()
                        run = judge.run(n, worker)
                        self._add_code(run.reply.get("code", ()))
                        if run.failed or self._options.until_failure or self._specs[n].relation:
                            case = judge.case(run, worker)
                    except CandidateDied as death:
                        assert worker is not None
                        self._ended(worker)
                        worker = None
                        case = judge.failed(n, death.status, death.reason)
                    except MachineError as error:
                        case = judge.failed(n, Status.INFRA_ERROR, str(error))
                    except UserError as error:
                        # It loaded before: a candidate that does not load again is broken, while the request is valid.
                        case = judge.failed(n, Status.CRASHED, str(error))
                    if case is None:
                        background.submit(partial(self._judged, judge, run))
                    else:
                        self._finish(n, case)
                if worker is not None and worker.about["kind"] == "cuda":
                    self._run_in_ring(judge, worker)
            except BaseException:
                if worker is not None:
                    self._ended(worker)
                raise

    def _add_code(self, stated: Sequence[Mapping[str, Any]]) -> None:
        """Keep the code that a callable's kernels executed: of each, the statement with the most executed blocks."""
        with self._lock:
            known = {each.entry: each for each in self._code}
            for each in map(EntryCode.from_dict, stated):
                if each.entry not in known or known[each.entry].executed < each.executed:
                    known[each.entry] = each
            self._code = tuple(known.values())

    def _ended(self, worker: CandidateProcesses) -> None:
        """End a worker that is unusable."""
        worker.close()
        with self._lock:
            self._live.remove(worker)

    def _reach_code(self, judge: CaseJudge) -> None:
        """List the code that the passing cases did not execute, and judge cases that reach more of it."""
        worker = self._live[0] if self._live else self._worker()
        stage = Reaching(self._executed, worker)
        try:
            stage.look()
            specs = stage.cases(self._specs[0].problem, judge.hidden_length())
            for spec in specs:
                n = judge.add(spec)
                if self._options.on_start is not None:
                    self._options.on_start(spec.name, len(judge.specs))
                run = judge.run(n, worker)
                self._finish(n, judge.case(run))
            if specs:
                stage.look()
        except CandidateDied as death:
            self._ended(worker)
            if len(judge.specs) > len(self._cases):
                self._finish(len(judge.specs) - 1, judge.failed(len(judge.specs) - 1, death.status, death.reason))
        self._code = stage.record([case.problem for case in self._cases.values()])

    def _judged(self, judge: CaseJudge, run: RunOfCase) -> None:
        """Judge the outputs of a case."""
        try:
            case = judge.case(run)
        except MachineError as error:
            case = judge.failed(run.number, Status.INFRA_ERROR, str(error))
        self._finish(run.number, case)

    def _finish(self, n: int, case: Case) -> None:
        """Add a case to the verdict; end the judgement if this case requires it."""
        with self._lock:
            if self._abandoned:
                return  # a killed case is not recorded
            self._cases[n] = case
            self._hangs += case.status is Status.TIMED_OUT
            unusable = n == 0 and case.status is Status.BUILD_FAILED  # the request is rejected for it at the end
            if (self._options.until_failure and not case.passed) or self._hangs >= _MOST_HANGS or unusable:
                self._queue = iter(())
            if self._options.progress:
                self._options.progress(case)

    def _run_in_ring(self, judge: CaseJudge, worker: CandidateProcesses) -> None:
        """Run the problems of the algebraic stage, all on the first worker without further cases."""
        while True:
            with self._lock:
                failed = self._options.until_failure and any(not case.passed for case in self._cases.values())
                problem = None if failed or self._abandoned else next(self._algebraic, None)
            if problem is None:
                return
            died = False
            try:
                reply, outputs = worker.run_in_ring(problem, drawn(problem))
            except CandidateDied as death:
                died, reply, outputs = True, {"status": death.status.value, "reason": death.reason}, {}
            case = algebra_case(problem, reply, outputs, judge.keep, config=worker.about["algebraic"])
            with self._lock:
                if not self._abandoned:
                    self._algebra.append(case)
            if died:
                return

    def _next(self) -> int | None:
        with self._lock:
            n = next(self._queue, None)
            if n is not None and self._pace is not None:
                self._pace.begin()
            if n is not None and self._options.on_start is not None:
                self._options.on_start(self._specs[n].name, len(self._specs))
            return n

    def _planned(self, problem: Problem, plan: SentPlan, arch: str) -> None:
        assert self._options.on_plan is not None
        with self._lock:
            self._options.on_plan(problem, plan, arch)
