"""The memory of one thread's native code: registers, shared memory, waiting lanes and the data of the checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from warpsan.checks.orders import SAME_GPU, communications
from warpsan.checks.shadow import granule_of
from warpsan.engine import layout
from warpsan.engine.assembler import NotNative
from warpsan.engine.communication import (
    ctas_together,
    orders_blocks,
    reaches_all_blocks,
    relaxed_arrivals,
    relaxed_waits,
)
from warpsan.engine.decoded import Decoded
from warpsan.engine.host import Host
from warpsan.engine.layout import WARP
from warpsan.engine.maps import tensor_maps
from warpsan.engine.selection import Array
from warpsan.engine.values import special_rows
from warpsan.host.limits import REGISTER_FILE, registers_at_launch
from warpsan.host.memory import POISON, Space
from warpsan.host.setup import Setup
from warpsan.profile.tally import Tally

__all__ = ["ORDERS", "State"]

ORDERS = {
    "lockstep": layout.FORWARD,
    "forward": layout.FORWARD,
    "reverse": layout.BACKWARD,
    "random": layout.DRAWN,
}
"""The order of a cluster's warps under each schedule."""
_QUEUED = (
    *("tensor.", "bulk.", "st.async", "mbarrier.copies"),
    *("red.shared::cluster.async", "red.shared::cluster.bulk"),
)
"""Prefixes of the names of operations that stay in flight like bulk copies."""
_UNITS = ("mbarrier.", "wgmma", "fence.proxy", *_QUEUED)
"""Prefixes of the names of all operations of asynchronous units."""
_CAPTURED = 2
"""Size of the buffer for data that bulk copies have read and not yet written, in multiples of all shared memory."""
_FIRST_TIME, _LAST_TIME = layout.FIRST_TIME, layout.LAST_TIME
_MOST_ROWS = 1 << 22
"""Most words of the rows with the order of a grid's warps: one for each warp of the grid and warp of a cluster."""
_MOST_ACTORS, _MOST_READERS = 1 << 20, 1 << 32
"""Most warps, their operations and mbarriers, times CTAs; most bytes of the array of their reads of shared memory."""
_POOL = 1 << 23
"""Words of the pool of releases."""


