"""Mistakes that people make in warp-specialised kernels, each planted in a copy of ``hopper`` and its headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdpalab import Config, Problem
from sdpalab.kernels.hopper import HOPPER

__all__ = ["BUGS", "CLUSTER", "Bug"]

TWO = HOPPER.default_config.but(BLOCK_M=128, BLOCK_N=64, NUM_STAGES=2, SPLIT=1, SCHEDULE="tiles")
CLUSTER = TWO.but(BLOCK_M=64, SPLIT=2)
RAGGED = Problem(1, 1, 100, 64, seq_kv=64 * 5 - 7)
"""One block with both consumers ragged, every stage filled again, the last tile of keys ragged."""
SHARED = Problem(1, 1, 40, 64, seq_kv=313)
"""With two stages, rank 0 of a cluster comes back to its first stage, and rank 1 to a ragged tile."""
ONE_KEY = Problem(1, 1, 33, 64, seq_kv=1)
"""Rank 1 has no keys."""

LOOP = "mainloop/warpgroups.cuh"
RING = "mainloop/tile_ring.cuh"
PRODUCTS = "tile/warpgroup.cuh"
STORE = "epilogue/warpgroup_store.cuh"
MERGE = "epilogue/cluster_merge.cuh"


@dataclass(frozen=True)
class Bug:
    """Edits of the sources, and what they must lead to.

    Attributes
    ----------
    kind : str
        A kind of hazard, ``deadlock``, or ``wrong``: an output that is wrong by more than rounding.
    edits : sequence of (str, str, str)
        File, what is replaced in it, which it has once, and by what.
    problem, config
        Where the bug shows.
    """

    name: str
    kind: str
    edits: Sequence[tuple[str, str, str]]
    problem: Problem = RAGGED
    config: Config = TWO


def _bug(name: str, kind: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, kind, edits)


def _cluster(name: str, kind: str, *edits: tuple[str, str, str], problem: Problem = SHARED) -> Bug:
    return Bug(name, kind, edits, problem, CLUSTER)


_ANNOUNCED = "ptx::mbarrier_arrive_expect_tx(full, TILE_BYTES);"
_RELEASE_V = "            ring.release(before, V);\n"
_WAIT_SCORES = "            ptx::wgmma_wait_group<1>();\n"
_WAIT_PRODUCT = """\
            ptx::wgmma_wait_group<0>();
            products.hold_output();
            products.hold_weights();
