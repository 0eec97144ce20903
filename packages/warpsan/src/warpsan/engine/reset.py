"""The state of a cluster before its first instruction: machine code."""

from __future__ import annotations

from warpsan.engine.clocks import begin_clocks
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    BARRIER_COUNT,
    CLUSTER_CTAID_X,
    CLUSTERID_X,
    CTAID_X,
    CTAID_Z,
    CTARANK,
    MOST_MBARRIERS,
    READY,
    TID_X,
    TID_Y,
    TID_Z,
    WARPID,
)
from warpsan.engine.memory import BarrierState, Warp
from warpsan.engine.tensor_memory import begin_tensor_memory
from warpsan.engine.watch.releases import begin_rows
from warpsan.engine.words import copy, fill, store32

__all__ = ["draw", "reset_cluster"]


def reset_cluster(context: Context, cluster: int) -> None:
    """Poison registers and memory, clear arrivals, and put all threads at the first block."""
    warps, ctas = context.warp_count, context.cta_count
    threads = context.threads
    size, template = context.register_bytes, context.template
    fill(context.shared, 0xFF, ctas * context.shared_stride)
    fill(context.local, 0xFF, 32 * ctas * warps * context.local_stride)
    fill(context.barriers, 0, BarrierState.byte_size * BARRIER_COUNT * ctas)
    for k in range(MOST_MBARRIERS * ctas if context.mbarriers != 0 else 0):
        context.mbarriers[k].valid = 0
    context.transfer_first = 0
    context.transfer_count = 0
    context.copies_overlap = 0
    context.captured_end = 0
    context.unfenced = 0
    context.doubled_count = 0
    for k in range(ctas // context.cluster_size):
        context.cluster_arrived[k] = 0
        context.cluster_phase[k] = 0
    context.clock = -context.steps_taken
    begin_clocks(context)
    begin_tensor_memory(context)
    begin_rows(context)
    positions = context.positions
    for cta in range(ctas if positions != 0 else 0):  # earlier CTAs do not run any more
        state = context.warps[warps * cta]
        if state.linear_cta >= 0:
            positions[state.linear_cta] = 0
    # Random numbers depend on the cluster, and not on the thread that runs it.
    context.draw = context.seed ^ context.ctas[cluster * ctas]
    for _ in range(4):
        draw(context, 1)
    for number in range(warps * ctas):
        cta, warp = number // warps, number % warps
        state = context.warps[number]
        here = min(32, threads - 32 * warp)
        live = (1 << here) - 1
        linear = context.ctas[cluster * ctas + cta]
        fill(state, 0, Warp.byte_size)
        state.cta = cta
        state.linear_cta = linear
        if linear < 0:  # fewer CTAs are left than may run together
            continue
        state.path_count = 1
        state.held_registers = context.registers_before
        state.live = live
        state.number = warp
        part = state.paths[0]
        part.block = context.start
        part.mask = live
        part.status = READY
        registers = context.registers + number * size
        copy(registers, template, size)
        if positions != 0:
            positions[linear] = cta + 1
        specials = context.specials
        for k in range(context.special_count):
            kind, row = specials[2 * k], specials[2 * k + 1]
            for lane in range(32):
                store32(registers + row + 4 * lane, special(context, kind, 32 * warp + lane, warp, cta, linear))


def draw(context: Context, many: int) -> int:
    """A random number below ``many``, by a linear congruential generator (Knuth's MMIX)."""
    value = context.draw * 6364136223846793005 + 1442695040888963407
    context.draw = value
    return (value >> 33 & 0x3FFFFFFF) % many


def special(context: Context, kind: int, thread: int, warp: int, cta: int, linear: int) -> int:
    """A special register of a thread (PTX ISA, "Special Registers")."""
    x, y = context.block_x, context.block_y
    if kind == TID_X:
        return thread % x
    if kind == TID_Y:
        return thread // x % y
    if kind == TID_Z:
        return thread // (x * y)
    if kind == WARPID:
        return warp
    rank = cta % (context.cluster_x * context.cluster_y * context.cluster_z)
    if kind == CTARANK:
        return rank
    across, down = context.grid_x, context.grid_y
    axis = kind
    if kind >= CTAID_X and kind <= CTAID_Z:
        axis = kind - CTAID_X
    elif kind >= CLUSTERID_X and kind <= CLUSTERID_X + 2:
        axis = kind - CLUSTERID_X
    else:
        across, down = context.cluster_x, context.cluster_y
        axis, linear = kind - CLUSTER_CTAID_X, rank
    value = linear % across
    if axis == 1:
        value = linear // across % down
    if axis == 2:
        value = linear // (across * down)
    if kind >= CLUSTERID_X and kind <= CLUSTERID_X + 2:
        size = context.cluster_x if axis == 0 else context.cluster_y if axis == 1 else context.cluster_z
        value = value // size
    return value
