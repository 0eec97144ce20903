"""One native run of a launch, on as many threads as its length justifies."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np

from warpsan.analysis.program import Program
from warpsan.engine import layout
from warpsan.engine.assembler import NotNative
from warpsan.engine.communication import changes_maps, communicates, ctas_together
from warpsan.engine.decoded import Decoded, decode
from warpsan.engine.host import HostCall
from warpsan.engine.library import library
from warpsan.engine.recorders import recorded_pcs
from warpsan.engine.state import State
from warpsan.engine.timing import OperationTimer
from warpsan.engine.touched import Touched, stretches
from warpsan.engine.values import register_template
from warpsan.errors import NotAlgebraic, StepLimit
from warpsan.host.collector import without_collector
from warpsan.host.cpus import usable_cpus
from warpsan.host.memory import Space
from warpsan.host.setup import Setup
from warpsan.numerics.ring import Ring, ring_of
from warpsan.profile.tally import Tally
from warpsan.ptx.opcodes import uses_fp8

__all__ = ["NativeCode", "accesses_of", "run"]

_MOST_THREADS = 16
_TURNS = 8
"""Ranges of clusters for each thread, so that all threads are busy to the end."""
_WORTH = 2e7
"""Approximate number of lane instructions that justifies a second thread."""

_LOOP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_Key = tuple[int, tuple[bool, ...], frozenset[int], str, str]
_decoded: dict[_Key, tuple[weakref.ref[Program], Decoded | str]] = {}


def run(
    setup: Setup,
    space: Space,
    tally: Tally,
    workers: int | None,
    touched: list[Touched] | None = None,
    printed: list[str] | None = None,
) -> str:
    """Run all CTAs of a launch in native code.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory; its content is undefined after a launch that did not run to its end.
    tally : Tally
        Receives the counts, if the launch ran to its end.
    workers : int, optional
        Most threads that share the clusters. Default: one for each CPU if the launch is long enough.
    touched : list of Touched, optional
        Receives the launch's accesses to global memory, if it ran to its end with checks.
    printed : list of str, optional
        Receives the output of printf, if the launch ran to its end.

    Returns
    -------
    str
        The reason to run it again; empty if it ran to its end without a possible hazard.

    Raises
    ------
    UnsupportedInstruction
        Without checks, if a lane reached an instruction that is not modelled.
    """
    try:
        return _run(setup, space, tally, workers, touched, printed)
    except NotNative as why:
        return f"NotNative: {why}"


class NativeCode:
    """A launch's program in machine code, ready to run.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory.

    Raises
    ------
    NotNative
        If the launch needs a feature that the native engine does not have.
    """

    def __init__(self, setup: Setup, space: Space) -> None:
        code = library()
        code.prepare()
        with setup.stopwatch.phase("decode"):
            self.setup, self.space, self.decoded = setup, space, _decode(setup)
            self._template = register_template(setup, space, self.decoded)
        with setup.stopwatch.phase("compile"):
            self._table = np.array(code.operations(self.decoded.operations), dtype=np.int64)
            self._loop = _LOOP(code.loop())
        self._timers: dict[int, OperationTimer] = {}
        ctas, together = np.concatenate(setup.chunks).astype(np.int64), ctas_together(setup)
        self.clusters = -(-len(ctas) // together)
        self._ctas = np.full(self.clusters * together, -1, np.int64)
        self._ctas[: len(ctas)] = ctas

    def state(self, words: Mapping[str, int] | None = None) -> State:
        """The memory of one thread; ``words`` as in :class:`~warpsan.engine.state.State`."""
        timer = self._timer() if self.setup.stopwatch.operations else None
        table = self._table if timer is None else timer.table
        state = State(self.setup, self.space, self.decoded, table, self._template, self._ctas, words)
        if timer is not None:
            self._timers[id(state)] = timer
        return state

    def _timer(self) -> OperationTimer:
        """A table of operations that measures them."""
        with self.setup.stopwatch.phase("compile"):
            timer = OperationTimer([each.name for each in self.decoded.operations], self._table)
        self.setup.stopwatch.timers.append(timer.profile)
        return timer

    def run(self, state: State, begin: int, end: int) -> int:
        """Run a range of clusters. Returns a status. Native code holds no lock of the interpreter.

        Raises
        ------
        StepLimit
            If the clock of the checks is exhausted.
        """
        with self._timers.get(id(state), nullcontext()):
            status = int(self._loop(state.context.address, begin, end))
        if status == layout.LATE:
            most = state.context.time_limit
            raise StepLimit(f"the checks follow at most {most} releases and asynchronous operations of a cluster")
        return status


def _run(
    setup: Setup,
    space: Space,
    tally: Tally,
    workers: int | None,
    touched: list[Touched] | None,
    printed: list[str] | None,
) -> str:
    code = NativeCode(setup, space)
    decoded, clusters = code.decoded, code.clusters
    first = code.state()
    calls = any(not (isinstance(each, HostCall) and each.ends) for each in decoded.host_calls)
    alone = bool(communicates(setup.entry) or calls or setup.watchers)
    alone = alone or changes_maps(setup.entry)  # such uses are not compared
    threads = 1 if alone else min(_threads(setup, workers), clusters)
    states = [first, *(code.state() for _ in range(threads - 1))]
    ends = np.linspace(0, clusters, min(threads * _TURNS, clusters) + 1 if threads > 1 else 2).astype(int).tolist()
    stretches = iter(list(itertools.pairwise(ends)))

    def work(state: State) -> int:
        """Take one range of clusters after the other."""
        return next(filter(None, (code.run(state, begin, end) for begin, end in stretches)), 0)

    with setup.stopwatch.phase("run"):
        if threads == 1:
            statuses = [work(first)]
        else:
            with ThreadPoolExecutor(threads) as pool:
                statuses = list(pool.map(work, states))
    for state in states:
        if state.host.error is not None:
            raise state.host.error
    if layout.NOT_ALGEBRAIC in statuses:
        state = states[statuses.index(layout.NOT_ALGEBRAIC)]
        raise NotAlgebraic(decoded.sites[state.context.current_pc])
    if layout.REFUSED in statuses:
        place = states[statuses.index(layout.REFUSED)].context.current_pc
        if not setup.checks:
            raise decoded.refused[place].again()
    if any(statuses):
        return layout.WHY[max(statuses) - layout.GIVE_UP]
    if setup.checks and _conflict(states):
        return "race"
    steps = sum(state.context.steps_taken for state in states)
    tally.steps += steps
    for state in states:
        tally.add(state.counted)
    if printed is not None:
        printed += [text for state in states for text in state.host.printed]
    if touched is not None and setup.checks:
        touched.append(accesses_of(states))
    return ""


def accesses_of(states: Sequence[State]) -> Touched:
    """The launch's accesses to global memory."""
    granule = 1 << states[0].context.global_shift
    return Touched(
        stretches([state.readers for state in states], 1 << layout.READ_SHIFT),
        stretches([state.writers for state in states], granule),
        stretches([state.updaters for state in states], granule),
    )


