"""Launching a kernel: arguments to a parameter block, arrays to global memory, CTAs to chunks, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from warpsan.analysis.derived import derived
from warpsan.analysis.program import Program, build_program
from warpsan.checks.global_history import GlobalHistory
from warpsan.checks.orders import communications
from warpsan.checks.shadow import granule_of
from warpsan.engine.machine import Symbols
from warpsan.engine.selection import WARP, Indices
from warpsan.engine.touched import Touched
from warpsan.errors import LaunchError, SimError
from warpsan.host.arena import Arena, Before
from warpsan.host.arguments import parameter_block
from warpsan.host.collector import without_collector
from warpsan.host.geometry import Geometry
from warpsan.host.limits import shared_limit
from warpsan.host.memory import Extent, Space
from warpsan.host.options import CHECKS, all_checks, check_options
from warpsan.host.setup import Setup
from warpsan.host.shape import clusters_in_order, shape_of
from warpsan.host.unwritten import Unwritten
from warpsan.host.variables import place_variables, takes_parameter_addresses
from warpsan.numerics.choices import DEFAULT_NUMERICS, is_ring, valid_numerics
from warpsan.profile.counters import Counters, counted
from warpsan.profile.recording import AccessRecorder
from warpsan.ptx.ir import Entry, PtxModule
from warpsan.ptx.linking import allocates, link
from warpsan.ptx.names import resolve, short_name
from warpsan.ptx.parser import parse
from warpsan.report.hazard_log import unwaited_copies
from warpsan.report.hazards import Hazard, Note

__all__ = ["MEMORY_BUDGET", "Accesses", "Executed", "Report", "execute", "launch", "prepare", "ptx_text"]

MEMORY_BUDGET = 8 * 2**30
"""Most memory that a launch may need, in bytes, by an estimate made before it begins."""

_LANES_AT_LEAST, _LANES_AT_MOST = 8192, 16384
"""Lanes of a chunk, if there are that many: of CTAs that are in lockstep in the report, and alive together where one
waits for a later one."""
_CHUNKS_WANTED = 8
_MAX_STEPS = 20_000_000

Accesses = Literal["none", "places"]
"""What of a launch's accesses to global memory is wanted (:func:`execute`)."""


@dataclass(frozen=True)
class Report:
    """The result of a launch.

    Attributes
    ----------
    hazards : list of Hazard
        One for each kind and place in the code, in the order of the code.
    lane_instructions : int
        Instructions executed, counted once for each lane.
    steps : int
        Vector steps taken: instructions, each over all lanes that ran it together.
    shared_bytes : int
        Static and dynamic shared memory of one CTA.
    counters : Counters, optional
        The counters, if requested.
    printed : tuple of str
        What each printf of each thread wrote, in the order of execution.
    notes : tuple of Note
        Asynchronous copies that threads have not waited for when they end, with the ``async`` check.
    """

    hazards: list[Hazard]
    lane_instructions: int
    steps: int
    shared_bytes: int
    counters: Counters | None = None
    printed: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def prepare(*, wait: bool = False) -> None:
    """Begin to compile what every launch needs, in another process, if this machine has not compiled it yet.

    The first launch does so, too: this is for callers with other work before it, such as the build of a kernel, and,
    with ``wait``, for those whose launches run in a process that cannot write to the cache.
    """
    from warpsan.engine.library import library  # imports LLVM

    library().prepare()
    if wait:
        library().wait()


