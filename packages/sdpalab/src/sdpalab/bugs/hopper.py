"""Typical bugs of warp-specialised kernels, planted in ``hopper`` and its headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.source import in_source
from sdpalab.kernels.kernel import Knob
from sdpalab.problem import Problem

__all__ = ["BUGS"]

_TWO: Mapping[str, Knob] = {
    "BLOCK_M": 128,
    "BLOCK_N": 64,
    "NUM_STAGES": 2,
    "SPLIT": 1,
    "KEY_GROUPS": 1,
    "SCHEDULE": "tiles",
}
_ONE_BLOCK = {**_TWO, "SCHEDULE": "persistent", "NUM_CTAS": 1}
_CLUSTER = {**_TWO, "BLOCK_M": 64, "SPLIT": 2}
_GROUPS = {**_TWO, "BLOCK_M": 64, "KEY_GROUPS": 2, "NUM_STAGES": 4}
_PACKED = {**_TWO, "BLOCK_M": 64, "PACK_GQA": 4}
_RAGGED = Problem(1, 1, 100, 64, seq_kv=64 * 5 - 7)
"""One block with both consumers ragged, every stage refilled, and the last tile of keys ragged."""
_SHARED = Problem(1, 1, 40, 64, seq_kv=313)
"""With two stages, rank 0 of a cluster reuses its first stage, and rank 1 has a ragged tile."""
_LONG = Problem(1, 1, 300, 64, seq_kv=64 * 3 - 7)
"""Three tiles of queries with a ragged last one; one block computes all of them."""
_ONE_KEY = Problem(1, 1, 33, 64, seq_kv=1)
"""Rank 1 has no keys."""
_GROUPED = Problem(1, 8, 40, 64, kv_heads=2, seq_kv=150)
"""Three tiles of 16 queries of four heads per K/V head, the last one ragged."""
_ONE_TILE = _GROUPED.with_(seq_q=16)
_PADDED = Problem(2, 1, 40, 64, seq_kv=150, kv_lengths=(150, 83))
"""One length that cuts the last tile of keys, and one that cuts an earlier tile."""


def _bug(
    what: str,
    hazard: str,
    *replacements: tuple[str, str],
    problem: Problem = _RAGGED,
    knobs: Mapping[str, Knob] = _TWO,
    harmless: Problem | None = None,
) -> tuple[Bug, ...]:
    """One bug; without a ``hazard``, only the output reveals it."""
    family = Family.SYNCHRONISATION if hazard else Family.CUDA
    return in_source(
        "hopper", what, *replacements, problem=problem, harmless=harmless, hazard=hazard, family=family, knobs=knobs
    )


_cluster = partial(_bug, problem=_SHARED, knobs=_CLUSTER)
_groups = partial(_bug, problem=_SHARED, knobs=_GROUPS)
_packed = partial(_bug, problem=_GROUPED, knobs=_PACKED)
_next_tile = partial(_bug, problem=_LONG, knobs=_ONE_BLOCK, harmless=_LONG.with_(seq_q=100))

_ANNOUNCED = "ptx::mbarrier_arrive_expect_tx(full, TILE_BYTES);"
_WAIT_V = "        ring.wait_full(at, V, products.never());\n"
_RELEASE_V = "        ring.release(before, V);\n"
_WAIT_SCORES = "        ptx::wgmma_wait_group<1>();\n"
_WAIT_PRODUCT = """\
        ptx::wgmma_wait_group<0>();
        products.hold_output();
        products.hold_weights();
