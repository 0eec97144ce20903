"""Kernel launches: arguments to a parameter block, arrays to global memory, CTAs to chunks, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from warpsan.analysis.derived import derived
from warpsan.analysis.program import Program, build_program
from warpsan.checks.orders import communications
from warpsan.checks.shadow import granule_of
from warpsan.engine.arrays import WARP, Indices
from warpsan.engine.touched import History, Touched
from warpsan.errors import LaunchError, SimError
from warpsan.host.arena import Arena, Before
from warpsan.host.arguments import parameter_block
from warpsan.host.collector import without_collector
from warpsan.host.geometry import Geometry
from warpsan.host.limits import shared_limit
from warpsan.host.memory import Extent, Space
from warpsan.host.options import CHECKS, Options
from warpsan.host.setup import Setup
from warpsan.host.shape import clusters_in_order, shape_of
from warpsan.host.symbols import Symbols
from warpsan.host.unwritten import Unwritten
from warpsan.host.variables import place_variables, takes_parameter_addresses
from warpsan.numerics.choices import DEFAULT_NUMERICS
from warpsan.profile.counters import Counters, counted, flops_of
from warpsan.profile.recording import AccessRecorder
from warpsan.profile.self_profile import SelfProfile, Stopwatch
from warpsan.ptx.ir import Entry, PtxModule
from warpsan.ptx.linking import allocates, link
from warpsan.ptx.names import resolve, short_name
from warpsan.ptx.parser import parse
from warpsan.report.hazard_log import unwaited_copies
from warpsan.report.hazards import Hazard, Note

__all__ = ["MEMORY_BUDGET", "Accesses", "Executed", "Report", "execute", "launch", "linked", "prepare", "ptx_text"]

MEMORY_BUDGET = 8 * 2**30
"""Maximum memory of a launch in bytes, estimated before allocation."""

_LANES_AT_LEAST, _LANES_AT_MOST = 8192, 16384
"""Minimum and maximum lanes of a chunk: CTAs that run in lockstep, and are resident together if one waits for a later
one.
"""
_CHUNKS_WANTED = 8
_MAX_STEPS = 20_000_000

Accesses = Literal["none", "places"]
"""Accesses to global memory that :func:`execute` records."""


@dataclass(frozen=True)
class Report:
    """The result of a launch.

    Attributes
    ----------
    hazards : list of Hazard
        One per kind and place in the code, in code order.
    lane_instructions : int
        Executed instructions, counted once per lane.
    steps : int
        Vector steps: instructions, each counted once for all lanes that execute it together.
    shared_bytes : int
        Static and dynamic shared memory of one CTA, in bytes.
    counters : Counters, optional
        Profiler counters, if requested.
    printed : tuple of str
        Output of each printf of each thread, in execution order.
    notes : tuple of Note
        Asynchronous copies that threads did not wait for before exit, with the ``async`` check.
    self_profile : SelfProfile, optional
        The time that the simulator took, if requested.
    unexecuted : tuple of int
        pc of the first instruction of each basic block that no lane executed.
    flops : int
        Floating-point operations, without conversions and special functions.
    """

    hazards: list[Hazard]
    lane_instructions: int
    steps: int
    shared_bytes: int
    counters: Counters | None = None
    printed: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    self_profile: SelfProfile | None = None
    unexecuted: tuple[int, ...] = ()
    flops: int = 0


def prepare(*, wait: bool = False) -> None:
    """Start compilation of the launch runtime in another process, unless the cache has it already.

    The first launch also starts it. Call this before other long work, such as a kernel build; use ``wait`` if launches
    run in a process without write access to the cache.
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
    watchers: Sequence[AccessRecorder] = (),
    unwritten: Sequence[Unwritten] = (),
    self_profile: bool = False,
) -> Report:
    """Execute a PTX kernel on the CPU, and report its hazards.

    Parameters
    ----------
    ptx : str or bytes
        PTX text.
    entry : str
        Name of the entry, mangled as in the PTX or as in C++.
    grid, block : int or up to three ints
    args : sequence
        One value per kernel parameter. A NumPy array (contiguous, writable) is a device buffer, and is updated in
        place. An int or float is converted to the parameter's declared type, and None is a null pointer. Bytes, a
        ctypes structure, a NumPy structured scalar, a :class:`~warpsan.host.arguments.Struct` (with addresses and
        tensor maps) and a :class:`~warpsan.host.tensor_map.TensorMap` fill a parameter passed by value. A
        :class:`~warpsan.host.arguments.Pointer` points into an array, a list of arrays becomes a table of their
        addresses, and arrays with common bytes share a buffer.
    dynamic_smem : int
        Dynamic shared memory per CTA, in bytes.
    cluster : up to three ints
        Blocks per cluster. (1, 1, 1) selects the cluster size the kernel was compiled for.
    cooperative : bool
        Cooperative launch: all blocks are resident at once, and may synchronize as a grid.
    programmatic : bool
        Programmatic stream serialization: the preceding kernel in the stream may run, and access all arrays, until
        ``griddepcontrol.wait``. Earlier accesses to the arrays are races (:mod:`warpsan.engine.watch.prerequisites`).
    checks : sequence of str
        Enabled checks (:data:`CHECKS`). Without ``memory``, an illegal access raises IllegalAccess.
    counters : bool
        Whether to collect profiler counters (:attr:`Report.counters`).
    schedule : {"lockstep", "forward", "reverse", "random"}
        ``lockstep`` runs all lanes of a chunk of CTAs together. The others run one warp of each CTA at a time:
        ``forward`` from the first, ``reverse`` from the last (and from the last block), ``random`` drawn at every
        branch and barrier, with shuffled blocks.
    async_mode : {"late", "early"}
        Completion of asynchronous copies: as late as the waits allow, with a poisoned destination until then, or
        immediately.
    numerics : {"hardware", "float32", "ring"}
        Sums of the tensor cores: as on the GPU of the module's ``.target``, or in float32
        (:mod:`warpsan.numerics.choices`). With ``ring``, the bits of all f16, bf16, f32 and 8-bit elements encode
        integers mod p (p - 1) (:mod:`warpsan.numerics.ring`); checks are off, and the report has no hazards.
    seed : int
        Seed of the random schedule.
    max_steps : int, optional
        Maximum vector steps of one warp. Default: 20 million.
    workers : int, optional
        Threads that execute clusters in parallel. Default: one per CPU, for launches long enough to gain. Report and
        arrays do not depend on it.
    names : sequence of str
        Name of each array of ``args`` in hazard reports; empty for other arguments. An access outside a named array is
        reported with its index, outside an unnamed array with its byte.
    volatile : {"sync", "data"}
        Meaning of volatile accesses for the ``race`` check: relaxed operations with the widest scope, as in PTX, or
        plain data, as in CUDA C++ (:mod:`warpsan.checks.orders`).
    watchers : sequence of AccessRecorder
        Recorders of the accesses at given instructions. A launch with recorders uses one thread.
    unwritten : sequence of Unwritten
        Arrays of ``args`` with unwritten bytes; a kernel that reads and uses these bytes is reported. All other arrays
        count as written.
    self_profile : bool
        Whether to measure the time that the simulator takes for each operation (:attr:`Report.self_profile`). Such a
        launch uses one thread.

    Returns
    -------
    Report

    Raises
    ------
    LaunchError
        If the entry, grid, block, an argument, check, numerics, shared memory size or number of workers is invalid.
    PtxSyntaxError, UnsupportedInstruction
        If the PTX is invalid, or has an instruction without a model; the exception has the line.
    IllegalAccess, Deadlock, StepLimit, KernelTrap
        If the kernel fails during execution.
    NotAlgebraic
        If the kernel executes an instruction without a meaning in a ring, with ``ring``.
    SimError
        If a worker process dies, or the engine lacks an instruction of the kernel with ``ring``.
    """
    options = Options(
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
        watchers=watchers,
        unwritten=unwritten,
        self_profile=self_profile,
    )
    text = ptx_text(ptx)
    return execute(text, resolve(entry, parse(text).entries, "entry"), grid, block, args, Arena(), options).report


