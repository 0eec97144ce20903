"""Running a launch with native code: what it can run, and what it leaves to the reference engine."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from sdpalab.sim.checks.shadow import granule_of
from sdpalab.sim.chunks import Setup
from sdpalab.sim.errors import LaunchError, UnsupportedInstruction
from sdpalab.sim.ir import Instruction
from sdpalab.sim.limits import REGISTER_FILE, registers_at_launch
from sdpalab.sim.memory import Space
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import Constant, NotNative
from sdpalab.sim.native.atomics import NAMES
from sdpalab.sim.native.decoded import Decoded, decode
from sdpalab.sim.native.layout import WARP
from sdpalab.sim.native.library import library
from sdpalab.sim.parallel import communicates
from sdpalab.sim.program import Program
from sdpalab.sim.selection import Array
from sdpalab.sim.tally import Tally
from sdpalab.sim.tensor_map import DESCRIBED_BYTES, DESCRIPTOR_BYTES, PlacedMap
from sdpalab.sim.types import TYPES

__all__ = ["run"]

_MOST_STEPS = 20_000_000
_MOST_ORDERED = 2048
"""Blocks whose order is kept, where there are atomic operations: a word for each two of them."""
_FLOATS = {name for name, type_ in TYPES.items() if type_.is_float}
_ORDERS = {"lockstep": 0, "forward": 0, "reverse": 1}
_NATIVE_CHECKS = frozenset({"race", "memory", "async"})
"""Checks that native code makes, all together if a launch has one; with others it is left to the reference engine."""

_LOOP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_decoded: dict[tuple[int, bool], tuple[weakref.ref[Program], Decoded | str]] = {}


class Left(Exception):
    """The native engine leaves a launch to the reference engine; the text says why."""


def run(setup: Setup, space: Space, tally: Tally) -> str:
    """See :func:`sdpalab.sim.native.choice.run_native`."""
    try:
        _Run(setup, space, tally).run()
    except Left as why:
        return str(why)
    return ""


def _decode(setup: Setup) -> Decoded:
    """The launch's program, decoded once with the checks and once without."""
    key = id(setup.program), bool(setup.checks)
    known = _decoded.get(key)
    if known is None or known[0]() is not setup.program:
        try:
            result: Decoded | str = decode(setup.entry, setup.program, checked=bool(setup.checks))
        except (NotNative, UnsupportedInstruction, IndexError, ValueError) as why:
            result = f"{type(why).__name__}: {why}"
        known = weakref.ref(setup.program, lambda _: _decoded.pop(key, None)), result
        _decoded[key] = known
    if isinstance(known[1], str):
        raise Left(known[1])
    return known[1]


