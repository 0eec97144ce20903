"""Bugs of a warp-specialised backward pass, planted in ``hopper_backward`` and its headers."""

from __future__ import annotations

from typing import Any

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.links import link
from sdpalab.bugs.source import in_source
from sdpalab.problem import Problem

__all__ = ["BUGS"]

_TILES = Problem(1, 1, 450, 64, seq_kv=200, task="backward")
"""Two tiles of keys, the last one ragged; four tiles of queries refill both stages."""
_PADDED = Problem(2, 1, 140, 64, q_lengths=(140, 30), kv_lengths=(50, 140), task="backward")
_CUT = Problem(1, 1, 40, 64, seq_kv=300, causal=True, task="backward")
"""Tiles of keys that no query sees."""


def _bug(what: str, hazard: str, *edits: tuple[str, str], problem: Problem = _TILES, **fields: Any) -> tuple[Bug, ...]:
    """One bug; without a ``hazard``, only the gradients reveal it."""
    source = fields.pop("source", "")
    return in_source(
        "hopper_backward",
        what,
        *edits,
        problem=problem,
        hazard=hazard,
        family=Family.SYNCHRONISATION if hazard else Family.GRADIENTS,
        link=link(source) if source else "",
        **fields,
    )


_HANDED = "    ptx::fence_proxy_async_shared_cta();\n    ptx::bar_arrive(DQ_FULL"
_RELEASES = """                smem.barriers.release(stage, Q);
                smem.barriers.release(stage, DO);
"""
_WAIT = """            ptx::wgmma_wait_group<0>();
            hold(dk);
"""

BUGS: tuple[Bug, ...] = (
    *_bug(
        "dQ of the last tile of queries is not added",
        "",
        (
            "            if (lane == 0) {\n                ptx::cp_reduce",
            "            if (lane == 0 && at.left > 1) {\n                ptx::cp_reduce",
        ),
    ),
    *_bug(
        "both consumers' parts of dQ are added to the first one's",
        "",
        ("tile * DQ_TILE + consumer * DQ_PART,", "tile * DQ_TILE,"),
    ),
    *_bug(
        "dQ is stored instead of added",
        "race",
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", "cp.async.bulk.global.shared::cta.bulk_group"),
        harmless=_TILES.with_(seq_kv=128),
    ),
    *_bug(
        "8 x 8 blocks of dS change places in shared memory",
        "",
        ("frag[4] = {ds[4 * n], ds[4 * n + 1], ds[4 * n + 2],", "frag[4] = {ds[4 * n], ds[4 * n + 2], ds[4 * n + 1],"),
    ),
    *_bug(
        "dS of one consumer is dropped from dQ",
        "",
        ("for (int n = 1; n < BLOCK / 16; ++n)", "for (int n = 1; n < WARPGROUP_M / 16; ++n)"),
        harmless=_TILES.with_(seq_kv=64),
    ),
    *_bug(
        "a stage is released before the products have read it",
        "race",
        (_WAIT, f"            if (thread == 0) {{\n{_RELEASES}            }}\n{_WAIT}"),
        (f"            if (thread == 0) {{\n{_RELEASES}            }}\n            hand_over", "            hand_over"),
        harmless=_TILES.with_(seq_q=256),
    ),
    *_bug(
        "no proxy fence before the reduction of dQ",
        "proxy",
        (_HANDED, "    ptx::bar_arrive(DQ_FULL"),
        source="FA@d91ea94f",
    ),
    *_bug(
        "no proxy fence before the product with dS",
        "proxy",
        ("            ptx::fence_proxy_async_shared_cta();\n            __syncwarp();", "            __syncwarp();"),
    ),
    *_bug(
        "dQ is handed over before TMA has read the tile before",
        "race",
        (
            "    ptx::bar_sync(DQ_EMPTY + consumer, DQ_THREADS);\n",
            "    ptx::bar_arrive(DQ_EMPTY + consumer, DQ_THREADS);\n",
        ),
        source="FA@ea38d3d2",
    ),
    *_bug(
        "dK overwrites K, which another consumer reads",
        "race",
        (
            "        ptx::bar_sync(ALL_CONSUMERS, CONSUMER_THREADS);\n        store_gradient(maps.dk",
            "        store_gradient(maps.dk",
        ),
        source="FA@1c41d2b0",
    ),
    *_bug(
        "the product with dS waits for no other consumer",
        "race",
        ("        mbarrier_wait(smem.barriers.ds_full[ds_stage.stage], ds_stage.parity);\n", ""),
    ),
    *_bug(
        "rows past the length are not cleared",
        "",
        ("const int valid = scores.entry.queries - at.tile * STREAM;", "const int valid = STREAM;"),
        problem=_PADDED,
        harmless=_TILES,
        source="FI#945",
    ),
    *_bug(
        "keys that no query sees keep what their gradients' memory held",
        "",
        ("        consumer.store(maps, kv_head);", "        if (at.left > 0) consumer.store(maps, kv_head);"),
        problem=_CUT,
        harmless=_TILES,
        source="FA@6998e0ec",
    ),
    *_bug(
        "the statistics of the first tile of a head",
        "",
        ("statistics + tile * (2 * STREAM),", "statistics + at.head * tiles * (2 * STREAM),"),
        harmless=_TILES.with_(seq_q=100),
        source="FA@b3f1b6a5",
    ),
)
"""Edits by their text."""