def ptx_text(ptx: str | bytes) -> str:
    """PTX as text, without the trailing zeros of PTX in a binary."""
    return (ptx.decode() if isinstance(ptx, bytes) else ptx).rstrip("\0")


@dataclass(frozen=True)
class Executed:
    """A completed launch: its report, and the entry with all functions it calls.

    With requested places, the ``race`` check and a device, ``touched`` has the places of accesses to global memory.
    ``again`` returns the accesses to some of them: it repeats the launch in a copy of the initial memory.
    """

    report: Report
    module: PtxModule
    code: Entry
    geometry: Geometry
    touched: Touched | None = None
    again: Callable[[Indices], History] | None = None


def execute(
    text: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    arena: Arena,
    options: Options,
    *,
    placed: Mapping[str, tuple[str, int]] | None = None,
    accesses: Accesses = "none",
    prerequisites: Indices | None = None,
) -> Executed:
    """Run a launch in an arena, and copy results back to the caller's arrays; :func:`launch` with its memory as an
    argument.

    ``entry`` is the name in the PTX; ``placed`` has the addresses of variables that are in the arena already;
    ``accesses`` selects whether to record the places of accesses to global memory.
    """
    checks, cooperative, stopwatch = options.watched, options.cooperative, Stopwatch(options.self_profile)
    with stopwatch.phase("parse"):
        module = parse(text)
        code, program = linked(text, entry)
    geometry = shape_of(code, module.target, grid, block, options.cluster, options.dynamic_smem)
    taken = takes_parameter_addresses(code)
    if taken:  # before all allocations: 32 bits must hold such an address
        arena.place_parameters(max((param.offset + param.size for param in code.params), default=0))
    known = len(arena.extents)
    params = parameter_block(code, args, arena, options.names)
    if options.programmatic and prerequisites is None:
        prerequisites = np.array([(each.begin, each.end, 1) for each in arena.extents[known:]], np.int64).reshape(-1, 3)
    if taken:
        arena.fill_in(arena.parameters, params)
    workspace = arena.workspace() if cooperative else 0
    heap = arena.need_heap() if _uses_heap(code) else None
    track_unwritten_global = arena.follow(options.unwritten, track_unwritten_global="memory" in checks)
    symbols = place_variables(module, code, options.dynamic_smem, arena.parameters if taken else None, arena, placed)
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
    ctas = clusters_in_order(geometry, options.schedule, options.seed)
    setup = Setup(
        **(vars(options) | {"checks": checks, "max_steps": options.max_steps or _MAX_STEPS}),
        module=module,
        entry=code,
        program=program,
        geometry=geometry,
        symbols=symbols,
        params=params,
        workspace=workspace,
        heap=heap,
        chunks=[part.reshape(-1) for part in np.array_split(ctas, -(-len(ctas) // clusters_at_once))],
        prerequisites=prerequisites if options.programmatic else None,
        track_unwritten_global=track_unwritten_global,
        stopwatch=stopwatch,
    )
    from warpsan.engine.running import run_launch  # imports LLVM

    before, extents = arena.snapshot(), () if arena.memory is None else arena.space().extents
    try:
        run = run_launch(
            setup,
            arena,
            before,
            1 if options.watchers or options.self_profile else options.workers,
            places=accesses == "places",
        )
    except SimError:  # the extent of its writes is unknown
        arena.define_all()
        raise
    arena.copy_back(run.space)
    report = Report(
        run.log.hazards(),
        int(np.dot([block.size for block in program.blocks], run.tally.lanes)),
        int(run.tally.steps[0]),
        symbols.shared_bytes,
        counted(module, code, program, run.tally) if options.counters else None,
        tuple(run.printed),
        unwaited_copies(module, code, run.tally.unwaited) if "async" in checks else (),
        stopwatch.profile() if options.self_profile else None,
        tuple(block.first for block, lanes in zip(program.blocks, run.tally.lanes, strict=True) if not lanes),
        flops_of(code, program, run.tally),
    )
    touched = run.touched[0] if run.touched else None
    again = partial(_accesses_to, run.setup, before, extents) if touched and before[0] is not None else None
    return Executed(report, module, code, geometry, touched, again)


def _accesses_to(setup: Setup, before: Before, extents: Sequence[Extent], places: Indices) -> History:
    """Accesses of a completed launch to given places, from a repeated run in a copy of the initial memory."""
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
def linked(text: str, entry: str) -> tuple[Entry, Program]:
    """An entry with the functions it calls, and its basic blocks; cached by text."""
    with without_collector():
        code = link(parse(text), entry)
        return code, build_program(code)


def _clusters_at_once(geometry: Geometry, lanes: int) -> int:
    """Clusters per chunk of ``lanes`` lanes."""
    clusters = geometry.ctas // geometry.cluster_size
    alive = min(max(clusters * lanes // _CHUNKS_WANTED, _LANES_AT_LEAST), _LANES_AT_MOST)
    return min(clusters, max(1, alive // lanes))


def _check_memory(
    global_bytes: int, entry: Entry, program: Program, symbols: Symbols, lanes: int, ctas: int, checks: Sequence[str]
) -> None:
    """Check the estimated memory of a launch before any allocation.

    ``lanes`` and ``ctas`` are the maximum numbers alive at once. Hazard reports need three copies of global memory. The
    checks need twelve bytes per 16, twelve per granule, and more with strong accesses.

    Raises
    ------
    LaunchError
        If the estimate exceeds :data:`MEMORY_BUDGET`.
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
