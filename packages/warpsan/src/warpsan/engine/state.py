"""The memory of one thread's native code: registers, shared memory, waiting lanes and the data of the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from warpsan.analysis.tensor_memory import numbers_of_loads
from warpsan.checks.orders import SAME_GPU, communications, memory_order, strong_in_shared, synchronises
from warpsan.checks.shadow import granule_of
from warpsan.engine import layout, rules
from warpsan.engine.arrays import Array
from warpsan.engine.assembler import NotNative
from warpsan.engine.communication import (
    changes_maps,
    ctas_together,
    orders_blocks,
    orders_by_memory,
    reaches_all_blocks,
    relaxed_arrivals,
    relaxed_waits,
    units,
    updates_shared,
)
from warpsan.engine.context import Context
from warpsan.engine.decoded import Decoded
from warpsan.engine.host import Host
from warpsan.engine.lane_races import KINDS, MOST_MARKS, UPDATED
from warpsan.engine.layout import WARP
from warpsan.engine.maps import tensor_maps
from warpsan.engine.memory import (
    BarrierState,
    GlobalMark,
    HazardRow,
    LaneMark,
    Link,
    LinkList,
    MapFence,
    MapWords,
    MbarrierState,
    ProductInFlight,
    Reader,
    Row,
    TensorMark,
    TensorState,
    ThreadCopy,
    TransferEntry,
    Warp,
)
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
_MOST_MARKS_AFTER = 1 << 24
"""The most accesses to global memory, beside the last one of each kind and granule, that are kept."""
_MOST_MAP_FENCES = 1 << 12
_MOST_LINKS = 1 << 16
"""The most strong writes, and reads of them, that advice about races refers to."""
_CAPTURED = 2
"""Size of the buffer for data that bulk copies have read and not yet written, in multiples of all shared memory."""
_FIRST_TIME, _LAST_TIME = layout.FIRST_TIME, layout.LAST_TIME
_MOST_ROWS = 1 << 22
"""Most words of the rows with the order of a grid's warps: one for each warp of the grid and warp of a cluster."""
_MOST_ACTORS, _MOST_READERS = 1 << 20, 1 << 32
"""Most warps, their operations and mbarriers, times CTAs; most bytes of the array of their reads of shared memory."""
_PAGES = ("written", "read", "flying", "full", "reading", "tag", "generic", "owner", "others")
"""Fields of the context for each page of shared memory."""
_POOL = 1 << 23
"""Words of the pool of releases."""


