"""Launching a kernel: arguments to a parameter block, arrays to global memory, CTAs to chunks, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sdpalab.sim import isa as isa  # registers every opcode
from sdpalab.sim.checks.async_copy import AsyncCheck
from sdpalab.sim.checks.global_race import GlobalHistory, GlobalRaceCheck
from sdpalab.sim.checks.memory import MemoryCheck
from sdpalab.sim.checks.race import RaceCheck
from sdpalab.sim.checks.warp_race import WarpRaceCheck
from sdpalab.sim.counters import Counters, Counting
from sdpalab.sim.errors import LaunchError
from sdpalab.sim.hazards import Hazard, HazardLog
from sdpalab.sim.ir import Entry, Param, PtxModule, Symbol, TensorAddress, Variable
from sdpalab.sim.limits import check_cluster, check_geometry, shared_limit
from sdpalab.sim.machine import Dim3, Geometry, Machine, Observer, Symbols
from sdpalab.sim.memory import GLOBAL_BASE, Extent, Space
from sdpalab.sim.parser import parse
from sdpalab.sim.program import Program, build_program
from sdpalab.sim.run_queue import SCHEDULES
from sdpalab.sim.scheduler import Scheduler
from sdpalab.sim.selection import WARP, Array
from sdpalab.sim.tensor_map import DESCRIPTOR_BYTES, PlacedMap, TensorMap

__all__ = ["CHECKS", "Report", "launch"]

CHECKS = ("race", "memory", "async")
"""The checks that are on unless a launch says otherwise; there is also ``strict``: races between lanes of a warp."""

_LANES_AT_ONCE = 16384
_GUARD = 1 << 16
_ALIGN = 256
_MAX_STEPS = 20_000_000


@dataclass(frozen=True)
class Report:
    """What a launch did and what was found.

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
        What a profiler would count, if it was asked for.
    """

    hazards: list[Hazard]
    lane_instructions: int
    steps: int
    shared_bytes: int
    counters: Counters | None = None


def launch(
    ptx: str | bytes,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    dynamic_smem: int = 0,
    cluster: Sequence[int] = (1, 1, 1),
    checks: Sequence[str] = CHECKS,
    counters: bool = False,
    schedule: str = "lockstep",
    async_mode: str = "late",
    seed: int = 0,
    max_steps: int | None = None,
) -> Report:
    """Execute a kernel's PTX on this machine's CPU.

    Parameters
    ----------
    ptx : str or bytes
        PTX text.
    entry : str
        The entry's name as it stands in the PTX (mangled).
    grid, block : int or up to three ints
    args : sequence
        One for each parameter: a NumPy array is a device buffer, changed in place (contiguous, writable); an int or
        float takes the parameter's declared type; bytes fill a parameter passed by value, and so does a
        :class:`~sdpalab.sim.tensor_map.TensorMap`.
    dynamic_smem : int
        Bytes of dynamic shared memory of each CTA.
    cluster : up to three ints
        Blocks of a cluster; if it is (1, 1, 1), what the kernel was compiled for.
    checks : sequence of str
        Which checks watch (:data:`CHECKS`). Without ``memory``, an illegal access raises IllegalAccess.
    counters : bool
        Whether to count what a profiler would (:attr:`Report.counters`).
    schedule : {"lockstep", "forward", "reverse", "random"}
        All lanes of a chunk of CTAs together, or one warp of each CTA at a time: from the first, from the last, or
        drawn at every branch and barrier.
    async_mode : {"late", "early"}
        When asynchronous copies land: as late as the waits allow, their destination poisoned until then, or at once.
    seed : int
        For the random schedule.
    max_steps : int, optional
        Vector steps that one chunk of CTAs may take. Default: twenty million.

    Returns
    -------
    Report

    Raises
    ------
    LaunchError
        For a wrong entry, grid, block, argument, check or shared memory size.
    PtxSyntaxError, UnsupportedInstruction
        For PTX that cannot be read or is not modelled, with its line.
    IllegalAccess, Deadlock, StepLimit
        For what goes wrong while running.
    """
    _check_options(checks, schedule, async_mode)
    text = (ptx.decode() if isinstance(ptx, bytes) else ptx).rstrip("\0")
    module = parse(text)
    if entry not in module.entries:
        raise LaunchError(f"the PTX has no entry {entry!r}; it has: {', '.join(module.entries) or 'none'}")
    code = module.entries[entry]
    clusters, explicit = _cluster(code, _dim3("cluster", cluster))
    geometry = Geometry(_dim3("grid", grid), _dim3("block", block), clusters, dynamic_smem, explicit)
    check_geometry(geometry)
    check_cluster(geometry, module.target)
    _check_directives(code, geometry)
    arena = _Arena()
    params = _parameter_block(code, args, arena)
    symbols = _place_variables(module, code, dynamic_smem, params, arena)
    limit = shared_limit(module.target)
    if symbols.shared_bytes > limit:
        raise LaunchError(
            f"{entry} needs {symbols.shared_bytes} bytes of shared memory, "
            f"and a block on {module.target} has at most {limit}"
        )
    space = arena.build()
    program = _program(text, entry)
    log = HazardLog()
    history = GlobalHistory(code, len(space.data))
    counting = Counting(module, code, space) if counters else None
    ctas = _by_cluster(geometry)
    lanes = -(-geometry.threads // WARP) * WARP * ctas.shape[1]
    chunks = -(-len(ctas) // max(1, _LANES_AT_ONCE // lanes))
    landing = _landing(schedule, seed)
    schedulers: dict[int, tuple[Machine, Scheduler]] = {}
    with np.errstate(all="ignore"):
        for part in np.array_split(ctas, chunks):
            if len(part) not in schedulers:
                machine = Machine(
                    *(module, code, program, geometry, part.size, symbols, space, params),
                    async_mode=async_mode,
                    tensor_maps=arena.tensor_maps,
                    landing=landing,
                )
                machine.observers += _observers(machine, log, checks, history)
                if counting is not None:
                    machine.observers.append(counting.observer(machine))
                schedulers[len(part)] = machine, Scheduler(machine, max_steps or _MAX_STEPS, schedule, seed)
            machine, scheduler = schedulers[len(part)]
            machine.reset(part.reshape(-1))
            scheduler.run()
            for observer in machine.observers:
                observer.finish()
    arena.copy_back(space)
    return Report(
        log.hazards(),
        sum(scheduler.lane_instructions for _, scheduler in schedulers.values()),
        sum(scheduler.steps for _, scheduler in schedulers.values()),
        symbols.shared_bytes,
        counting.result([scheduler for _, scheduler in schedulers.values()]) if counting is not None else None,
    )


def _observers(machine: Machine, log: HazardLog, checks: Sequence[str], history: GlobalHistory) -> list[Observer]:
    """The observers of a machine; ``race`` goes first, so that what it finds is said by it."""
    observers: list[Observer] = []
    if "race" in checks:
        race = RaceCheck(machine, log, in_flight="async" not in checks)
        observers += [race, GlobalRaceCheck(machine, log, race.clocks, history)]
    if "async" in checks:
        observers.append(AsyncCheck(machine, log))
    if "memory" in checks:
        observers.append(MemoryCheck(machine, log))
    if "strict" in checks:
        observers.append(WarpRaceCheck(machine, log))
    return observers


@lru_cache(maxsize=64)
def _program(text: str, entry: str) -> Program:
    """The blocks of an entry, built once for each text."""
    return build_program(parse(text).entries[entry])


def _cluster(code: Entry, asked: Dim3) -> tuple[Dim3, bool]:
    """The cluster of a launch, and whether it has one (PTX ISA, "Cluster Dimension Directives")."""
    numbers = code.directives.get("reqnctapercluster")
    if numbers:
        required = _dim3("cluster", numbers)
        if asked not in ((1, 1, 1), required):
            raise LaunchError(f"{code.name} requires a cluster of {required} blocks, not {asked}")
        return required, True
    most = code.directives.get("maxclusterrank")
    if most and int(np.prod(asked)) > most[0]:
        raise LaunchError(f"{code.name} was compiled for at most {most[0]} blocks a cluster, not {asked}")
    if asked == (1, 1, 1) and "explicitcluster" in code.directives:
        raise LaunchError(f"{code.name} must be launched with a cluster (.explicitcluster)")
    return asked, asked != (1, 1, 1)


def _by_cluster(geometry: Geometry) -> Array:
    """Linear block indices [clusters, blocks of a cluster], blocks in the order of their rank."""
    x, y, z = geometry.cluster
    grid = np.arange(geometry.ctas).reshape(geometry.grid[::-1])
    apart = grid.reshape(grid.shape[0] // z, z, grid.shape[1] // y, y, grid.shape[2] // x, x)
    clusters: Array = apart.transpose(0, 2, 4, 1, 3, 5).reshape(-1, x * y * z)
    return clusters


def _landing(schedule: str, seed: int) -> Callable[[int], int]:
    """Which bulk copy lands first of those in flight: the oldest, or the newest under ``reverse``, or either."""
    draw = np.random.default_rng(seed)
    orders: dict[str, Callable[[int], int]] = {
        "reverse": lambda waiting: waiting - 1,
        "random": lambda waiting: int(draw.integers(2)) * (waiting - 1),
    }
    return orders.get(schedule, lambda waiting: 0)


def _check_options(checks: Sequence[str], schedule: str, async_mode: str) -> None:
    for check in checks:
        if check not in (*CHECKS, "strict"):
            raise LaunchError(f"check {check!r} is not modelled; there is: {', '.join(CHECKS)}, strict")
    if schedule not in SCHEDULES:
        raise LaunchError(f"schedule is one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if async_mode not in ("late", "early"):
        raise LaunchError(f"async_mode is 'late' or 'early', not {async_mode!r}")


def _dim3(name: str, size: int | Sequence[int]) -> Dim3:
    dims = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    if not 1 <= len(dims) <= 3 or not all(isinstance(dim, (int, np.integer)) for dim in dims):
        raise LaunchError(f"{name} takes one to three integers, not {size!r}")
    x, y, z = (*(int(dim) for dim in dims), 1, 1)[:3]
    return x, y, z


def _check_directives(code: Entry, geometry: Geometry) -> None:
    required = code.directives.get("reqntid")
    if required and (*required, 1, 1)[:3] != geometry.block:
        raise LaunchError(f"{code.name} requires a block of {required} threads, not {geometry.block}")
    most = code.directives.get("maxntid")
    if most and geometry.threads > int(np.prod(most)):
        raise LaunchError(
            f"{code.name} was compiled for at most {int(np.prod(most))} threads a block, not {geometry.threads}"
        )


class _Arena:
    """Global memory in the making: buffers one after the other, each with a guard zone behind it."""

    def __init__(self) -> None:
        self.end = _GUARD
        self.extents: list[Extent] = []
        self.contents: list[bytes | Array] = []
        self.arrays: list[tuple[Array, Extent]] = []
        self.tensor_maps: list[PlacedMap] = []

    def add(self, name: str, content: bytes | Array, size: int) -> int:
        """Place a buffer; its address."""
        extent = Extent(name, self.end, self.end + size)
        self.extents.append(extent)
        self.contents.append(content)
        self.end = -(-(extent.end + _GUARD) // _ALIGN) * _ALIGN
        return GLOBAL_BASE + extent.begin

    def add_array(self, name: str, array: Array) -> int:
        """Place an array, once if it is passed twice; its address."""
        for known, extent in self.arrays:
            if known.ctypes.data == array.ctypes.data and known.nbytes == array.nbytes:
                return GLOBAL_BASE + extent.begin
            if np.may_share_memory(known, array):
                raise LaunchError(f"argument {name} overlaps another argument in part; pass separate arrays")
        address = self.add(name, array.reshape(-1).view(np.uint8), array.nbytes)
        self.arrays.append((array, self.extents[-1]))
        return address

    def add_map(self, name: str, tensor: TensorMap) -> bytes:
        """Place a tensor map's array; the descriptor."""
        begin = self.add_array(name, _checked(name, tensor.array)) - GLOBAL_BASE
        self.tensor_maps.append(PlacedMap(tensor, begin))
        return tensor.descriptor(len(self.tensor_maps) - 1)

    def build(self) -> Space:
        """The global space with everything copied in."""
        space = Space("global", self.end, self.end, self.extents or [Extent("nothing", 0, 0)])
        for extent, content in zip(self.extents, self.contents, strict=True):
            place = space.data[extent.begin : extent.end]
            if isinstance(content, bytes):
                place[: len(content)] = np.frombuffer(content, dtype=np.uint8)
            else:
                place[:] = content
        return space

    def copy_back(self, space: Space) -> None:
        """Give the arrays what the kernel left in them."""
        for array, extent in self.arrays:
            array.reshape(-1).view(np.uint8)[:] = space.data[extent.begin : extent.end]