"""
_JOIN = "            products.join_output(rescale);\n"
_COMMIT_SCORES = "k + column_step<KEYS>(d));\n        }\n        ptx::wgmma_commit_group();\n"
_STORE_ROW = "block_address<PANEL_COLUMNS>(lane_smem, d / BLOCKS, d % BLOCKS)"
_CLUSTER_BARRIER = (
    "            ptx::barrier_cluster_arrive_relaxed();\n            ptx::barrier_cluster_wait_acquire();\n"
)
_O_THERE = "ptx::smem_address(&partial.o[0][lane]), rank)"

BUGS = (
    # The ring.
    _bug("fewer bytes announced than come", "mbarrier", (RING, _ANNOUNCED, _ANNOUNCED.replace("BYTES", "BYTES / 2"))),
    _bug("more bytes announced than come", "deadlock", (RING, _ANNOUNCED, _ANNOUNCED.replace("BYTES", "BYTES + 16"))),
    _bug(
        "the producer waits for the wrong phase",
        "deadlock",
        (RING, "operand], at.parity ^ 1);", "operand], at.parity);"),
    ),
    _bug(
        "the producer waits for nobody",
        "deadlock",
        (RING, "        mbarrier_wait(barriers.empty[at.stage][operand], at.parity ^ 1);\n", ""),
    ),
    _bug("the parity never flips", "deadlock", ("mainloop/ring.cuh", "        parity ^= stage == 0;\n", "")),
    _bug(
        "a consumer waits for the first phase",
        "async",
        (RING, "barriers.full[at.stage][operand], at.parity", "barriers.full[at.stage][operand], 0"),
    ),
    _bug("no wait for Q", "race", (LOOP, "        mbarrier_wait(ring.barriers.q_full, q_parity);\n", "")),
    _bug(
        "no wait for K",
        "race",
        (LOOP, "            ring.wait_full(at, K);\n            wait_for_turn", "            wait_for_turn"),
    ),
    _bug("no wait for the first V", "race", (LOOP, "        ring.wait_full(at, V);\n\n#pragma", "\n#pragma")),
    _bug("no wait for V", "race", (LOOP, "            ring.wait_full(at, V);\n\n", "\n")),
    _bug(
        "V is released while a product reads it",
        "async",
        (LOOP, _RELEASE_V, ""),
        (LOOP, _WAIT_SCORES, _RELEASE_V + _WAIT_SCORES),
    ),
    _bug("every thread releases", "deadlock", (RING, "        if (threadIdx.x % WARPGROUP == 0) {\n", "        {\n")),
    _bug("the mbarriers are used before all know of them", "race", (LOOP, "            __syncthreads();\n", "")),
    _bug(
        "a turn is for one warpgroup",
        "barrier",
        (RING, "bar_sync(FIRST_TURN + consumer, 2 *", "bar_sync(FIRST_TURN + consumer,"),
    ),
    # wgmma.
    _bug(
        "no wgmma.fence in the loop",
        "wgmma",
        (LOOP, "            ptx::wgmma_fence();\n            products", "            products"),
    ),
    _bug(
        "the scores are not committed",
        "wgmma",
        (PRODUCTS, _COMMIT_SCORES, _COMMIT_SCORES.replace("        ptx::wgmma_commit_group();\n", "")),
    ),
    _bug("the wait leaves the scores in flight", "wgmma", (LOOP, _WAIT_SCORES, _WAIT_SCORES.replace("1", "2"))),
    _bug("the wait leaves the product in flight", "wgmma", (LOOP, _WAIT_PRODUCT, _WAIT_PRODUCT.replace("<0>", "<1>"))),
    _bug(
        "no wait for the last product",
        "wgmma",
        (LOOP, "        ptx::wgmma_wait_group<0>();\n        products.hold_output();\n", ""),
    ),
    _bug("the output is rescaled in flight", "wgmma", (LOOP, _WAIT_PRODUCT, ""), (LOOP, _JOIN, _JOIN + _WAIT_PRODUCT)),
    # What only the numbers tell.
    _bug("K's descriptor does not advance", "wrong", (PRODUCTS, "k + column_step<KEYS>(d)", "k")),
    _bug(
        "V's descriptor advances along its columns", "wrong", (PRODUCTS, "v + row_step(n)", "v + column_step<KEYS>(n)")
    ),
    _bug(
        "the output is stored without the swizzle",
        "wrong",
        (STORE, _STORE_ROW, "lane_smem + d / BLOCKS * 2048 + d % BLOCKS * 32"),
    ),
    _bug("the zeros past the last key count", "wrong", (LOOP, "weigh(tile >= unmasked, keys", "weigh(false, keys")),
    _bug("the output is not rescaled", "wrong", (LOOP, _JOIN, "")),
    # The epilogue.
    _bug("no fence.proxy.async before the store", "proxy", (STORE, "    ptx::fence_proxy_async_shared_cta();\n", "")),
    _bug(
        "nobody waits for the store",
        "async",
        (LOOP, "        wait_stored_rows_read(lane);  // the block's", "        //"),
    ),
    _bug("the store is not committed", "async", (STORE, "        ptx::cp_async_bulk_commit_group();\n", "")),
    # The cluster.
    _cluster(
        "no wait for the partial results", "race", (MERGE, "        cluster_mbarrier_wait(shared.partials_full);\n", "")
    ),
    _cluster("mbarriers without a fence", "race", (LOOP, "        ptx::fence_mbarrier_init_release_cluster();\n", "")),
    _cluster("no barrier of the cluster", "race", (LOOP, _CLUSTER_BARRIER, "            __syncthreads();\n")),
    _cluster("sent to oneself", "wrong", (MERGE, _O_THERE, _O_THERE.replace("rank", "rank ^ 1"))),
    _cluster("one place for both warps", "race", (MERGE, "place = warp % KEPT_WARPS;", "place = 0;")),
    _cluster(
        "the other half under its own maximum",
        "wrong",
        (MERGE, "softmax_weight(other_max[half], softmax[half].max", "softmax_weight(other_max[half], other_max[half]"),
    ),
    _cluster(
        "fewer bytes announced than are sent", "mbarrier", (MERGE, "sizeof(partials));", "sizeof(partials) / 2);")
    ),
    _cluster(
        "Q is loaded where nobody waits for it",
        "race",
        (LOOP, "        if (work.tiles > 0) {  // otherwise", "        {  // otherwise"),
        problem=ONE_KEY,
    ),
    _cluster(
        "gone without keys",
        "deadlock",
        (
            LOOP,
            "            if (!Epilogue::gather",
            "            if (work.tiles == 0) return;\n            if (!Epilogue::gather",
        ),
        problem=ONE_KEY,
    ),
)