class State:
    """A context (:mod:`~warpsan.engine.layout`) and all memory that it refers to.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory, which all threads share.
    decoded : Decoded
    table : ndarray of int64
        Addresses of the operations.
    template : ndarray of uint8
        The initial registers of a warp.
    ctas : ndarray of int64
        Linear indices of the launch's CTAs, by cluster.
    words : dict, optional
        Further words of the context, which replace those of the launch.

    Attributes
    ----------
    counted : Tally
        The counts of this thread.
    host : Host
        Handles calls of Python.
    writers, updaters, readers, pages : ndarray
        With checks, the shadows of global memory: of each granule, of each granule for strong writes and atomic
        operations (empty without any), of each 16 bytes, and whether a page has been written.

    Raises
    ------
    NotNative
        If the checks cannot handle the number of blocks or warps.
    """

    def __init__(
        self,
        setup: Setup,
        space: Space,
        decoded: Decoded,
        table: Array,
        template: Array,
        ctas: Array,
        words: Mapping[int, int] | None = None,
    ) -> None:
        self.setup, self.space, self.decoded = setup, space, decoded
        self.alive: list[Any] = []
        self.context = np.zeros(layout.CONTEXT_WORDS, dtype=np.int64)
        self.writers, self.updaters, self.readers, self.pages = (np.zeros(0, np.int64) for _ in range(4))
        self.host = Host(setup, space, self.context, decoded.host_calls)
        size, geometry = len(space.data), setup.geometry
        self.counted = Tally(*(setup.entry, setup.program, size, geometry.ctas, geometry.warps), traffic=setup.counters)
        self._fill(table, template)
        self.context[layout.CTAS] = self._keep(ctas)
        for word, value in (words or {}).items():
            self.context[word] = value

    def _keep(self, array: Array) -> int:
        """The address of an array, which is kept alive during the run."""
        self.alive.append(array)
        return int(array.ctypes.data)

    def _room(self, size: int, *, poisoned: bool = False) -> int:
        """The address of that many bytes, aligned to 64."""
        raw = np.full(size + 64, POISON, np.uint8) if poisoned else np.empty(size + 64, np.uint8)
        return -(-self._keep(raw) // 64) * 64

    def _fill(self, table: Array, template: Array) -> None:
        """All memory that native code reads and writes."""
        setup, decoded, geometry, context = self.setup, self.decoded, self.setup.geometry, self.context
        warps, ctas = geometry.warps, ctas_together(setup)
        clusters = ctas // geometry.cluster_size
        shared, local = setup.symbols.shared_bytes, setup.symbols.local_bytes
        shared_stride, local_stride = (-(-size // 16) * 16 for size in (shared, local))
        extents = np.array([(e.begin, e.end) for e in self.space.extents], dtype=np.int64)
        specials = special_rows(setup, decoded)
        copies = any(each.name.startswith("cp.async") for each in decoded.operations)
        words = {
            layout.TABLE: self._keep(table),
            layout.RECORDS: self._keep(decoded.records),
            layout.RECORD_COUNT: len(decoded.records),
            layout.BLOCKS: self._keep(decoded.blocks),
            layout.REGISTERS: self._room(decoded.register_bytes * warps * ctas),
            layout.REGISTER_BYTES: decoded.register_bytes,
            layout.TEMPLATE: self._keep(template),
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
            layout.RANKS: geometry.cluster_size,
            layout.CLUSTER_ARRIVED: self._keep(np.zeros(clusters, np.int64)),
            layout.CLUSTER_PHASE: self._keep(np.zeros(clusters, np.int64)),
            layout.THREADS: geometry.threads,
            layout.SPECIALS: self._keep(specials),
            layout.SPECIAL_COUNT: len(specials),
            layout.START: setup.program.start,
            layout.MOST_STEPS: setup.max_steps,
            layout.TIME_LIMIT: (1 << 63) - 1,  # without checks no times are kept
            layout.LANES_BY_BLOCK: self._keep(self.counted.lanes),
            layout.WARPS_BY_BLOCK: self._keep(self.counted.warps),
            layout.UNWAITED: self._keep(self.counted.unwaited),
            layout.BARRIERS: self._keep(np.zeros(layout.BARRIER_WORDS * layout.BARRIER_COUNT * ctas, np.int64)),
            layout.SCRATCH: self._room(layout.SCRATCH_BYTES, poisoned=True),
            layout.COPIES: self._room(8 * layout.COPY_WORDS * layout.MOST_COPIES * warps * ctas if copies else 0),
            layout.ORDER: ORDERS[setup.schedule],
            layout.SEED: setup.seed << 20 & (1 << 62) - 1,
            layout.EARLY: int(setup.async_mode == "early"),
            layout.HOST: self.host.address,
            layout.READ_MAP: self.host.map_reader,
            layout.STACK: self._room(decoded.stack_bytes * warps * ctas),
            layout.STACK_BYTES: decoded.stack_bytes,
        }
        if setup.watchers:
            recorders = self.host.recorders
            words |= {layout.RECORDED: self._keep(recorders.marks)}
            words |= {layout.RECORD_SHARED: recorders.shared, layout.RECORD_LINE: recorders.line}
        words |= self._units()
        if setup.counters:
            words |= self._counters()
        if setup.checks:
            words |= self._shadows()
        if setup.looks and self.space.undefined is not None:
            words |= {layout.GLOBAL_UNDEFINED: int(self.space.undefined.ctypes.data)}
        for word, value in words.items():
            context[word] = value
        for first, dims in (
            (layout.GRID_X, geometry.grid),
            (layout.BLOCK_X, geometry.block),
            (layout.CLUSTER_X, geometry.cluster),
        ):
            context[first : first + 3] = dims

    def _units(self) -> dict[int, int]:
        """The memory of asynchronous instructions."""
        setup, ctas = self.setup, ctas_together(self.setup)
        names = {each.name.split(".")[0] for each in self.decoded.operations}
        before = registers_at_launch(setup.entry, setup.geometry)
        maps = np.array(tensor_maps(setup.params, self.space), np.int64).reshape(-1, layout.MAP_WORDS)
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
        if any(each.name.startswith(_QUEUED) for each in self.decoded.operations):
            words[layout.TRANSFER_ROOM] = layout.MOST_TRANSFERS * ctas
            words[layout.TRANSFERS] = self._room(8 * layout.TRANSFER_WORDS * words[layout.TRANSFER_ROOM])
            size = _CAPTURED * ctas * self.setup.symbols.shared_bytes
            words |= {layout.CAPTURED: self._room(size), layout.CAPTURED_BYTES: size}
        if "wgmma" in names:
            groups = -(-setup.geometry.warps * ctas // 4)
            words[layout.PRODUCTS] = self._room(8 * layout.PRODUCT_WORDS * layout.MOST_PRODUCTS * groups)
        return words

    def _counters(self) -> dict[int, int]:
        """The counts for a profiler."""
        setup, tally = self.setup, self.counted
        return {
            layout.COUNTING: 1,
            layout.SECTORS: self._keep(tally.sectors),
            layout.WAVEFRONTS: self._keep(tally.wavefronts),
            layout.TOUCHED: self._keep(tally.touched),
            layout.TOUCHED_BYTES: tally.touched.shape[1],
            layout.COPY_OF_SECTOR: self._keep(np.zeros(tally.touched.shape[1], np.int32)),
            layout.ISSUED: self._keep(tally.issued),
            layout.BY_WARP: self._keep(tally.by_warp),
            layout.BLOCK_COUNT: len(setup.program.blocks),
        }

    def _shadows(self) -> dict[int, int]:
        """The data of the checks (:mod:`~warpsan.engine.watch`)."""
        geometry, entry = self.setup.geometry, self.setup.entry
        ctas = ctas_together(self.setup)
        warps = geometry.warps * ctas
        if geometry.ctas >= layout.SEVERAL:
            raise NotNative("too many blocks for the race check")
        shared = self.setup.symbols.shared_bytes
        shift, global_shift = (granule_of(entry, (space,)).bit_length() - 1 for space in ("shared", "global"))
        pages = (shared >> layout.PAGE_SHIFT) + 2
        granules, written = pages << layout.PAGE_SHIFT - shift, pages << layout.PAGE_SHIFT - 3
        pages_of_all = (len(self.space.data) >> layout.GLOBAL_PAGE_SHIFT) + 1
        everything = pages_of_all << layout.GLOBAL_PAGE_SHIFT - global_shift
        self.writers = np.zeros(everything, np.int64)
        self.readers = np.zeros(pages_of_all << layout.GLOBAL_PAGE_SHIFT - layout.READ_SHIFT, np.int64)
        self.pages = np.zeros(pages_of_all, np.uint8)

        timed: list[tuple[int, int]] = []

        def zeros(count: int, dtype: Any = np.int64) -> int:
            return self._keep(np.zeros(count, dtype))

        def times(count: int, dtype: Any = np.int64) -> int:
            """Allocate memory for times of the running cluster's actors, which a restart of the clock clears."""
            array = np.zeros(count, dtype)
            timed.append((self._keep(array), array.nbytes))
            return timed[-1][0]

        # With asynchronous units, the operations of each warp and those that signal each mbarrier are actors too, and a
        # vector has a second part, for accesses that have passed a proxy fence.
        apart = self._is_asynchronous()
        columns, planes = (2 * warps + layout.MOST_MBARRIERS * ctas, 2 * warps) if apart else (warps, warps)
        actors = 2 * columns if apart else columns
        if columns >= 1 << 16 or columns * ctas > _MOST_ACTORS or 4 * granules * ctas * planes > _MOST_READERS:
            raise NotNative("too many warps for the race check")
        words = {
            layout.CHECKED: 1,
            layout.STRICT: int("lanes" in self.setup.checks),
            layout.NEEDS_FENCE: int("strict" in self.setup.checks),
            layout.TIME: _FIRST_TIME,
            layout.TIME_LIMIT: _LAST_TIME,
            layout.ACTORS: actors,
            layout.COLUMNS: columns,
            layout.PLANES: planes,
            layout.CLOCKS: zeros(columns),
            layout.VECTORS: zeros(actors * warps),
            layout.FLOORS: zeros(warps),
            layout.FENCED_FLOORS: zeros(warps),
            layout.LAST_READ: times(planes),
            layout.RELEASED: zeros(actors * layout.BARRIER_COUNT * ctas),
            layout.CLUSTER_VECTORS: zeros(2 * actors * ctas // geometry.cluster_size),
            layout.MBARRIER_VECTORS: times(4 * actors * layout.MOST_MBARRIERS * ctas if apart else 0),
            **(
                {each: times(WARP * warps) for each in (layout.LANES_ARRIVED, layout.LANES_SEEN)}
                if apart or orders_blocks(entry)
                else {}
            ),
            layout.FENCED_AT: zeros(2 * actors * warps) if relaxed_arrivals(entry) else 0,
            layout.OBSERVED_AT: zeros(2 * actors * warps) if relaxed_waits(entry) else 0,
            **(
                {layout.UPDATERS: times(granules * ctas * warps, np.int32), layout.PAGE_UPDATED: times(pages * ctas)}
                if self._updates("shared")
                else {}
            ),
            layout.REMOTE: zeros(columns * ctas) if ctas > 1 else 0,
            layout.GRANULE_SHIFT: shift,
            layout.GRANULES: granules,
            layout.WRITERS: times(granules * ctas),
            layout.WRITE_MASKS: zeros(granules * ctas, np.int32),
            layout.PARTIAL_TAGS: times(granules * ctas),
            layout.PARTIAL_MASKS: zeros(granules * ctas, np.int32),
            layout.READERS: times(granules * ctas * planes, np.int32),
            layout.FLYING: zeros(granules * ctas, np.int32),
            layout.WRITTEN: zeros(written * ctas, np.uint8),
            layout.WRITTEN_BYTES: written,
            **({layout.ORIGINS: zeros(-(-shared // 16) * 16 * ctas, np.uint8)} if self.setup.tracking else {}),
            layout.PAGES: pages,
            **{word: times(pages * ctas) for word in range(layout.PAGE_WRITTEN, layout.PAGE_FULL + 1)},
            **{word: times(pages * ctas) for word in range(layout.PAGE_READING, layout.PAGE_OTHERS + 1)},
            layout.GLOBAL_SHIFT: global_shift,
            layout.GLOBAL_WRITERS: self._keep(self.writers),
            layout.GLOBAL_READERS: self._keep(self.readers),
            layout.GLOBAL_WRITE_MASKS: zeros(everything, np.int32),
            layout.GLOBAL_READ_MASKS: zeros(len(self.readers), np.int32),
            **self._strong_accesses(everything),
            layout.GLOBAL_PAGES: self._keep(self.pages),
            layout.POSITIONS: zeros(geometry.ctas, np.int32),
            **self._prerequisites(warps),
        }
        words |= {layout.TIMED: self._keep(np.array(timed, np.int64)), layout.TIMED_COUNT: len(timed)}
        return words

    def _prerequisites(self, warps: int) -> dict[int, int]:
        """The accesses of the kernel before, which may still run."""
        rows = self.setup.prerequisites
        if rows is None:
            return {}
        return {
            layout.PREREQUISITES: self._keep(np.ascontiguousarray(rows)),
            layout.PREREQUISITE_COUNT: len(rows),
            layout.WAITED: self._keep(np.zeros(warps, np.int64)),
        }

    def _is_asynchronous(self) -> bool:
        """Whether there are instructions for mbarriers, bulk copies or wgmma."""
        ends = (layout.END_TRY_WAIT, layout.END_WGMMA, layout.END_WGMMA_WAIT)
        units = any(each.name.startswith(_UNITS) for each in self.decoded.operations)
        return units or bool(np.isin(self.decoded.blocks[:, layout.END], ends).any())

    def _updates(self, space: str) -> bool:
        """Whether there is an atomic operation on a space, or on a generic address."""
        spaces = (space, f"{space}::cluster", "generic")
        beginnings = tuple(f"{kind}.{each}." for kind in ("atom", "red") for each in spaces)
        return any(each.name.startswith(beginnings) for each in self.decoded.operations)

    def _strong_accesses(self, granules: int) -> dict[int, int]:
        """The data of strong accesses to global memory: the last one of each granule, and the releases."""
        entry, geometry = self.setup.entry, self.setup.geometry
        strong = communications(entry)
        words = {}
        if any(each.opcode != "ld" for each in strong):
            self.updaters = np.zeros(granules, np.int64)
            words[layout.GLOBAL_STRONG] = self._keep(self.updaters)
        if any(each.opcode == "ld" for each in strong):
            words[layout.GLOBAL_WATCHED] = self._keep(np.zeros(granules, np.int64))
        if not all(map(reaches_all_blocks, strong)):
            words[layout.GLOBAL_SCOPES] = self._keep(np.full(granules, SAME_GPU, np.uint8))
        if not orders_blocks(entry):
            return words
        warps, everyone = geometry.warps * ctas_together(self.setup), geometry.warps * geometry.ctas
        if warps * everyone > _MOST_ROWS:
            raise NotNative("too many warps for their order through global memory")
        return words | {
            layout.CHAINS: self._keep(np.zeros(granules, np.int64)),
            layout.GRID_ROWS: self._keep(np.zeros(warps * everyone, np.int64)),
            layout.GRID_WARPS: everyone,
            layout.ROW_STATES: self._keep(np.zeros(layout.ROW_WORDS * warps, np.int64)),
            layout.ROW_PAIRS: self._keep(np.zeros(2 * warps * warps, np.int64)),
            layout.POOL: self._keep(np.zeros(_POOL, np.int64)),
            layout.POOL_WORDS: _POOL,
        }
