"""The chunks of CTAs that a launch is run in: each on a machine of its size, from the first instruction to the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sdpalab.sim import isa as isa  # registers every opcode
from sdpalab.sim.checks.async_copy import AsyncCheck
from sdpalab.sim.checks.global_history import GlobalHistory
from sdpalab.sim.checks.global_race import GlobalRaceCheck
from sdpalab.sim.checks.mbarrier_init import MbarrierInitCheck
from sdpalab.sim.checks.memory import MemoryCheck
from sdpalab.sim.checks.prerequisites import PrerequisiteCheck
from sdpalab.sim.checks.provenance import home_buffers, pointer_origins
from sdpalab.sim.checks.race import RaceCheck
from sdpalab.sim.checks.registers import RegisterCheck
from sdpalab.sim.checks.tracked_memory import TrackedMemory
from sdpalab.sim.checks.tracking import TrackingCheck
from sdpalab.sim.counters import Counting
from sdpalab.sim.geometry import Geometry
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.heap import Heap
from sdpalab.sim.ir import Entry, PtxModule
from sdpalab.sim.machine import Machine, Symbols
from sdpalab.sim.memory import Space
from sdpalab.sim.numerics import DEFAULT_NUMERICS
from sdpalab.sim.observer import Observer
from sdpalab.sim.program import Program
from sdpalab.sim.recording import AccessRecorder
from sdpalab.sim.scheduler import Scheduler
from sdpalab.sim.selection import Indices
from sdpalab.sim.tally import Tally
from sdpalab.sim.weak import WeakMemory

__all__ = ["Chunks", "Setup", "race_observers"]


@dataclass(frozen=True)
class Setup:
    """What a launch comes to before it runs: the code, where everything lies, and how it is run and watched.

    ``workspace`` is the address of the grid's workspace in a cooperative launch, and 0 in others. ``chunks`` has the
    linear indices of the CTAs of each chunk; the rest is as in :func:`~sdpalab.sim.launch` and
    :class:`~sdpalab.sim.machine.Machine`.
    """

    module: PtxModule
    entry: Entry
    program: Program
    geometry: Geometry
    symbols: Symbols
    params: bytes
    workspace: int
    heap: Heap | None
    chunks: Sequence[Indices]
    checks: Sequence[str]
    counters: bool
    schedule: str
    async_mode: str
    seed: int
    max_steps: int
    tracking: bool = False
    """Whether undefined bytes of shared memory are followed to where they matter."""
    volatile: str = "sync"
    watchers: Sequence[AccessRecorder] = ()
    numerics: str = DEFAULT_NUMERICS
    reads: str = "latest"
    resident: bool = False
    """Whether the native engine runs all blocks of a chunk at once, by turns, so that one may wait for another."""
    prerequisites: Indices | None = None
    """Of a launch with programmatic stream serialization, what the kernel before it accesses
    (:class:`~sdpalab.sim.checks.prerequisites.PrerequisiteCheck`)."""


class Chunks:
    """Runs chunks of a launch, in any order.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory.
    tally : Tally
    log : HazardLog
    history : GlobalHistory, optional
        With the ``race`` check: what chunks did to global memory.
    watcher : Observer, optional
        Gets every event before the checks.
    """

    def __init__(
        self,
        setup: Setup,
        space: Space,
        tally: Tally,
        log: HazardLog,
        history: GlobalHistory | None,
        watcher: Observer | None = None,
    ) -> None:
        self.setup, self.space, self.tally = setup, space, tally
        self.log, self.history, self.watcher = log, history, watcher
        self.weak: WeakMemory | None = None
        if setup.reads == "stale":
            self.weak = WeakMemory(setup.entry, setup.seed, volatile_is_data=setup.volatile == "data")
        self._schedulers: dict[int, Scheduler] = {}
        self.printed: list[str] = []
        """What printf wrote."""

    def run(self, number: int) -> None:
        """Run a chunk to its end. What is random in it depends on its number, and not on what ran before."""
        setup = self.setup
        ctas, seed = setup.chunks[number], (setup.seed, number)
        with np.errstate(all="ignore"):
            if len(ctas) not in self._schedulers:
                self._schedulers[len(ctas)] = self._scheduler(len(ctas))
            scheduler = self._schedulers[len(ctas)]
            machine = scheduler.machine
            machine.landing = _landing(setup.schedule, seed)
            machine.reset(ctas)
            scheduler.run(seed)
            for observer in machine.observers:
                observer.finish()

    def _scheduler(self, ctas: int) -> Scheduler:
        setup = self.setup
        machine = Machine(
            *(setup.module, setup.entry, setup.program, setup.geometry, ctas, setup.symbols, self.space, setup.params),
            async_mode=setup.async_mode,
            numerics=setup.numerics,
            workspace=setup.workspace,
            heap=setup.heap,
        )
        machine.printed = self.printed
        if "provenance" in setup.checks:
            origins = pointer_origins(setup.entry)
            machine.homes = home_buffers(origins, setup.params, self.space.extents)
        weak = self.weak
        if weak is not None:
            machine.weak = weak
            machine.observers.append(weak)
            machine.on_reset.append(lambda: weak.attach(machine))
        machine.observers += self._observers(machine)
        return Scheduler(machine, setup.max_steps, setup.schedule, self.tally)

    def _observers(self, machine: Machine) -> list[Observer]:
        """The observers of a machine; ``race`` is the first of the checks, so that it reports its hazards itself."""
        checks, log = self.setup.checks, self.log
        observers = [] if self.watcher is None else [self.watcher]
        observers += [recorder.watch(machine) for recorder in self.setup.watchers]
        observers += race_observers(self.setup, machine, log, self.history, self.tally)
        if "memory" in checks and self.setup.tracking:
            registers = TrackingCheck(machine, log)
            observers += [TrackedMemory(machine, log, registers), registers]
        elif "memory" in checks:
            observers.append(MemoryCheck(machine, log))
            if machine.program.undefined:
                observers.append(RegisterCheck(machine, log))
        if self.setup.counters:
            observers.append(Counting(machine, self.tally))
        return observers


def race_observers(
    setup: Setup, machine: Machine, log: HazardLog, history: GlobalHistory | None, tally: Tally
) -> list[Observer]:
    """The checks of the order of accesses that a launch asks for; ``history`` with the ``race`` check."""
    observers: list[Observer] = []
    if history is not None:
        race = RaceCheck(
            *(machine, log),
            in_flight="async" not in setup.checks,
            strict="lanes" in setup.checks,
            letter="strict" in setup.checks,
            values="values" in setup.checks,
            volatile_is_data=setup.volatile == "data",
            chains=history.chains,
        )
        observers += [race, GlobalRaceCheck(machine, log, race, history)]
        if setup.prerequisites is not None:
            observers.append(PrerequisiteCheck(machine, log, race.clocks, setup.prerequisites))
    if "async" in setup.checks:
        observers.append(AsyncCheck(machine, log, tally))
    if "strict" in setup.checks:
        observers.append(MbarrierInitCheck(machine, log))
    return observers


def _landing(schedule: str, seed: tuple[int, int]) -> Callable[[int], int]:
    """The bulk copy in flight that lands first: the oldest, or the newest under ``reverse``, or either."""
    draw = np.random.default_rng(seed)
    orders: dict[str, Callable[[int], int]] = {
        "reverse": lambda waiting: waiting - 1,
        "random": lambda waiting: int(draw.integers(2)) * (waiting - 1),
    }
    return orders.get(schedule, lambda waiting: 0)
