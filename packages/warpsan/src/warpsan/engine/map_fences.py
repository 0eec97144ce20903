"""Fences of tensor maps that a kernel changes, in a run that reports hazards: machine code.

Copies of boxes read their tensor map in the tensor map proxy. A pair of fences orders a write in the generic proxy
(``tensormap.replace``, a store, ``tensormap.cp_fenceproxy``) before that read. The first is a
``fence.proxy.tensormap::generic.release`` after the write; the copy of ``tensormap.cp_fenceproxy`` is one. The second
is a ``fence.proxy.tensormap::generic.acquire`` on the 128 bytes of the map, after synchronisation with the first, and
before the use. The scope of each includes the thread of the other (PTX ISA, "Memory Consistency Model: Proxies",
"membar, fence", "tensormap.cp_fenceproxy").

Fences count for all lanes of their warp. Maps among a kernel's parameters are constant, and need none.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.clocks import begin_time, relation_together, vector_of
from warpsan.engine.context import Context
from warpsan.engine.global_races import has_kind, mark_of, resident, unordered_map_write
from warpsan.engine.hazards import add_hazard, hazard_row
from warpsan.engine.lane_races import UPDATED, WROTE
from warpsan.engine.layout import FULL, IN_GLOBAL, TENSOR_MAP
from warpsan.engine.memory import GlobalMark, MapFence, Record
from warpsan.engine.races import record_of_party
from warpsan.engine.rules import MAP_ACQUIRE_NARROW, MAP_NOT_ACQUIRED, MAP_NOT_RELEASED, MAP_RELEASE_NARROW
from warpsan.engine.tags import cta_of_tag, global_time, warp_of_tag
from warpsan.engine.words import copy, load64
from warpsan.host.memory import GLOBAL_BASE

__all__ = ["check_map", "fence_maps"]

_ASYNCHRONOUS = 32


def fence_maps(registers: int, record: Record, mask: int, context: Context) -> int:
    """Lanes execute a fence of the tensor map proxy: operands are the row and offset of the address of a map that it
    acquires, its scope, and whether it acquires. Returns a status."""
    if context.map_fence_room == 0:
        return 0
    if record.operands[3] == 0:
        return 0 if new_fence(context, record.operands[2], -1) != 0 else FULL
    row, before = registers + record.operands[0], -1
    for lane in range(32):
        place = load64(row + 8 * lane) + record.operands[1] - GLOBAL_BASE
        if mask >> lane & 1 and place != before:
            if new_fence(context, record.operands[2], place) == 0:
                return FULL
            before = place
    return 0


def allocated(context: Context) -> MapFence:
    """Another fence, or element of a list; 0 if there is no space."""
    if context.map_fence_count == context.map_fence_room:
        return MapFence(0)
    context.map_fence_count += 1
    return context.map_fences[context.map_fence_count - 1]


def new_fence(context: Context, scope: int, place: int) -> MapFence:
    """Keep a fence of the current warp: a release (-1), or an acquire of a place. Returns 0 if there is no space."""
    fence, warp = allocated(context), context.current
    if fence == 0:
        return fence
    fence.warp = warp
    fence.cta = context.warps[warp].linear_cta
    fence.cluster = context.cluster
    fence.time = context.clocks[warp]
    fence.scope = scope
    fence.place = place
    fence.releases = MapFence(0)
    fence.vector = context.map_vectors.at(context.actors * (context.map_fence_count - 1))
    copy(fence.vector, vector_of(context, warp), 8 * context.actors)
    fence.vector[warp] = context.clocks[warp]
    if place < 0:
        fence.before = context.map_releases
        context.map_releases = fence
    else:
        release = context.map_releases
        while release != 0:
            if comes_before_warp(context, release, warp):
                element = allocated(context)
                if element == 0:
                    return element
                element.target = release
                element.before = fence.releases
                fence.releases = element
            release = release.before
        fence.before = context.map_acquires
        context.map_acquires = fence
    begin_time(context, warp)
    return fence


def comes_before_warp(context: Context, fence: MapFence, warp: int) -> int:
    """Whether a fence comes before the next access of a warp."""
    if fence.cluster == context.cluster:
        return fence.warp == warp or fence.time <= vector_of(context, warp)[fence.warp]
    if context.grid_rows == 0:
        return 0
    warps = context.warp_count
    return fence.time <= context.grid_rows[context.grid_warps * warp + warps * fence.cta + fence.warp % warps]


def covers(context: Context, release: MapFence, mark: GlobalMark) -> int:
    """Whether the write of a mark comes before a release; only clusters release their own writes."""
    warps = context.warp_count
    for place in range(context.cta_count):
        if context.ctas[release.cluster * context.cta_count + place] == cta_of_tag(mark.tag) - 1:
            return global_time(mark.tag) <= release.vector[warps * place + warp_of_tag(mark.tag)]
    return 0


def check_map(context: Context, lane: int, begin: int, end: int) -> int:
    """A copy of a lane of the current warp reads the tensor map in a range. Returns a status.

    A run without space for rows ends if the launch has written there.
    """
    if context.global_marks == 0:
        return written_in_launch(context, begin, end)
    status = unordered_map_write(context, lane, begin, end)
    if status != 0:
        return status if status > 0 else 0
    shift = context.global_shift
    for turn in range(2):
        kind, last = UPDATED if turn else WROTE, GlobalMark(0)
        for k in range(begin >> shift, (end - 1 >> shift) + 1 if has_kind(context, kind) else begin >> shift):
            mark = mark_of(context, kind, k)
            if mark.tag == 0 or mark.info & _ASYNCHRONOUS or (last != 0 and mark.tag == last.tag):
                continue
            rule = lack(context, mark, begin)
            if rule != 0:
                return map_race(context, rule & 0xFF, lane, rule >> 8 & 15, rule >> 12, mark)
            last = mark
    return 0


def written_in_launch(context: Context, begin: int, end: int) -> int:
    """Whether a warp has written in a range of global memory, with the race check. Returns a status."""
    writers, strong, shift = context.global_writers, context.global_strong, context.global_shift
    for granule in range(begin >> shift, (end - 1 >> shift) + 1 if writers != 0 else 0):
        if writers[granule] != 0 or (strong != 0 and strong[granule] != 0):
            return TENSOR_MAP
    return 0


def lack(context: Context, mark: GlobalMark, begin: int) -> int:
    """The rule about fences between the write of a mark and the use of a map that is broken, with the relation of the
    threads from bit 8 on, and the scope of a fence from bit 12 on; 0 if none is."""
    warp, relation, place = context.current, SAME_GPU, resident(context, mark)
    if place != 0:
        relation = relation_together(context, place - 1, warp // context.warp_count)
    acquire, acquired, narrow, released, narrow_release = context.map_acquires, 0, -1, 0, -1
    while acquire != 0:
        if acquire.place == begin and comes_before_warp(context, acquire, warp):
            acquired = 1
            if acquire.scope < relation:
                narrow = acquire.scope if narrow < 0 else narrow
            else:
                element = acquire.releases
                released = released if released else 1
                while element != 0:
                    if covers(context, element.target, mark):
                        if element.target.scope >= relation:
                            return 0
                        released = 2
                        narrow_release = element.target.scope if narrow_release < 0 else narrow_release
                    element = element.before
        acquire = acquire.before
    if acquired == 0:
        return MAP_NOT_ACQUIRED | relation << 8
    if released == 0:
        return MAP_ACQUIRE_NARROW | relation << 8 | narrow << 12
    if released == 1:
        return MAP_NOT_RELEASED | relation << 8
    return MAP_RELEASE_NARROW | relation << 8 | narrow_release << 12


def map_race(context: Context, rule: int, lane: int, relation: int, scope: int, mark: GlobalMark) -> int:
    """A lane uses a map without a fence after the write of a mark. Returns a status."""
    row = hazard_row(context, context.current_record, rule, 1 << lane)
    row.space = IN_GLOBAL
    row.expected = relation
    row.actual = scope
    row.other_pc = context.pcs[record_of_party(mark.party)]
    row.other_cta = cta_of_tag(mark.tag) - 1
    row.other_warp = warp_of_tag(mark.tag)
    row.other_lanes = 0
    return add_hazard(context, row)