def _parameter_block(code: Entry, args: Sequence[Any], arena: _Arena) -> bytes:
    if len(args) != len(code.params):
        raise LaunchError(f"{code.name} takes {len(code.params)} arguments, and {len(args)} were given")
    last = code.params[-1] if code.params else None
    block = bytearray(last.offset + last.size if last else 0)
    for place, (param, value) in enumerate(zip(code.params, args, strict=True)):
        raw = _parameter(param, value, f"{place} ({param.name})", arena)
        block[param.offset : param.offset + len(raw)] = raw
    return bytes(block)


def _parameter(param: Param, value: Any, name: str, arena: _Arena) -> bytes:
    """One argument as the bytes of its parameter."""
    if isinstance(value, np.ndarray):
        if param.size != 8 or param.type.is_float:
            raise LaunchError(f"argument {name} is an array, and the parameter is a .{param.type.name}")
        return arena.add_array(f"argument {name}", _checked(name, value)).to_bytes(8, "little")
    if isinstance(value, TensorMap):
        if param.size != DESCRIPTOR_BYTES:
            raise LaunchError(f"argument {name} is a tensor map, and the parameter has {param.size} bytes")
        return arena.add_map(f"argument {name}", value)
    if isinstance(value, bytes):
        if len(value) != param.size:
            raise LaunchError(f"argument {name} has {len(value)} bytes, and the parameter has {param.size}")
        return value
    if param.size != param.type.bytes:
        raise LaunchError(f"argument {name} fills {param.size} bytes; pass bytes")
    if isinstance(value, (int, np.integer)) and not param.type.is_float:
        low, high = -(1 << param.type.bits - 1), (1 << param.type.bits) - 1
        if not low <= int(value) <= high:
            raise LaunchError(f"argument {name} is {value}, which does not fit a .{param.type.name}")
        return (int(value) & high).to_bytes(param.type.bytes, "little")
    if isinstance(value, (int, float, np.integer, np.floating)) and param.type.is_float:
        return np.asarray(float(value)).astype(param.type.dtype).tobytes()
    if isinstance(value, (float, np.floating)) and param.type.kind == "b" and param.type.bits in (32, 64):
        return np.asarray(float(value)).astype(f"f{param.type.bytes}").tobytes()
    raise LaunchError(f"argument {name} is a {type(value).__name__}, and the parameter is a .{param.type.name}")