"""
_JOIN = "        products.join_output(rescale);\n"
_COMMIT_SCORES = "k + column_step<KEYS>(d));\n        }\n        ptx::wgmma_commit_group();\n"
_STORE_ROW = "block_address<PANEL_COLUMNS>(lane_smem, d / BLOCKS, d % BLOCKS)"
_CLUSTER_BARRIER = (
    "            ptx::barrier_cluster_arrive_relaxed();\n            ptx::barrier_cluster_wait_acquire();\n"
)
_WAIT_BEFORE = "        ptx::griddepcontrol_wait();\n        ptx::fence_mbarrier"
_NO_WAIT_BEFORE = (_WAIT_BEFORE, "        ptx::fence_mbarrier")
_FIRST_COPIES = "            load_round(tensors, work, tile, at, ring, seq_kv, false);\n        }\n"
_CONSUMERS_BEGIN = "        ptx::setmaxnreg_inc<Budget::CONSUMER>();\n"
_ROW_SEES = "visible_keys(row / HEADS, seq_kv) - before"
_NEXT_ROW_SEES = "visible_keys((row + 8) / HEADS, seq_kv) - before"
_O_THERE = "ptx::smem_address(&partial.o[0][lane]), rank)"

BUGS: tuple[Bug, ...] = (
    # The ring.
    *_bug("fewer bytes announced than come", "mbarrier", (_ANNOUNCED, _ANNOUNCED.replace("BYTES", "BYTES / 2"))),
    *_bug("more bytes announced than come", "deadlock", (_ANNOUNCED, _ANNOUNCED.replace("BYTES", "BYTES + 16"))),
    *_bug("the producer waits for the wrong phase", "deadlock", ("operand], at.parity ^ 1);", "operand], at.parity);")),
    *_bug(
        "no wait for an empty stage",
        "deadlock",
        ("        mbarrier_wait(barriers.empty[at.stage][operand], at.parity ^ 1);\n", ""),
    ),
    *_bug("the parity never flips", "deadlock", ("        parity ^= wraps;\n", "")),
    *_bug(
        "a consumer waits for the first phase",
        "async",
        ("<FULL>(stage_barriers(at), at.parity", "<FULL>(stage_barriers(at), 0"),
        ("<FULL + EACH>(stage_barriers(at), at.parity", "<FULL + EACH>(stage_barriers(at), 0"),
    ),
    *_bug(
        "no wait for Q",
        "race",
        (
            "        mbarrier_wait(ring.barriers.q_full, q_parity);\n        ring.wait_full(at, K);\n",
            "        ring.wait_full(at, K);\n",
        ),
    ),
    *_bug(
        "no wait for K",
        "race",
        ("            ring.wait_full(at, K);\n            wait_for_turn", "            wait_for_turn"),
    ),
    *_bug(
        "no wait for the first V",
        "race",
        ("            ring.wait_full(at, V);\n        }\n#pragma", "        }\n#pragma"),
    ),
    *_bug("no wait for V", "race", (_WAIT_V, "")),
    *_bug(
        "V is released while a product reads it", "async", (_RELEASE_V, ""), (_WAIT_SCORES, _RELEASE_V + _WAIT_SCORES)
    ),
    *_bug("every thread releases", "deadlock", ("        if (threadIdx.x % WARPGROUP == 0) {\n", "        {\n")),
    *_bug("no barrier after the mbarriers are made", "race", ("            __syncthreads();\n", "")),
    *_bug(
        "a turn is for one warpgroup",
        "barrier",
        ("bar_sync(FIRST_TURN + consumer, 2 *", "bar_sync(FIRST_TURN + consumer,"),
    ),
    # wgmma.
    *_bug(
        "no wgmma.fence in the loop",
        "wgmma",
        ("        ptx::wgmma_fence();\n        if (!ISSUED)", "        if (!ISSUED)"),
    ),
    *_bug(
        "the scores are not committed",
        "wgmma",
        (_COMMIT_SCORES, _COMMIT_SCORES.replace("        ptx::wgmma_commit_group();\n", "")),
    ),
    *_bug("the wait leaves the scores in flight", "wgmma", (_WAIT_SCORES, _WAIT_SCORES.replace("1", "2"))),
    *_bug("the wait leaves the product in flight", "wgmma", (_WAIT_PRODUCT, _WAIT_PRODUCT.replace("<0>", "<1>"))),
    *_bug(
        "no wait for the last product",
        "wgmma",
        ("  // beside the product\n        ptx::wgmma_wait_group<0>();\n        products.hold_output();\n", "\n"),
    ),
    *_bug("the output is rescaled in flight", "wgmma", (_WAIT_PRODUCT, ""), (_JOIN, _JOIN + _WAIT_PRODUCT)),
    # Bugs that only the output reveals.
    *_bug("K's descriptor does not advance", "", ("k + column_step<KEYS>(d)", "k")),
    *_bug("V's descriptor advances along its columns", "", ("v + row_step(n)", "v + column_step<KEYS>(n)")),
    *_bug("the zeros past the last key count", "", ("weigh(columns.at_edge(tile), columns", "weigh(false, columns")),
    *_bug("the output is not rescaled", "", (_JOIN, "")),
    # The epilogue.
    *_bug(
        "the output is stored without the swizzle",
        "race",
        (_STORE_ROW, "lane_smem + d / BLOCKS * 2048 + d % BLOCKS * 32"),
    ),
    *_bug("no fence.proxy.async before the store", "proxy", ("    ptx::fence_proxy_async_shared_cta();\n", "")),
    *_bug("no wait for the store", "async", ("        wait_stored_rows_read(lane);  // the block's", "        //")),
    *_bug("the store is not committed", "async", ("        ptx::cp_async_bulk_commit_group();\n", "")),
    # The cluster.
    *_cluster(
        "no wait for the partial results", "race", ("        cluster_mbarrier_wait(shared.partials_full);\n", "")
    ),
    *_cluster("no wait for the second K", "async", ("                ring.wait_full(next, K);\n", "")),
    *_cluster("mbarriers without a fence", "race", ("        ptx::fence_mbarrier_init_release_cluster();\n", "")),
    *_cluster("no barrier of the cluster", "race", (_CLUSTER_BARRIER, "            __syncthreads();\n")),
    *_cluster(
        "partial results are sent to the block's own memory", "async", (_O_THERE, _O_THERE.replace("rank", "rank ^ 1"))
    ),
    *_cluster("one place for the partial results of two warps", "race", ("place = warp % KEPT_WARPS;", "place = 0;")),
    *_cluster(
        "the other half is weighed by its own maximum",
        "",
        ("softmax_weight(other_max[half], softmax[half].max", "softmax_weight(other_max[half], other_max[half]"),
    ),
    *_cluster("fewer bytes announced than are sent", "mbarrier", ("sizeof(partials));", "sizeof(partials) / 2);")),
    *_cluster(
        "Q is loaded for a block without keys",
        "race",
        ("        if (work.tiles > 0) {  // otherwise", "        {  // otherwise"),
        problem=_ONE_KEY,
    ),
    *_cluster(
        "a block without keys exits early",
        "deadlock",
        (
            "            if (!Epilogue::gather",
            "            if (work.tiles == 0) return;\n            if (!Epilogue::gather",
        ),
        problem=_ONE_KEY,
    ),
    # The previous kernel, in programmatic dependent launch.
    *_bug("no wait for the kernel before", "race", _NO_WAIT_BEFORE),
    *_bug(
        "the first copies do not wait for the kernel before",
        "race",
        _NO_WAIT_BEFORE,
        (_FIRST_COPIES, _FIRST_COPIES + "        ptx::griddepcontrol_wait();\n"),
    ),
    *_bug(
        "only the consumers wait for the kernel before",
        "race",
        _NO_WAIT_BEFORE,
        (_CONSUMERS_BEGIN, _CONSUMERS_BEGIN + "        ptx::griddepcontrol_wait();\n"),
    ),
    # Heads that share a tile of queries.
    *_packed(
        "Q of a packed tile is loaded from its row in place of its query",
        "",
        ("0, 0, row / HEADS, 0, work.q_head, full", "0, 0, row, 0, work.q_head, full"),
        harmless=_ONE_TILE,
    ),
    *_packed(
        "O of a packed tile is stored at its row in place of its query",
        "",
        ("o, 0, 0, row / HEADS, 0, q_head", "o, 0, 0, row, 0, q_head"),
        harmless=_GROUPED.with_(seq_q=4),
    ),
    *_packed(
        "a packed row sees the keys of the query with its number",
        "",
        (_ROW_SEES, _ROW_SEES.replace("row / HEADS", "row")),
        (_NEXT_ROW_SEES, _NEXT_ROW_SEES.replace("(row + 8) / HEADS", "row + 8")),
        problem=_GROUPED.with_(causal=True),
        harmless=_GROUPED,
    ),
    *_packed(
        "packed heads have the K and V of a later group",
        "",
        ("int kv_head = tile.q_head;", "int kv_head = tile.q_head * HEADS;"),
        harmless=_GROUPED.with_(heads=4, kv_heads=1),
    ),
    *in_source(
        "hopper",
        "the log-sum-exp of a packed row is another head's",
        ("q_head * HEADS + lse_row % HEADS", "q_head * HEADS + (lse_row + 1) % HEADS"),
        problem=_GROUPED,
        family=Family.LSE,
        knobs=_PACKED,
    ),
    # Key lengths.
    *in_source(
        "hopper",
        "a tile that a length cuts is loaded with its padding",
        ("return KV_LENGTHS ? min(tile * KEYS, keys - KEYS) : tile * KEYS;", "return tile * KEYS;"),
        ("if (KV_LENGTHS && keys_left < KEYS) {", "if (false) {"),
        problem=_PADDED,
        harmless=_PADDED.with_(kv_lengths=None),
        of="variant",
    ),
    *in_source(
        "hopper",
        "keys that a shifted tile shares with the one before count twice",
        ("max(first[i], -own_column()) + KEYS - keys_left;", "first[i] + KEYS - keys_left;"),
        problem=_PADDED,
        harmless=_PADDED.with_(kv_lengths=None),
        of="variant",
    ),
    # Groups of consumers with the same rows.
    *_groups(
        "no wait for what the other group writes", "race", ("        ptx::bar_sync(GROUP_BARRIER, THREADS);\n", "")
    ),
    *_groups(
        "one place for the partial results of two groups' warps", "race", ("- 1][rows], lane);", "- 1][0], lane);")
    ),
    *_groups(
        "both groups begin with the first tile",
        "mbarrier",
        ("        Position at{key_group, 0};\n", "        Position at;\n"),
    ),
    *_groups(
        "a group counts its tiles from the first one",
        "",
        ("first_tile = work.first_tile + key_group;", "first_tile = work.first_tile;"),
    ),
    # Persistent blocks.
    *_next_tile(
        "the last V is not released",
        "deadlock",
        ("if (Scheduler::STAYS) {  // otherwise", "if (false) {  // otherwise"),
    ),
    *_next_tile("Q is overwritten", "async", ("            ring.wait_read(at.before(), K);\n", "")),
    *_next_tile("the output is overwritten", "async", ("                wait_stored_rows_read(lane);\n", "")),
    *_next_tile("the first Q is waited for again", "race", ("            q_parity ^= 1;\n", "")),
    *_next_tile(
        "the ring begins anew",
        "deadlock",
        ("if (Scheduler::STAYS && work.tiles < STAGES) {\n", "if (false) {\n"),
        problem=_LONG.with_(seq_kv=50),
        knobs={**_ONE_BLOCK, "NUM_STAGES": 3},
    ),
    *_next_tile("the output takes the place of Q", "async", ("smem.rows[O_PLACE]", "smem.rows[0]")),
    *_next_tile(
        "the wrong phase of the last K",
        "async",
        ("RingPosition{STAGES - 1, parity ^ 1}", "RingPosition{STAGES - 1, parity}"),
    ),
)
