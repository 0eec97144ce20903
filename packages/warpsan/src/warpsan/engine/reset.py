"""The state of a cluster before its first instruction: machine code."""

from __future__ import annotations

from warpsan.engine.clocks import begin_clocks
from warpsan.engine.layout import (
    BARRIER_COUNT,
    BARRIER_WORDS,
    BARRIERS,
    BLOCK_X,
    BLOCK_Y,
    CAPTURED_END,
    CLOCK,
    CLUSTER_ARRIVED,
    CLUSTER_CTAID_X,
    CLUSTER_PHASE,
    CLUSTER_X,
    CLUSTER_Y,
    CLUSTER_Z,
    CLUSTERID_X,
    CTA_COUNT,
    CTAID_X,
    CTAID_Z,
    CTARANK,
    CTAS,
    DRAW,
    FIRST_PART,
    GRID_X,
    GRID_Y,
    HELD_REGISTERS,
    LIVE,
    LOCAL,
    LOCAL_STRIDE,
    MB_VALID,
    MBARRIER_WORDS,
    MBARRIERS,
    MOST_MBARRIERS,
    PART_BLOCK,
    PART_MASK,
    PART_STATUS,
    PARTS,
    POSITIONS,
    RANKS,
    READY,
    REGISTER_BYTES,
    REGISTERS,
    REGISTERS_BEFORE,
    SEED,
    SHARED,
    SHARED_STRIDE,
    SPECIAL_COUNT,
    SPECIALS,
    START,
    STEPS_TAKEN,
    TEMPLATE,
    THREADS,
    TID_X,
    TID_Y,
    TID_Z,
    TRANSFER_COUNT,
    TRANSFER_FIRST,
    UNFENCED,
    WARP_COUNT,
    WARP_CTA,
    WARP_LINEAR,
    WARP_NUMBER,
    WARP_WORDS,
    WARPID,
    WARPS,
)
from warpsan.engine.watch.releases import begin_rows
from warpsan.engine.words import copy, fill, load32, load64, store32, store64

__all__ = ["draw", "reset_cluster"]