class _Run:
    """The arrays of one launch."""

    def __init__(self, setup: Setup, space: Space, tally: Tally) -> None:
        self.setup, self.space, self.tally = setup, space, tally
        self.kept: list[Any] = []
        if setup.counters or setup.schedule not in _ORDERS or not set(setup.checks) <= _NATIVE_CHECKS:
            raise Left("counters, a schedule or a check that is not native")
        if any(map(_waits_for_others, setup.entry.instructions)):
            raise Left("blocks that may wait for each other")
        if setup.workspace or setup.heap is not None or setup.tracking:
            raise Left("a cooperative launch, a heap, or undefined memory to follow")
        self.decoded = _decode(setup)

    def run(self) -> None:
        """Run the launch."""
        setup, decoded = self.setup, self.decoded
        code = library()
        table = np.array(code.operations(decoded.operations), dtype=np.int64)
        context = np.zeros(layout.CONTEXT_WORDS, dtype=np.int64)
        self._fill(context, table)
        ctas = np.concatenate(setup.chunks).astype(np.int64)
        context[layout.CTAS] = self._keep(ctas)
        clusters = len(ctas) // setup.geometry.cluster_size
        status = _LOOP(code.loop())(context.ctypes.data, 0, clusters)
        if status:
            raise Left(layout.WHY[status - layout.GIVE_UP])
        steps = int(context[layout.STEPS_TAKEN])
        if setup.max_steps < min(steps, _MOST_STEPS):
            raise Left("the limit on steps, which lanes of several warps share")
        self.tally.steps += steps
        self.tally.lanes += self.counted[0]
        self.tally.warps += self.counted[1]

    def _keep(self, array: Array) -> int:
        """The address of an array, which lives as long as the run."""
        self.kept.append(array)
        return int(array.ctypes.data)

    def _room(self, size: int) -> int:
        """The address of that many bytes, aligned to 64."""
        raw = np.empty(size + 64, dtype=np.uint8)
        return -(-self._keep(raw) // 64) * 64

    def _fill(self, context: Array, table: Array) -> None:
        """Everything that native code reads and writes."""
        setup, decoded, geometry = self.setup, self.decoded, self.setup.geometry
        warps, ctas = geometry.warps, geometry.cluster_size
        shared, local = setup.symbols.shared_bytes, setup.symbols.local_bytes
        shared_stride, local_stride = (-(-size // 16) * 16 for size in (shared, local))
        extents = np.array([(e.begin, e.end) for e in self.space.extents], dtype=np.int64)
        blocks = len(decoded.blocks)
        lanes, issued = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
        self.counted = lanes, issued
        specials = self._specials()
        copies = any(each.name.startswith("cp.async") for each in decoded.operations)
        words = {
            layout.TABLE: self._keep(table),
            layout.RECORDS: self._keep(decoded.records),
            layout.BLOCKS: self._keep(decoded.blocks),
            layout.REGISTERS: self._room(decoded.register_bytes * warps * ctas),
            layout.REGISTER_BYTES: decoded.register_bytes,
            layout.TEMPLATE: self._keep(self._template()),
            layout.SHARED: self._room(shared_stride * ctas + 64),
            layout.SHARED_STRIDE: shared_stride,
            layout.SHARED_LIMIT: shared,
            layout.GLOBAL: int(self.space.data.ctypes.data),
            layout.EXTENTS: self._keep(extents),
            layout.EXTENT_COUNT: len(extents),
            layout.LOCAL: self._room(local_stride * WARP * warps * ctas + 64),
            layout.LOCAL_STRIDE: local_stride,
            layout.LOCAL_LIMIT: local,
            layout.WARPS: self._keep(np.zeros(layout.WARP_WORDS * warps * ctas, np.int64)),
            layout.WARP_COUNT: warps,
            layout.CTA_COUNT: ctas,
            layout.THREADS: geometry.threads,
            layout.SPECIALS: self._keep(specials),
            layout.SPECIAL_COUNT: len(specials),
            layout.START: setup.program.start,
            layout.MOST_STEPS: setup.max_steps,
            layout.LANES_BY_BLOCK: self._keep(lanes),
            layout.WARPS_BY_BLOCK: self._keep(issued),
            layout.BARRIERS: self._keep(np.zeros(layout.BARRIER_WORDS * layout.BARRIER_COUNT * ctas, np.int64)),
            layout.SCRATCH: self._room(layout.SCRATCH_BYTES),
            layout.COPIES: self._room(8 * layout.COPY_WORDS * layout.MOST_COPIES * warps * ctas if copies else 0),
            layout.ORDER: _ORDERS[setup.schedule],
            layout.EARLY: int(setup.async_mode == "early"),
        }
        words |= self._units()
        if setup.checks:
            words |= self._shadows()
        for word, value in words.items():
            context[word] = value
        for first, dims in (
            (layout.GRID_X, geometry.grid),
            (layout.BLOCK_X, geometry.block),
            (layout.CLUSTER_X, geometry.cluster),
        ):
            context[first : first + 3] = dims

    def _units(self) -> dict[int, int]:
        """What asynchronous instructions work on."""
        setup, ctas = self.setup, self.setup.geometry.cluster_size
        names = {each.name.split(".")[0] for each in self.decoded.operations}
        before = registers_at_launch(setup.entry, setup.geometry)
        maps = np.array(_tensor_maps(setup.params), np.int64).reshape(-1, layout.MAP_WORDS)
        words = {
            layout.LISTS: self._keep(self.decoded.lists),
            layout.REGISTERS_BEFORE: before,
            layout.REGISTER_LIMIT: min(REGISTER_FILE, before * setup.geometry.warps * WARP),
            layout.TENSOR_MAPS: self._keep(maps),
            layout.TENSOR_MAP_COUNT: len(maps),
        }
        if "mbarrier" in names:
            mbarriers = np.zeros(layout.MBARRIER_WORDS * layout.MOST_MBARRIERS * ctas, np.int64)
            words[layout.MBARRIERS] = self._keep(mbarriers)
        if names & {"tensor", "st"}:
            words[layout.TRANSFERS] = self._room(8 * layout.TRANSFER_WORDS * layout.MOST_TRANSFERS)
        if "wgmma" in names:
            groups = -(-setup.geometry.warps * ctas // 4)
            words[layout.PRODUCTS] = self._room(8 * layout.PRODUCT_WORDS * layout.MOST_PRODUCTS * groups)
        return words

    def _shadows(self) -> dict[int, int]:
        """What the checks keep (:mod:`~sdpalab.sim.native.watch`)."""
        geometry, entry = self.setup.geometry, self.setup.entry
        warps, ctas = geometry.warps * geometry.cluster_size, geometry.cluster_size
        if geometry.ctas >= layout.SEVERAL or warps > 1 << 8:
            raise Left("too many blocks or warps for the race check")
        shared = self.setup.symbols.shared_bytes
        shift, global_shift = (granule_of(entry, (space,)).bit_length() - 1 for space in ("shared", "global"))
        pages = (shared >> layout.PAGE_SHIFT) + 2
        granules, written = pages << layout.PAGE_SHIFT - shift, pages << layout.PAGE_SHIFT - 3
        everything = (len(self.space.data) >> global_shift) + 16

        def zeros(count: int, dtype: Any = np.int64) -> int:
            return self._keep(np.zeros(count, dtype))

        return {
            layout.CHECKED: 1,
            layout.ACTORS: warps,
            layout.CLOCKS: zeros(warps),
            layout.VECTORS: zeros(warps * warps),
            layout.FLOORS: zeros(warps),
            layout.RELEASED: zeros(warps * layout.BARRIER_COUNT * ctas),
            layout.GRANULE_SHIFT: shift,
            layout.GRANULES: granules,
            layout.WRITERS: zeros(granules * ctas),
            layout.READERS: zeros(granules * ctas * warps, np.int32),
            layout.FLYING: zeros(granules * ctas, np.int32),
            layout.WRITTEN: zeros(written * ctas, np.uint8),
            layout.WRITTEN_BYTES: written,
            layout.PAGES: pages,
            **{word: zeros(pages * ctas) for word in range(layout.PAGE_WRITTEN, layout.PAGE_FULL + 1)},
            layout.GLOBAL_SHIFT: global_shift,
            layout.GLOBAL_WRITERS: zeros(everything),
            layout.GLOBAL_READERS: zeros((len(self.space.data) >> layout.READ_SHIFT) + 16),
            **(self._order_of_blocks(everything) if self._updates_global() else {}),
            layout.GLOBAL_PAGES: zeros((len(self.space.data) >> layout.GLOBAL_PAGE_SHIFT) + 1, np.uint8),
        }

    def _updates_global(self) -> bool:
        """Whether there is an atomic operation on global memory."""
        return any(each.name.startswith("atom.global") for each in self.decoded.operations)

    def _order_of_blocks(self, granules: int) -> dict[int, int]:
        """What atomic operations need: the last one on each granule, and which blocks come before which."""
        ctas = self.setup.geometry.ctas
        if ctas > _MOST_ORDERED:
            raise Left(f"more than {_MOST_ORDERED} blocks with atomic operations")
        strong, ordered = np.zeros(granules, np.int64), np.zeros(ctas * ctas, np.int64)
        return {
            layout.GLOBAL_STRONG: self._keep(strong),
            layout.ORDERED: self._keep(ordered),
            layout.GRID_CTAS: ctas,
        }

    # ---- what a launch gives to registers ---------------------------------------------------------------------------

    def _template(self) -> Array:
        """The registers of a warp at first: poison, predicates that are false, and the constants."""
        decoded = self.decoded
        template = np.full(decoded.register_bytes, 0xFF, dtype=np.uint8)
        template[: decoded.predicates] = 0
        for row in decoded.ones:
            template[row : row + 4] = 0xFF
        for constant, row in decoded.constants.items():
            raw = self._bytes(constant)
            if constant.bits == 1:
                template[row : row + 4] = 0xFF if raw[0] else 0
            else:
                template[row : row + WARP * len(raw)] = np.tile(np.frombuffer(raw, np.uint8), WARP)
        for name, row in decoded.specials.items():
            values = self._uniform_special(name)
            if values is not None:
                lanes = np.broadcast_to(values.astype(np.uint32), WARP)
                template[row : row + 4 * WARP] = np.ascontiguousarray(lanes).view(np.uint8)
        return template

    def _bytes(self, constant: Constant) -> bytes:
        """A constant's value."""
        size = max(1, constant.bits // 8)
        if constant.kind == "parameter":
            return bytes(self.setup.params[int(constant.value) : int(constant.value) + size])
        if constant.kind == "symbol":
            name = str(constant.value)
            if name not in self.setup.symbols.addresses:
                raise Left(f"{name} is not a variable")
            return (self.setup.symbols.addresses[name][1] & (1 << 8 * size) - 1).to_bytes(size, "little")
        return int(constant.value).to_bytes(size, "little")

    def _specials(self) -> Array:
        """(kind, row) of the special registers that depend on the warp, int32."""
        rows = [
            (_BY_WARP[name], row) for name, row in self.decoded.specials.items() if self._uniform_special(name) is None
        ]
        return np.array(rows, dtype=np.int32).reshape(-1, 2)

    def _uniform_special(self, name: str) -> Array | None:
        """The values of a special register that all warps share; None if they do not."""
        if name in _BY_WARP:
            return None
        geometry = self.setup.geometry
        lane = np.arange(WARP, dtype=np.uint32)
        bit = np.uint32(1) << lane
        clusters = [-(-many // size) for many, size in zip(geometry.grid, geometry.cluster, strict=True)]
        dims: dict[str, Sequence[int]] = {
            "%ntid": geometry.block,
            "%nctaid": geometry.grid,
            "%cluster_nctaid": geometry.cluster,
            "%nclusterid": clusters,
        }
        base, _, axis = name.partition(".")
        if base in dims and axis in ("x", "y", "z"):
            return np.array(dims[base]["xyz".index(axis)])
        values: dict[str, Any] = {
            "%laneid": lane,
            "%nwarpid": geometry.warps,
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - 1,
            "%lanemask_le": bit | (bit - 1),
            "%lanemask_ge": ~(bit - 1),
            "%lanemask_gt": ~(bit | (bit - 1)),
            "%dynamic_smem_size": geometry.dynamic_smem,
            "%cluster_nctarank": geometry.cluster_size,
            "%total_smem_size": self.setup.symbols.shared_bytes,
        }
        if name not in values:
            raise Left(f"special register {name}")
        return np.asarray(values[name])


def _waits_for_others(instruction: Instruction) -> bool:
    """Whether blocks may wait for each other with this instruction, or pass on what depends on their order.

    Atomic operations on integers alone may be made by one block after the other.
    """
    mods = set(instruction.mods)
    if instruction.opcode in ("atom", "red") and mods & set(NAMES) and not mods & _FLOATS:
        return False
    return communicates(instruction)


def _tensor_maps(params: bytes) -> list[Array]:
    """The tensor maps among the parameters, as native code reads them."""
    maps = []
    for begin in range(0, len(params) - DESCRIPTOR_BYTES + 1, 64):
        raw = params[begin : begin + DESCRIPTOR_BYTES]
        try:
            placed = PlacedMap.read(raw)
        except LaunchError:
            continue
        if placed is not None:
            maps.append(_tensor_map(placed, raw))
    return maps


def _tensor_map(placed: PlacedMap, raw: bytes) -> Array:
    tensor, words = placed.map, np.zeros(layout.MAP_WORDS, np.int64)
    described = raw[:DESCRIBED_BYTES].ljust(8 * layout.RAW_WORDS, b"\0")
    words[layout.MAP_RAW : layout.MAP_RAW + layout.RAW_WORDS] = np.frombuffer(described, np.int64)
    words[layout.MAP_BEGIN] = placed.begin
    words[layout.MAP_AXES], words[layout.MAP_ITEM] = len(tensor.dims), tensor.item
    words[layout.MAP_SWIZZLE] = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[tensor.swizzle]
    words[layout.MAP_BYTES] = tensor.box_bytes
    words[layout.MAP_FILL] = int.from_bytes(tensor.fill.ljust(8, b"\0"), "little", signed=True)
    for first, values in (
        (layout.MAP_DIMS, tensor.dims),
        (layout.MAP_STRIDES, tensor.strides),
        (layout.MAP_STEPS, tensor.steps),
        (layout.MAP_COUNTS, tensor.counts),
    ):
        words[first : first + len(values)] = values
    return words


_BY_WARP = {
    **{f"%tid.{axis}": layout.TID_X + k for k, axis in enumerate("xyz")},
    **{f"%ctaid.{axis}": layout.CTAID_X + k for k, axis in enumerate("xyz")},
    **{f"%clusterid.{axis}": layout.CLUSTERID_X + k for k, axis in enumerate("xyz")},
    **{f"%cluster_ctaid.{axis}": layout.CLUSTER_CTAID_X + k for k, axis in enumerate("xyz")},
    "%warpid": layout.WARPID,
    "%cluster_ctarank": layout.CTARANK,
}