def _checked(name: str, array: Array) -> Array:
    """An array that can be a device buffer."""
    if not array.flags.c_contiguous:
        raise LaunchError(f"argument {name} is an array that is not contiguous; pass numpy.ascontiguousarray of it")
    if not array.flags.writeable:
        raise LaunchError(f"argument {name} is a read-only array; pass a writable copy")
    return array


def _place_variables(module: PtxModule, code: Entry, dynamic_smem: int, params: bytes, arena: _Arena) -> Symbols:
    """Addresses of all variables that the entry can name. Dynamic shared memory begins behind the static."""
    used = _names_used(code)
    visible: dict[str, Variable] = {name: var for name, var in module.variables.items() if name in used}
    visible |= code.variables
    addresses: dict[str, tuple[str, int]] = {}
    tops = {"shared": 0, "local": 0}
    dynamic_align = 16
    for name, variable in visible.items():
        if variable.space in ("global", "const"):
            content = variable.data.ljust(variable.size, b"\0")
            addresses[name] = variable.space, arena.add(f"variable {name}", content, variable.size)
        elif variable.size == 0:
            dynamic_align = max(dynamic_align, variable.align)
        else:
            top = -(-tops[variable.space] // variable.align) * variable.align
            addresses[name] = variable.space, top
            tops[variable.space] = top + variable.size
    start = -(-tops["shared"] // dynamic_align) * dynamic_align
    for name, variable in visible.items():
        if variable.space == "shared" and variable.size == 0:
            addresses[name] = "shared", start
    if used & {param.name for param in code.params}:
        block = arena.add("the parameters", params, len(params))
        addresses |= {param.name: ("global", block + param.offset) for param in code.params}
    shared = start + dynamic_smem if dynamic_smem else tops["shared"]
    return Symbols(addresses, shared, tops["local"])


def _names_used(code: Entry) -> set[str]:
    """Variables by name, and the parameters whose address is taken: a load of a parameter does not need one."""
    names: set[str] = set()
    taking = (each for each in code.instructions if each.opcode != "ld" or "param" not in each.mods)
    stack: list[Any] = [operand for instruction in taking for operand in instruction.operands]
    while stack:
        operand = stack.pop()
        if isinstance(operand, Symbol):
            names.add(operand.name)
        if isinstance(operand, TensorAddress):
            stack.append(operand.map)
        stack += getattr(operand, "items", ())
        if getattr(operand, "base", None) is not None:
            stack.append(operand.base)
    return names