def launch(
    ptx: str | bytes,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    dynamic_smem: int = 0,
    cluster: Sequence[int] = (1, 1, 1),
    cooperative: bool = False,
    programmatic: bool = False,
    checks: Sequence[str] = CHECKS,
    counters: bool = False,
    schedule: str = "lockstep",
    async_mode: str = "late",
    numerics: str = DEFAULT_NUMERICS,
    seed: int = 0,
    max_steps: int | None = None,
    workers: int | None = None,
    names: Sequence[str] = (),
    volatile: str = "sync",
    reads: str = "latest",
    watchers: Sequence[AccessRecorder] = (),
    unwritten: Sequence[Unwritten] = (),
) -> Report:
    """Execute a kernel's PTX on this machine's CPU.

    Parameters
    ----------
    ptx : str or bytes
        PTX text.
    entry : str
        The entry's name as it stands in the PTX (mangled), or as C++ has it.
    grid, block : int or up to three ints
    args : sequence
        One for each parameter: a NumPy array is a device buffer, changed in place (contiguous, writable); an int or
        float takes the parameter's declared type, and None is a null pointer. Bytes, a ctypes structure or a NumPy
        structured scalar fill a parameter that is passed by value; so do a :class:`~warpsan.host.arguments.Struct`,
        with addresses and tensor maps in it, and a :class:`~warpsan.host.tensor_map.TensorMap`. A
        :class:`~warpsan.host.arguments.Pointer` points into an array, a list of arrays is a table of their addresses,
        and arrays that share bytes share a buffer.
    dynamic_smem : int
        Bytes of dynamic shared memory of each CTA.
    cluster : up to three ints
        Blocks of a cluster; if it is (1, 1, 1), what the kernel was compiled for.
    cooperative : bool
        A cooperative launch: all blocks are there at once, and may synchronise as a grid.
    programmatic : bool
        A launch with programmatic stream serialization: the kernel before it in the stream may still run, and access
        all of the arrays, until ``griddepcontrol.wait``. Earlier accesses to them are races
        (:mod:`warpsan.checks.prerequisites`).
    checks : sequence of str
        Which checks watch (:data:`CHECKS`). Without ``memory``, an illegal access raises IllegalAccess.
    counters : bool
        Whether to count what a profiler would (:attr:`Report.counters`).
    schedule : {"lockstep", "forward", "reverse", "random"}
        All lanes of a chunk of CTAs together, or one warp of each CTA at a time: from the first, from the last, or
        drawn at every branch and barrier. ``reverse`` also runs blocks from the last on, and ``random`` shuffles them.
    async_mode : {"late", "early"}
        When asynchronous copies land: as late as the waits allow, their destination poisoned until then, or at once.
    numerics : {"hardware", "float32", "ring"}
        How the tensor cores' sums are made: as by those of the module's ``.target``, or in float32
        (:mod:`warpsan.numerics.choices`). ``ring``: f16, bf16, f32 and 8-bit elements of all arrays are codes of the
        integers mod p (p - 1), in their bits (:mod:`warpsan.numerics.ring`); there are no checks then, and no hazards
        are reported.
    seed : int
        For the random schedule and for stale reads.
    max_steps : int, optional
        Vector steps that one warp may take. Default: twenty million.
    workers : int, optional
        Threads that may share the clusters. Default: one for each CPU where the launch is long enough to pay for them.
        The report and the arrays are the same for any number.
    names : sequence of str
        What hazards call the arrays among ``args``, empty for other arguments: an access outside an array with a name
        has its index there, one outside an array without a name its byte.
    volatile : {"sync", "data"}
        What volatile accesses are to the ``race`` check: relaxed operations of the widest scope, by the letter of PTX,
        or data, as in CUDA C++ (:mod:`warpsan.checks.orders`).
    reads : {"latest", "stale"}
        What reads return: what was written last, or, drawn by the seed, any value that the PTX memory model allows
        (:mod:`warpsan.weak`). Then threads also take turns at every access, under all schedules but lockstep.
    watchers : sequence of AccessRecorder
        What collects the accesses at some instructions. With one, a single thread runs all clusters.
    unwritten : sequence of Unwritten
        Arrays among ``args`` that nobody has written yet, or not all of: what the kernel reads there and uses is
        reported. All other arrays count as written.

    Returns
    -------
    Report

    Raises
    ------
    LaunchError
        For a wrong entry, grid, block, argument, check, numerics, shared memory size or number of workers.
    PtxSyntaxError, UnsupportedInstruction
        For PTX that cannot be read or is not modelled, with its line.
    IllegalAccess, Deadlock, StepLimit, KernelTrap
        For what goes wrong while running.
    NotAlgebraic
        In a ring, for an instruction that has no meaning there.
    SimError
        If a worker process dies; in a ring, if the native engine does not have what the kernel uses.
    """
    text = ptx_text(ptx)
    return execute(
        *(text, resolve(entry, parse(text).entries, "entry"), grid, block, args, Arena()),
        dynamic_smem=dynamic_smem,
        cluster=cluster,
        cooperative=cooperative,
        programmatic=programmatic,
        checks=checks,
        counters=counters,
        schedule=schedule,
        async_mode=async_mode,
        numerics=numerics,
        seed=seed,
        max_steps=max_steps,
        workers=workers,
        names=names,
        volatile=volatile,
        reads=reads,
        watchers=watchers,
        unwritten=unwritten,
    ).report


