"""``sdpalab.tune``: search for a kernel's fastest correct configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.jobs import Executor, executor_named
from sdpalab.jobs.job import is_remote
from sdpalab.jobs.versions import judge_version
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.registry import SHIPPED, get
from sdpalab.kernels.source import source_digest
from sdpalab.problem import MISSION, Problem
from sdpalab.search.budget import Budget, BudgetClock
from sdpalab.search.context import SearchContext, TimeUp
from sdpalab.search.finals import front_of, run_finals
from sdpalab.search.log import Head, SearchLog
from sdpalab.search.outcome import MODELLED, Finalist, Standing, Trial
from sdpalab.search.space import ConfigSpace
from sdpalab.search.strategy import strategy_named
from sdpalab.search.sweep import Sweep
from sdpalab.search.targets import searched_kernel, spec_of
from sdpalab.search.tuned import ProblemClass, TunedEntry
from sdpalab.version import __version__
from warpsan.gpus import Gpu, gpu_named
from warpsan.sanitize import Progress

__all__ = ["HERE", "TuneResult", "tune"]

HERE = "here"
"""The present GPU, on which costs are measured."""


@dataclass(frozen=True)
class TuneResult:
    """Result of a search.

    Attributes
    ----------
    head : Head
        Definition of the search.
    trials : tuple of Trial
        All tried configurations in order; the first is the default.
    finalists : tuple of Finalist
        Results of the last gates.
    front : tuple of Trial
        Passed configurations that no other dominates, best first.
    stopped : str
        Reason for the end.
    notes : tuple of str
        Problems of the log.
    """

    head: Head
    trials: tuple[Trial, ...]
    finalists: tuple[Finalist, ...]
    front: tuple[Trial, ...]
    stopped: str
    notes: tuple[str, ...] = ()

    @property
    def default(self) -> Trial | None:
        """Record of the default configuration; None if time ended before it."""
        return self.trials[0] if self.trials else None

    @property
    def winners(self) -> Mapping[str, Trial]:
        """By GPU: the best configuration that passed all gates, including the last ones. Empty without one."""
        good = {each.number for each in self.finalists if each.standing is Standing.PASSED}
        passed = [trial for trial in self.trials if trial.number in good]
        order = [each.number for each in self.finalists]
        return {
            gpu: min(passed, key=lambda trial: (trial.costs_us[gpu], order.index(trial.number)))
            for gpu in self.head.gpus
            if passed
        }

    @property
    def passed(self) -> bool:
        """True if a configuration passed all gates and is not slower than the default."""
        return bool(self.winners)

    def tuned_entries(self) -> tuple[TunedEntry, ...]:
        """Tuned defaults, one per GPU and class of problems, for a shipped kernel whose default also passed the
        gates."""
        default = self.default
        if self.head.kernel not in SHIPPED or default is None or default.standing is not Standing.PASSED:
            return ()
        return tuple(
            self._entry(gpu, problem, winner, default)
            for gpu, winner in self.winners.items()
            for problem in self.head.problems
            if winner.times_us[gpu][problem.label] <= default.times_us[gpu][problem.label]
        )

    def _entry(self, gpu: str, problem: Problem, winner: Trial, default: Trial) -> TunedEntry:
        finalist = next(each for each in self.finalists if each.number == winner.number)
        return TunedEntry(
            kernel=self.head.kernel,
            gpu=gpu,
            problems=ProblemClass.of(problem),
            searched=problem,
            config=winner.config,
            clock=self.head.clock,
            default_us=default.times_us[gpu][problem.label],
            tuned_us=winner.times_us[gpu][problem.label],
            level=str(finalist.verdict["level"]),
            cases=int(finalist.verdict["cases"]),
            device=", ".join(finalist.verdict["devices"]),
            judge=self.head.judge,
            source=source_digest(get(self.head.kernel)),
            ptx_sha256=winner.ptx_sha256[gpu],
            held_out=finalist.held_out.get(gpu, {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "head": self.head.to_dict(),
            "kind": self.head.clock,
            "trials": [trial.to_dict() for trial in self.trials],
            "finalists": [finalist.to_dict() for finalist in self.finalists],
            "front": [trial.number for trial in self.front],
            "winners": {gpu: trial.number for gpu, trial in self.winners.items()},
            "stopped": self.stopped,
            "notes": list(self.notes),
        }


def tune(
    kernel: str | Kernel,
    problems: Iterable[Problem] | Problem | None = None,
    *,
    gpu: str | Sequence[str] | None = None,
    budget: str | int = "10m",
    strategy: str = "elites",
    executor: str | Executor = "local",
    log: Path | str | None = None,
    resume: bool = False,
    seed: int = 0,
    address: str | None = None,
    include_dirs: Sequence[Path | str] = (),
    progress: Progress = lambda line: None,
) -> TuneResult:
    """Search a kernel's configurations for the fastest correct one.

    Parameters
    ----------
    kernel : str or Kernel
        A registry name, ``FILE.py:NAME`` or ``FILE.py``; or a kernel of the registry.
    problems : Problem or iterable of Problem, optional
        Problems to optimise together. Default: the mission shape.
    gpu : str or sequence of str, optional
        Names of ``gpus.json`` such as ``L4``: costs are modelled, and with several GPUs the result is a Pareto front.
        ``here``: costs are measured on the present GPU. Default: the present GPU, or, without one, the reference GPU of
        the kernel's own architecture.
    budget : str or int
        ``200`` configurations, or a time such as ``10m``, including the last gates.
    strategy : str
        Name in :data:`sdpalab.search.strategy.STRATEGIES`.
    executor : str or Executor
        ``local``, ``ray``, or your own executor, which is not closed. If its workers are on other machines (attribute
        ``remote``), this machine repeats their results for finalists.
    log : Path or str, optional
        File of the records; default: memory only.
    resume : bool
        Whether to continue an existing log.
    seed : int
        Seed of the strategy and of held-out inputs.
    address : str, optional
        Address of the Ray cluster.
    include_dirs : sequence of Path or str
        Folders for ``#include`` besides those of a user's kernel.
    progress : callable
        Receives a line for each configuration.

    Returns
    -------
    TuneResult

    Raises
    ------
    UserError
        For an unknown kernel, strategy, GPU or executor, an empty space (with the predicates that emptied it), a budget
        of zero, or a log of another search or version.
    MachineError
        If the default configuration cannot be tried, or the log cannot be written.
    """
    spec = spec_of(kernel)
    folders = tuple(Path(folder).absolute() for folder in include_dirs)
    wanted = (problems,) if isinstance(problems, Problem) else tuple(problems if problems is not None else (MISSION,))
    if not wanted:
        raise UserError("there is no problem to tune for")
    allowed = Budget.parse(budget)
    with ExitStack() as stack:
        target = stack.enter_context(searched_kernel(spec, folders))
        gpus, measured = _gpus(target, gpu)
        space = ConfigSpace.of(target, wanted, gpus)
        chosen = strategy_named(strategy, space, len(gpus), seed)
        head = Head(
            kernel=target.name,
            problems=wanted,
            gpus=tuple(each.name for each in gpus),
            clock="gpu" if measured else MODELLED,
            strategy=strategy,
            seed=seed,
            knobs=space.knobs,
            configurations=len(space),
            judge=judge_version(),
            lab=__version__,
            source=source_digest(target),
        )
        if isinstance(executor, str):
            executor = stack.enter_context(closing(executor_named(executor, address=address, gpu=measured)))
        here = (
            stack.enter_context(closing(executor_named("local", workers=1, gpu=measured)))
            if is_remote(executor)
            else None
        )
        records = stack.enter_context(closing(SearchLog(None if log is None else Path(log), head, resume=resume)))
        context = SearchContext(
            spec=spec,
            kernel=target,
            problems=wanted,
            gpus=gpus,
            space=space,
            executor=executor,
            log=records,
            clock=BudgetClock(allowed),
            device="gpu" if measured else "sim",
            progress=progress,
            include_dirs=tuple(map(str, folders)),
            here=here,
        )
        return run_search(context, Sweep(context, chosen))


_SPARE = 1.5
"""Seconds reserved for the last gates, relative to their previous time."""


def run_search(context: SearchContext, sweep: Sweep) -> TuneResult:
    """The sweep, then the last gates, repeated while time is left; if time ends in between, the results up to then."""
    finalists: list[Finalist] = []
    last_gates_s: float | None = None
    more = True
    try:
        while more:
            tried = len(sweep.trials)
            more = sweep.run(last_gates_s)
            if len(sweep.trials) == tried:
                break
            start_s = context.clock.now()
            finalists = run_finals(context, sweep.trials, sweep.champion())
            last_gates_s = max(last_gates_s or 0.0, _SPARE * (context.clock.now() - start_s))
        stopped = sweep.stopped
    except TimeUp:
        stopped = sweep.stopped or "time ended in the middle of a batch"
        known = {trial.number: context.log.known_finalist(trial.identity) for trial in sweep.passed}
        finalists = [each for each in known.values() if each is not None]
        if not finalists:
            stopped += "; no finalist was judged in full before the time was used up: --resume goes on"
    return TuneResult(
        head=context.log.head,
        trials=tuple(sweep.trials),
        finalists=tuple(finalists),
        front=tuple(front_of(sweep.passed)),
        stopped=stopped,
        notes=tuple(context.log.notes),
    )


def _gpus(kernel: Kernel, names: str | Sequence[str] | None) -> tuple[tuple[Gpu, ...], bool]:
    """The GPUs of the costs, and whether costs are measured."""
    from sdpalab.run import gpu_problem
    from warpsan.gpus import default_gpu

    if names is None:
        names = (HERE,) if gpu_problem() is None else (default_gpu(kernel.default_arch).name,)
    listed = list(dict.fromkeys((names,) if isinstance(names, str) else names))
    if HERE not in listed:
        return tuple(gpu_named(name) for name in listed), False
    if len(listed) > 1:
        raise UserError(
            f"--gpu {HERE} is measured, and {', '.join(listed)} cannot be compared with it: give one of them"
        )
    return (_gpu_here(),), True


def _gpu_here() -> Gpu:
    """The present GPU; raises UserError without one."""
    from sdpalab.measure.benchmark import cuda_device
    from sdpalab.run import GpuExecutor
    from sdpalab.search.gates import gpu_from
    from warpsan.gpus import gpu_of_device

    device = cuda_device()
    known = gpu_of_device(device.name)
    if known is not None:
        return known
    executor = GpuExecutor(device.ordinal)
    return gpu_from({"name": device.name, "arch": executor.arch, "sms": executor.sms})