def reset_cluster(context: int, cluster: int) -> None:
    """Poison registers and memory, clear arrivals, and put all threads at the first block."""
    warps, ctas = load64(context + 8 * WARP_COUNT), load64(context + 8 * CTA_COUNT)
    threads = load64(context + 8 * THREADS)
    size, template = load64(context + 8 * REGISTER_BYTES), load64(context + 8 * TEMPLATE)
    fill(load64(context + 8 * SHARED), 0xFF, ctas * load64(context + 8 * SHARED_STRIDE))
    fill(load64(context + 8 * LOCAL), 0xFF, 32 * ctas * warps * load64(context + 8 * LOCAL_STRIDE))
    fill(load64(context + 8 * BARRIERS), 0, 8 * BARRIER_WORDS * BARRIER_COUNT * ctas)
    for k in range(MOST_MBARRIERS * ctas if load64(context + 8 * MBARRIERS) != 0 else 0):
        store64(load64(context + 8 * MBARRIERS) + 8 * (MBARRIER_WORDS * k + MB_VALID), 0)
    store64(context + 8 * TRANSFER_FIRST, 0)
    store64(context + 8 * TRANSFER_COUNT, 0)
    store64(context + 8 * CAPTURED_END, 0)
    store64(context + 8 * UNFENCED, 0)
    for k in range(ctas // load64(context + 8 * RANKS)):
        store64(load64(context + 8 * CLUSTER_ARRIVED) + 8 * k, 0)
        store64(load64(context + 8 * CLUSTER_PHASE) + 8 * k, 0)
    store64(context + 8 * CLOCK, -load64(context + 8 * STEPS_TAKEN))
    begin_clocks(context)
    begin_rows(context)
    positions = load64(context + 8 * POSITIONS)
    for cta in range(ctas if positions != 0 else 0):  # earlier CTAs do not run any more
        state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * warps * cta
        if load64(state + 8 * WARP_LINEAR) >= 0:
            store32(positions + 4 * load64(state + 8 * WARP_LINEAR), 0)
    # Random numbers depend on the cluster, and not on the thread that runs it.
    store64(context + 8 * DRAW, load64(context + 8 * SEED) ^ load64(load64(context + 8 * CTAS) + 8 * cluster * ctas))
    for _ in range(4):
        draw(context, 1)
    for number in range(warps * ctas):
        cta, warp = number // warps, number % warps
        state = load64(context + 8 * WARPS) + 8 * WARP_WORDS * number
        here = min(32, threads - 32 * warp)
        live = (1 << here) - 1
        linear = load64(load64(context + 8 * CTAS) + 8 * (cluster * ctas + cta))
        fill(state, 0, 8 * FIRST_PART)
        store64(state + 8 * WARP_CTA, cta)
        store64(state + 8 * WARP_LINEAR, linear)
        if linear < 0:  # fewer CTAs are left than may run together
            continue
        store64(state + 8 * PARTS, 1)
        store64(state + 8 * HELD_REGISTERS, load64(context + 8 * REGISTERS_BEFORE))
        store64(state + 8 * LIVE, live)
        store64(state + 8 * WARP_NUMBER, warp)
        part = state + 8 * FIRST_PART
        store64(part + 8 * PART_BLOCK, load64(context + 8 * START))
        store64(part + 8 * PART_MASK, live)
        store64(part + 8 * PART_STATUS, READY)
        registers = load64(context + 8 * REGISTERS) + number * size
        copy(registers, template, size)
        if positions != 0:
            store32(positions + 4 * linear, cta + 1)
        specials = load64(context + 8 * SPECIALS)
        for k in range(load64(context + 8 * SPECIAL_COUNT)):
            kind, row = load32(specials + 8 * k), load32(specials + 8 * k + 4)
            for lane in range(32):
                store32(registers + row + 4 * lane, special(context, kind, 32 * warp + lane, warp, cta, linear))


def draw(context: int, many: int) -> int:
    """A random number below ``many``, by a linear congruential generator (Knuth's MMIX)."""
    value = load64(context + 8 * DRAW) * 6364136223846793005 + 1442695040888963407
    store64(context + 8 * DRAW, value)
    return (value >> 33 & 0x3FFFFFFF) % many


def special(context: int, kind: int, thread: int, warp: int, cta: int, linear: int) -> int:
    """A special register of a thread (PTX ISA, "Special Registers")."""
    x, y = load64(context + 8 * BLOCK_X), load64(context + 8 * BLOCK_Y)
    if kind == TID_X:
        return thread % x
    if kind == TID_Y:
        return thread // x % y
    if kind == TID_Z:
        return thread // (x * y)
    if kind == WARPID:
        return warp
    rank = cta % (load64(context + 8 * CLUSTER_X) * load64(context + 8 * CLUSTER_Y) * load64(context + 8 * CLUSTER_Z))
    if kind == CTARANK:
        return rank
    across, down = load64(context + 8 * GRID_X), load64(context + 8 * GRID_Y)
    axis = kind
    if kind >= CTAID_X and kind <= CTAID_Z:
        axis = kind - CTAID_X
    elif kind >= CLUSTERID_X and kind <= CLUSTERID_X + 2:
        axis = kind - CLUSTERID_X
    else:
        across, down = load64(context + 8 * CLUSTER_X), load64(context + 8 * CLUSTER_Y)
        axis, linear = kind - CLUSTER_CTAID_X, rank
    value = linear % across
    if axis == 1:
        value = linear // across % down
    if axis == 2:
        value = linear // (across * down)
    if kind >= CLUSTERID_X and kind <= CLUSTERID_X + 2:
        value = value // load64(context + 8 * (CLUSTER_X + axis))
    return value