def ptx_text(ptx: str | bytes) -> str:
    """PTX as text, without the zeros that end it in a binary."""
    return (ptx.decode() if isinstance(ptx, bytes) else ptx).rstrip("\0")


@dataclass(frozen=True)
class Executed:
    """A launch that has run to its end: its report, and the entry with all that it calls.

    Where the places of its accesses to global memory were asked for, with the ``race`` check and on a device,
    ``touched`` has them, and ``again`` gives the accesses to some of these: it runs the launch once more, in a copy of
    the memory as it was.
    """

    report: Report
    module: PtxModule
    code: Entry
    geometry: Geometry
    touched: Touched | None = None
    again: Callable[[Indices], GlobalHistory] | None = None


def execute(
    text: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    arena: Arena,
    *,
    placed: Mapping[str, tuple[str, int]] | None = None,
    accesses: Accesses = "none",
    prerequisites: Indices | None = None,
    dynamic_smem: int = 0,
    cluster: Sequence[int] = (1, 1, 1),
    cooperative: bool = False,
    programmatic: bool = False,
    checks: Sequence[str] = CHECKS,
    counters: bool = False,
    schedule: str = "lockstep",
    async_mode: str = "late",
    numerics: str = DEFAULT_NUMERICS,
    seed: int = 0,
    max_steps: int | None = None,
    workers: int | None = None,
    names: Sequence[str] = (),
    volatile: str = "sync",
    reads: str = "latest",
    watchers: Sequence[AccessRecorder] = (),
    unwritten: Sequence[Unwritten] = (),
) -> Executed:
    """Run a launch in an arena, and give the caller's arrays in it back: :func:`launch` with its memory as an argument.

    ``entry`` is as it stands in the PTX; ``placed`` is where variables of the module lie in the arena already;
    ``accesses`` is whether the places of the accesses to global memory are wanted.
    """
    check_options(checks, schedule, async_mode, seed, workers, volatile, reads)
    valid_numerics(numerics)
    checks = () if is_ring(numerics) else all_checks(checks)
    module = parse(text)
    code, program = _linked(text, entry, reads)
    geometry = shape_of(code, module.target, grid, block, cluster, dynamic_smem)
    taken = takes_parameter_addresses(code)
    if taken:  # before all else: 32 bits must hold such an address
        arena.place_parameters(max((param.offset + param.size for param in code.params), default=0))
    known = len(arena.extents)
    params = parameter_block(code, args, arena, names)
    if programmatic and prerequisites is None:
        prerequisites = np.array([(each.begin, each.end, 1) for each in arena.extents[known:]], np.int64).reshape(-1, 3)
    if taken:
        arena.fill_in(arena.parameters, params)
    workspace = arena.workspace() if cooperative else 0
    heap = arena.need_heap() if _uses_heap(code) else None
    looks = arena.follow(unwritten, looks="memory" in checks)
    symbols = place_variables(module, code, dynamic_smem, arena.parameters if taken else None, arena, placed)
    limit = shared_limit(module.target)
    if symbols.shared_bytes > limit:
        raise LaunchError(
            f"{short_name(entry)} needs {symbols.shared_bytes} bytes of shared memory, "
            f"and a block on {module.target} has at most {limit}"
        )
    lanes = geometry.warps * WARP * geometry.cluster_size
    clusters_at_once = geometry.ctas // geometry.cluster_size if cooperative else _clusters_at_once(geometry, lanes)
    alive = clusters_at_once * lanes, clusters_at_once * geometry.cluster_size
    _check_memory(arena.end, code, program, symbols, *alive, checks)
    ctas = clusters_in_order(geometry, schedule, seed)
    setup = Setup(
        *(module, code, program, geometry, symbols, params, workspace, heap),
        [part.reshape(-1) for part in np.array_split(ctas, -(-len(ctas) // clusters_at_once))],
        *(checks, counters, schedule, async_mode, seed, max_steps or _MAX_STEPS),
        volatile=volatile,
        reads=reads,
        watchers=watchers,
        numerics=numerics,
        prerequisites=prerequisites if programmatic else None,
        looks=looks,
    )
    from warpsan.engine.running import run_launch  # imports LLVM

    before, extents = arena.snapshot(), () if arena.memory is None else arena.space().extents
    try:
        run = run_launch(setup, arena, before, 1 if watchers else workers, places=accesses == "places")
    except SimError:  # what it has written until then is not known
        arena.define_all()
        raise
    arena.copy_back(run.space)
    report = Report(
        run.log.hazards(),
        int(np.dot([block.size for block in program.blocks], run.tally.lanes)),
        int(run.tally.steps[0]),
        symbols.shared_bytes,
        counted(module, code, program, run.tally) if counters else None,
        tuple(run.printed),
        unwaited_copies(module, code, run.tally.unwaited) if "async" in checks else (),
    )
    touched = run.touched[0] if run.touched else None
    again = partial(_accesses_to, run.setup, before, extents) if touched and before[0] is not None else None
    return Executed(report, module, code, geometry, touched, again)


def _accesses_to(setup: Setup, before: Before, extents: Sequence[Extent], places: Indices) -> GlobalHistory:
    """The accesses of a launch that has run to its end to some places, in a copy of the memory as it was before."""
    from warpsan.engine.histories import history_of

    memory, heap = before
    assert memory is not None
    space = Space("global", len(memory), len(memory), extents)
    space.data[: len(memory)] = memory
    return history_of(replace(setup, heap=heap), space, places)


@derived
def _uses_heap(entry: Entry) -> bool:
    return any(map(allocates, entry.instructions))


@lru_cache(maxsize=64)
def _linked(text: str, entry: str, reads: str) -> tuple[Entry, Program]:
    """An entry with the functions that it calls, and its blocks, built once for each text."""
    with without_collector():
        code = link(parse(text), entry)
        return code, build_program(code, fine=reads == "stale")


def _clusters_at_once(geometry: Geometry, lanes: int) -> int:
    """Clusters of ``lanes`` lanes that make a chunk."""
    clusters = geometry.ctas // geometry.cluster_size
    alive = min(max(clusters * lanes // _CHUNKS_WANTED, _LANES_AT_LEAST), _LANES_AT_MOST)
    return min(clusters, max(1, alive // lanes))


def _check_memory(
    global_bytes: int, entry: Entry, program: Program, symbols: Symbols, lanes: int, ctas: int, checks: Sequence[str]
) -> None:
    """Refuse a launch that needs too much memory, by an estimate, before anything is allocated.

    ``lanes`` and ``ctas`` are those that may be alive at once. Global memory is there three times where hazards are
    reported; the checks keep twelve bytes for each 16, as many for each granule, and more where there are strong
    accesses.

    Raises
    ------
    LaunchError
        If that is more than :data:`MEMORY_BUDGET`.
    """
    registers = sum(rows * max(1, bits // 8) for bits, rows in program.files.items())
    need = lanes * (registers + symbols.local_bytes) + ctas * symbols.shared_bytes + global_bytes * (3 if checks else 1)
    if checks:
        need += global_bytes * 12 // 16 + global_bytes * (37 if communications(entry) else 12) // granule_of(
            entry, ("global",)
        )
    if need > MEMORY_BUDGET:
        raise LaunchError(
            f"the launch would need about {need / 2**30:.1f} GiB of this machine's memory, "
            f"and the simulator takes at most {MEMORY_BUDGET / 2**30:.0f} GiB: launch less at once"
        )