class State:
    """A context (:mod:`~warpsan.engine.context`) and all memory that it refers to.

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
        Further fields of the context, which replace those of the launch.

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
        words: Mapping[str, int] | None = None,
    ) -> None:
        self.setup, self.space, self.decoded = setup, space, decoded
        self.reports = bool(words and "hazard_room" in words)
        self.alive: list[Any] = []
        self.marks = np.zeros((0, 0, 0), np.int64)
        """The words of the marks of global memory, if rows of hazards are kept [kinds, granules, words]."""
        self.context = Context(self._keep(np.zeros(Context.byte_size, np.uint8)))
        self.writers, self.updaters, self.readers, self.pages = (np.zeros(0, np.int64) for _ in range(4))
        self.host = Host(setup, space, self.context, decoded.host_calls)
        size, geometry = len(space.data), setup.geometry
        self.counted = Tally(*(setup.entry, setup.program, size, geometry.ctas, geometry.warps), traffic=setup.counters)
        self._fill(table, template)
        self._set({"ctas": self._keep(ctas), **(words or {})})

    def _set(self, words: Mapping[str, int]) -> None:
        """Assign to fields of the context."""
        for name, value in words.items():
            setattr(self.context, name, value)

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
        setup, decoded, geometry = self.setup, self.decoded, self.setup.geometry
        warps, ctas = geometry.warps, ctas_together(setup)
        clusters = ctas // geometry.cluster_size
        shared, local = setup.symbols.shared_bytes, setup.symbols.local_bytes
        shared_stride, local_stride = (-(-size // 16) * 16 for size in (shared, local))
        extents = np.array([(e.begin, e.end) for e in self.space.extents], dtype=np.int64)
        specials = special_rows(setup, decoded)
        copies = "copies" in units(setup.entry)
        words = {
            "table": self._keep(table),
            "records": self._keep(decoded.records),
            "record_count": len(decoded.records),
            "blocks": self._keep(decoded.blocks),
            "registers": self._room(decoded.register_bytes * warps * ctas),
            "register_bytes": decoded.register_bytes,
            "template": self._keep(template),
            "shared": self._room(shared_stride * ctas + 64),
            "shared_stride": shared_stride,
            "shared_limit": shared,
            "arena": int(self.space.data.ctypes.data),
            "extents": self._keep(extents),
            "extent_count": len(extents),
            "local": self._room(local_stride * WARP * warps * ctas + 64),
            "local_stride": local_stride,
            "local_limit": local,
            "warps": self._keep(np.zeros(Warp.byte_size * warps * ctas, np.uint8)),
            "warp_count": warps,
            "cta_count": ctas,
            "cluster_size": geometry.cluster_size,
            "cluster_arrived": self._keep(np.zeros(clusters, np.int64)),
            "cluster_phase": self._keep(np.zeros(clusters, np.int64)),
            "threads": geometry.threads,
            "specials": self._keep(specials),
            "special_count": len(specials),
            "start": setup.program.start,
            "most_steps": setup.max_steps,
            "time_limit": (1 << 63) - 1,  # without checks no times are kept
            "lanes_by_block": self._keep(self.counted.lanes),
            "warps_by_block": self._keep(self.counted.warps),
            "unwaited": self._keep(self.counted.unwaited),
            "barriers": self._keep(np.zeros(BarrierState.byte_size * layout.BARRIER_COUNT * ctas, np.uint8)),
            "scratch": self._room(layout.SCRATCH_BYTES, poisoned=True),
            **{name: self._room(8 * WARP) for name in ("places", "fault_offsets", "fault_widths")},
            "copies": self._room(ThreadCopy.byte_size * layout.MOST_COPIES * warps * ctas if copies else 0),
            "order": ORDERS[setup.schedule],
            "seed": setup.seed << 20 & (1 << 62) - 1,
            "early": int(setup.async_mode == "early"),
            "host": self.host.address,
            "read_map": self.host.map_reader,
            "stack": self._room(decoded.stack_bytes * warps * ctas),
            "stack_bytes": decoded.stack_bytes,
            "hazards": self._room(HazardRow.byte_size),
        }
        if setup.watchers:
            recorders = self.host.recorders
            words |= {"recorded": self._keep(recorders.marks)}
            words |= {"record_shared": recorders.shared, "record_line": recorders.line}
        words |= self._units()
        if setup.counters:
            words |= self._counters()
        if setup.checks:
            words |= self._shadows()
        if setup.track_unwritten_global and self.space.undefined is not None:
            words |= {"global_undefined": int(self.space.undefined.ctypes.data)}
        for first, dims in (
            ("grid", geometry.grid),
            ("block", geometry.block),
            ("cluster", geometry.cluster),
        ):
            words |= dict(zip((f"{first}_x", f"{first}_y", f"{first}_z"), dims, strict=True))
        self._set(words)

    def _units(self) -> dict[str, int]:
        """The memory of asynchronous instructions."""
        setup, ctas = self.setup, ctas_together(self.setup)
        before = registers_at_launch(setup.entry, setup.geometry)
        maps = np.array(tensor_maps(setup.params, self.space), np.int64).reshape(-1, MapWords.byte_size // 8)
        words = {
            "lists": self._keep(self.decoded.lists),
            "registers_before": before,
            "register_limit": min(REGISTER_FILE, before * setup.geometry.warps * WARP),
            "tensor_maps": self._keep(maps),
            "tensor_map_count": len(maps),
        }
        if self._is_asynchronous():  # also a wait for an mbarrier that no instruction initialises
            mbarriers = np.zeros(MbarrierState.byte_size * layout.MOST_MBARRIERS * ctas, np.uint8)
            words["mbarriers"] = self._keep(mbarriers)
        if not units(setup.entry).isdisjoint(("bulk", "tensor")):
            words["transfer_room"] = layout.MOST_TRANSFERS * ctas
            words["transfers"] = self._room(TransferEntry.byte_size * words["transfer_room"])
            size = _CAPTURED * ctas * self.setup.symbols.shared_bytes
            words |= {"captured": self._room(size), "captured_bytes": size}
        if "tensor" in units(setup.entry):
            words["tensor_memory"] = self._room(layout.TENSOR_BYTES * ctas)
            words["tensor_states"] = self._keep(np.zeros(TensorState.byte_size * ctas, np.uint8))
        if "products" in units(setup.entry):
            groups = -(-setup.geometry.warps * ctas // 4)
            words["products"] = self._room(ProductInFlight.byte_size * layout.MOST_PRODUCTS * groups)
        return words

    def _counters(self) -> dict[str, int]:
        """The counts for a profiler."""
        setup, tally = self.setup, self.counted
        return {
            "counting": 1,
            "sectors": self._keep(tally.sectors),
            "wavefronts": self._keep(tally.wavefronts),
            "touched": self._keep(tally.touched),
            "touched_bytes": tally.touched.shape[1],
            "copy_of_sector": self._keep(np.zeros(tally.touched.shape[1], np.int32)),
            "issued": self._keep(tally.issued),
            "by_warp": self._keep(tally.by_warp),
            "block_count": len(setup.program.blocks),
        }

    def _shadows(self) -> dict[str, int]:
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
        accessing, planes = (2 * warps + layout.MOST_MBARRIERS * ctas, 2 * warps) if apart else (warps, warps)
        tensor = "tensor" in units(entry)
        columns = accessing + 2 * warps if tensor else accessing
        fences = tensor and self._fences_tensor()
        # The third part is for global memory, and the last one for fences of tensor memory.
        parts = (3 if self.reports else 2) + fences
        actors = parts * columns if apart else columns
        if columns >= 1 << 16 or columns * ctas > _MOST_ACTORS or 4 * granules * ctas * planes > _MOST_READERS:
            raise NotNative("too many warps for the race check")
        strong = self._strong_in_shared()
        words = {
            "checked": 1,
            "strict": int("lanes" in self.setup.checks),
            "needs_fence": int("strict" in self.setup.checks),
            "flights_checked": int("async" in self.setup.checks),
            "values_count": int("values" in self.setup.checks),
            "time": _FIRST_TIME,
            "time_limit": _LAST_TIME,
            "actors": actors,
            "columns": columns,
            "shared_columns": accessing,
            **(self._tensor_shadows(warps, ctas, accessing, times) if tensor else {}),
            "committed": zeros(layout.MOST_COMMITS) if tensor else 0,
            "commit_vectors": zeros(layout.MOST_COMMITS * actors) if tensor else 0,
            **({"tensor_part": parts - 1, "tensor_after": times(columns * warps)} if fences else {}),
            "planes": planes,
            "arrived_by": zeros(WARP * warps * layout.BARRIER_COUNT, np.int32),
            "clocks": zeros(columns),
            "vectors": zeros(actors * warps),
            "floors": zeros(warps),
            "fenced_floors": zeros(warps),
            "last_read": times(planes),
            "landed": times(columns),
            "lanes_known": times(WARP * WARP * warps, np.int32) if self.reports else 0,
            "released": zeros(actors * layout.BARRIER_COUNT * ctas),
            "cluster_vectors": zeros(2 * actors * ctas // geometry.cluster_size),
            "mbarrier_vectors": times(4 * actors * layout.MOST_MBARRIERS * ctas if apart else 0),
            **(
                {each: times(WARP * warps) for each in ("lanes_arrived", "lanes_seen")}
                if apart or orders_by_memory(entry)
                else {}
            ),
            "fenced_at": zeros(2 * actors * warps) if relaxed_arrivals(entry) else 0,
            "observed_at": zeros(2 * actors * warps) if relaxed_waits(entry) else 0,
            **(
                {"updaters": times(granules * ctas * warps, np.int32)}
                if updates_shared(self.setup.entry) or "st" in strong
                else {}
            ),
            **({"watchers": times(granules * ctas * warps, np.int32)} if "ld" in strong else {}),
            "page_updated": times(pages * ctas) if updates_shared(self.setup.entry) or strong else 0,
            **({"shared_chains": zeros(granules * ctas)} if synchronises(entry) and strong else {}),
            "remote": zeros(columns * ctas) if ctas > 1 else 0,
            "granule_shift": shift,
            "granules": granules,
            "writers": times(granules * ctas),
            "write_masks": zeros(granules * ctas, np.int32),
            "partial_tags": times(granules * ctas),
            "partial_masks": zeros(granules * ctas, np.int32),
            "readers": times(granules * ctas * planes, np.int32),
            "flying": zeros(granules * ctas, np.int32),
            "written": zeros(written * ctas, np.uint8),
            "written_bytes": written,
            **({"origins": zeros(-(-shared // 16) * 16 * ctas, np.uint8)} if self.setup.tracking else {}),
            "pages": pages,
            **{f"page_{name}": times(pages * ctas) for name in _PAGES},
            "global_shift": global_shift,
            "global_writers": self._keep(self.writers),
            "global_readers": self._keep(self.readers),
            "global_write_masks": zeros(everything, np.int32),
            "global_read_masks": zeros(len(self.readers), np.int32),
            **self._strong_accesses(everything),
            "global_pages": self._keep(self.pages),
            "positions": zeros(geometry.ctas, np.int32),
            **self._prerequisites(warps),
        }
        words |= {"timed": self._keep(np.array(timed, np.int64)), "timed_count": len(timed)}
        if self.reports:
            words |= self._parties(
                granules * ctas, planes, columns, warps, updates="updaters" in words, watches="watchers" in words
            )
        return words

    def _tensor_shadows(self, warps: int, ctas: int, actors: int, times: Callable[..., int]) -> dict[str, int]:
        """The last accesses to tensor memory; its loads and stores are actors from this number on."""
        granules, loads = layout.TENSOR_GRANULES, numbers_of_loads(self.setup.entry)
        return {
            "tensor_actors": actors,
            "tensor_pending": self._keep(np.zeros(max(len(loads), 1) * warps, np.int64)),
            "tensor_load_count": len(loads),
            "tensor_waits_checked": int(self._needs("tcgen05.wait::ld")),
            "tensor_load_pcs": self._keep(np.array([*loads, 0], np.int32)),
            "tensor_marks": times(TensorMark.byte_size // 8 * granules * ctas),
            "tensor_reads": times(2 * warps * granules),
            "tensor_readers": self._keep(np.zeros(2 * warps * granules, np.int32)) if self.reports else 0,
        }

    def _fences_tensor(self) -> bool:
        """Whether fences of tensor memory are checked (:meth:`_needs`)."""
        return self._needs("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")

    def _needs(self, *names: str) -> bool:
        """Whether instructions are checked for that the manual demands and CUTLASS leaves out: fences of tensor memory,
        and waits for its loads. They are in a kernel that has some, or by the strict check."""
        return "strict" in self.setup.checks or any(
            each.text.startswith(names) for each in self.setup.entry.instructions
        )

    def _parties(
        self, granules: int, planes: int, columns: int, warps: int, *, updates: bool, watches: bool
    ) -> dict[str, int]:
        """The instructions and threads of accesses to shared memory; those of ``updates`` and strong reads
        (``watches``), if there are any."""
        places = self.decoded.places
        return {
            "pcs": self._keep(np.array([places[k] for k in range(len(places))], np.int32)),
            "write_parties": self._keep(np.zeros(granules, np.int64)),
            "flight_parties": self._keep(np.zeros(granules, np.int64)),
            "read_parties": self._keep(np.zeros(granules * planes, np.int32)),
            "lane_marks": self._keep(np.zeros(MOST_MARKS * LaneMark.byte_size, np.uint8)),
            "remote_parties": self._keep(np.zeros(columns * ctas_together(self.setup), np.int64)),
            **self._global_marks(),
            **self._map_fences(3 * columns),
            **self._advice(granules, warps),
            **{
                f"{name}_parties": self._keep(np.zeros(granules * warps, np.int32))
                for name, there in (("update", updates), ("watch", watches))
                if there
            },
        }

    def _global_marks(self) -> dict[str, int]:
        """The last accesses to global memory; of strong ones only if there are any."""
        kinds, granules = KINDS if communications(self.setup.entry) else UPDATED, len(self.writers)
        self.marks = np.zeros((kinds, granules, GlobalMark.byte_size // 8), np.int64)
        room = min(2 * granules, _MOST_MARKS_AFTER)
        return {
            "global_kinds": kinds,
            "global_granules": granules,
            "global_marks": self._keep(self.marks),
            "marks_after": self._room(room * GlobalMark.byte_size),
            "mark_room": room,
        }

    def _map_fences(self, actors: int) -> dict[str, int]:
        """The fences of tensor maps that the kernel changes."""
        if not changes_maps(self.setup.entry):
            return {}
        return {
            "map_fence_room": _MOST_MAP_FENCES,
            "map_fences": self._room(_MOST_MAP_FENCES * MapFence.byte_size),
            "map_vectors": self._room(_MOST_MAP_FENCES * 8 * actors),
        }

    def _advice(self, granules: int, warps: int) -> dict[str, int]:
        """The arrivals, waits and strong writes that advice about races needs."""
        entry, ctas = self.setup.entry, ctas_together(self.setup)
        words = {}
        if self._is_asynchronous() or ctas > 1:
            words["weak_arrivals"] = self._keep(np.zeros(rules.WEAK_ARRIVALS * ctas * ctas, np.int64))
            words["weak_waits"] = self._keep(np.zeros(warps, np.int64))
        words["readers_of_links"] = self._keep(np.zeros(Reader.byte_size * warps, np.uint8))
        if not orders_by_memory(entry):
            return words
        return words | {
            "link_room": _MOST_LINKS,
            "links": self._room(Link.byte_size * _MOST_LINKS),
            "seen_links": self._room(LinkList.byte_size * _MOST_LINKS),
            "shared_links": self._keep(np.zeros(granules, np.int64)) if self._strong_in_shared() else 0,
            "global_links": self._keep(np.zeros(len(self.writers), np.int64)) if orders_blocks(entry) else 0,
        }

    def _prerequisites(self, warps: int) -> dict[str, int]:
        """The accesses of the kernel before, which may still run."""
        rows = self.setup.prerequisites
        if rows is None:
            return {}
        return {
            "prerequisites": self._keep(np.ascontiguousarray(rows)),
            "prerequisite_count": len(rows),
            "waited": self._keep(np.zeros(warps, np.int64)),
        }

    def _is_asynchronous(self) -> bool:
        """Whether there are instructions for mbarriers, bulk copies or wgmma."""
        return bool(units(self.setup.entry) - {"copies"})

    def _strong_in_shared(self) -> set[str]:
        """The opcodes of strong accesses that may be to shared memory."""
        data = self.setup.volatile == "data"
        strong = strong_in_shared(self.setup.entry)
        return {each.opcode for each in strong if not (data and memory_order(each).volatile)}

    def _strong_accesses(self, granules: int) -> dict[str, int]:
        """The data of strong accesses to global memory: the last one of each granule, and the releases."""
        entry, geometry = self.setup.entry, self.setup.geometry
        strong = communications(entry)
        words = {}
        if any(each.opcode != "ld" for each in strong):
            self.updaters = np.zeros(granules, np.int64)
            words["global_strong"] = self._keep(self.updaters)
        if any(each.opcode == "ld" for each in strong):
            words["global_watched"] = self._keep(np.zeros(granules, np.int64))
        if not all(map(reaches_all_blocks, strong)):
            words["global_scopes"] = self._keep(np.full(granules, SAME_GPU, np.uint8))
        if not orders_by_memory(entry):
            return words
        words |= {
            "row_states": self._keep(np.zeros(Row.byte_size * geometry.warps * ctas_together(self.setup), np.uint8)),
            "row_pairs": self._keep(np.zeros(2 * (geometry.warps * ctas_together(self.setup)) ** 2, np.int64)),
            "pool": self._keep(np.zeros(_POOL, np.int64)),
            "pool_words": _POOL,
        }
        if not orders_blocks(entry):
            return words
        warps, everyone = geometry.warps * ctas_together(self.setup), geometry.warps * geometry.ctas
        if warps * everyone > _MOST_ROWS:
            raise NotNative("too many warps for their order through global memory")
        return words | {
            "chains": self._keep(np.zeros(granules, np.int64)),
            "grid_rows": self._keep(np.zeros(warps * everyone, np.int64)),
            "grid_warps": everyone,
        }