def _threads(setup: Setup, workers: int | None) -> int:
    """Threads that share the clusters: ``workers``, or one for each CPU if the launch is long enough."""
    if workers is not None:
        return min(workers, _MOST_THREADS)
    loops = any(after <= number for number, block in enumerate(setup.program.blocks) for after in block.successors)
    work = setup.geometry.ctas * setup.geometry.threads * len(setup.entry.instructions) * (8 if loops else 1)
    return min(usable_cpus(), _MOST_THREADS) if work > _WORTH else 1


def _conflict(states: list[State]) -> bool:
    """Whether blocks of different threads accessed the same place of global memory, at least one writing."""
    if len(states) == 1:
        return False
    shift = states[0].context.global_shift
    many = 1 << layout.READ_SHIFT - shift
    pages = np.flatnonzero(np.any([state.pages for state in states], axis=0))
    granules = 1 << layout.GLOBAL_PAGE_SHIFT - shift
    written, read = [], []
    for state in states:
        wide = state.writers[: len(state.pages) * granules].reshape(len(state.pages), granules)[pages] != 0
        written.append(wide)
        chunks = state.readers[: len(state.pages) * granules // many].reshape(len(state.pages), granules // many)
        read.append(chunks[pages] != 0)
    for k, mine in enumerate(written):
        touched = mine.reshape(len(pages), granules // many, many).any(axis=2)
        for j, other in enumerate(written):
            if j != k and ((mine & other).any() or (touched & read[j]).any()):
                return True
    return False


def _key(setup: Setup) -> _Key:
    """The inputs of a decoded program."""
    flags = (
        *(bool(setup.checks), setup.counters, setup.tracking, setup.track_unwritten_global),
        *("provenance" in setup.checks, setup.volatile == "data", "strict" in setup.checks),
    )
    return id(setup.program), flags, recorded_pcs(setup), setup.module.target, setup.numerics


def _forgotten(setup: Setup) -> weakref.ref[Program]:
    """A reference to the launch's program, which drops the decoded program when the launch ends."""
    key = _key(setup)
    return weakref.ref(setup.program, lambda _: _decoded.pop(key, None))


@without_collector()
def _decode(setup: Setup) -> Decoded:
    """The launch's program, decoded once for each choice of checks, counters, and numerics."""
    key = _key(setup)
    known = _decoded.get(key)
    if known is None or known[0]() is not setup.program:
        checked = bool(setup.checks)
        try:
            result: Decoded | str = decode(
                *(setup.entry, setup.program),
                checked=checked,
                counted=setup.counters,
                target=setup.module.target,
                numerics=setup.numerics,
                ring=_ring(setup),
                tracking=setup.tracking,
                track_unwritten_global=setup.track_unwritten_global,
                provenance="provenance" in setup.checks,
                volatile_is_data=setup.volatile == "data",
                version=float(setup.module.version),
                variables=setup.symbols.addresses.keys(),
                recorded=recorded_pcs(setup),
                default_scope_is_cta="strict" in setup.checks,
            )
        except NotNative as why:
            result = str(why)
        known = _forgotten(setup), result
        _decoded[key] = known
    if isinstance(known[1], str):
        raise NotNative(known[1])
    return known[1]


def _ring(setup: Setup) -> Ring | None:
    """The ring in which a launch computes."""
    return ring_of(setup.numerics, eight_bits=any(map(uses_fp8, setup.entry.instructions)))
