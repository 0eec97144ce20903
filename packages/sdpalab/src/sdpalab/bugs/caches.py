"""Bugs in ``flash_varlen`` and ``flash_decode``: block table, lengths, parts of the keys and their merges, caches in
e4m3, and the order of tiles."""

from __future__ import annotations

from collections.abc import Mapping

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.source import HAZARD_OR_WRONG, in_source
from sdpalab.kernels.kernel import Knob
from sdpalab.problem import Problem

__all__ = ["BUGS"]

PACKED = Problem(
    *(3, 4, 100, 64),
    kv_heads=2,
    seq_kv=150,
    q_lengths=(100, 5, 37),
    kv_lengths=(150, 20, 70),
    layout="varlen",
    causal=True,
    bottom_right=True,
)
CACHE = Problem(3, 8, 1, 64, kv_heads=2, seq_kv=700, kv_lengths=(700, 0, 333), layout="paged:64")
SMALL_PAGES = CACHE.with_(layout="paged:16")
STEPS = CACHE.with_(seq_q=5, causal=True, bottom_right=True)
BYTES = CACHE.with_(layout="paged:64:e4m3")
ONE_KEY = Problem(1, 2, 1, 64, kv_heads=1, seq_kv=1, layout="paged:64")
_PARTS: Mapping[str, Knob] = {"NUM_SPLITS": 3}
_LISTED: Mapping[str, Knob] = {"ORDER": "longest", "BLOCK_M": 32}


def _bug(
    kernel: str, what: str, edit: tuple[str, str], problem: Problem, knobs: Mapping[str, Knob] = _PARTS
) -> tuple[Bug, ...]:
    return in_source(kernel, what, edit, problem=problem, knobs=knobs, family=Family.LAYOUT, statuses=HAZARD_OR_WRONG)


def _decode(what: str, before: str, after: str, problem: Problem = CACHE) -> tuple[Bug, ...]:
    return _bug("flash_decode", what, (before, after), problem)


def _e4m3(what: str, before: str, after: str) -> tuple[Bug, ...]:
    return _bug("flash_decode_e4m3", what, (before, after), BYTES)


def _varlen(what: str, before: str, after: str, knobs: Mapping[str, Knob] | None = None) -> tuple[Bug, ...]:
    return _bug("flash_varlen", what, (before, after), PACKED, knobs or {})


BUGS: tuple[Bug, ...] = (
    # ---- block table and lengths
    *_decode(
        "a tile has the page before its own",
        "source.pages[first / PAGE] : 0",
        "source.pages[max(first / PAGE - 1, 0)] : 0",
    ),
    *_decode("the next tile keeps the page of the last one", "            page = page_of(number + 1);\n", ""),
    *_decode(
        "a row has the page of its tile's first row",
        "source.pages[key / PAGE] : 0",
        "source.pages[first / PAGE] : 0",
        SMALL_PAGES,
    ),
    *_decode(
        "rows of a table are as long as a sequence has pages",
        "(scheduler.number) * max_pages",
        "(scheduler.number) * (max_pages - 1)",
    ),
    *_decode("a sequence has a key more", "= kv_lengths[number];", "= kv_lengths[number] + 1;"),
    *_decode("all sequences have the length of the first", "= kv_lengths[number];", "= kv_lengths[0];"),
    *_decode("all heads read the first of K and V", "scheduler.head / GROUP_PARTS", "0 / GROUP_PARTS"),
    # ---- parts of the keys, and their merges
    *_decode("the last part is left out", "min(splits, tiles_of_all)", "min(splits, tiles_of_all) - 1"),
    *_decode("parts begin a tile early", "min(found.split, longer)", "min(found.split, longer - 1)"),
    *_decode("the longer parts lack their last tile", "part + (found.split < longer)", "part"),
    *_decode("parts of several sequences share a place", "(segment.q_tile_of_all) * most", "(segment.q_tile) * most"),
    *_decode("a warp's part has the weight of the first", "(own), statistics[w]", "(own), statistics[0]"),
    *_decode("the warps of a row have the same keys", "thread / 32 % WARPS_PER_ROW * KEYS;", "0;"),
    *_decode(
        "a row's sum in the merge is that of one lane",
        "const float sum = quad_sum(row.sum);",
        "const float sum = row.sum;",
    ),
    *_decode(
        "the merge of blocks starts at the second part",
        "#pragma unroll 8\n        for (int i = 0; i < count; ++i) {\n            chunk.add",
        "#pragma unroll 8\n        for (int i = 1; i < count; ++i) {\n            chunk.add",
    ),
    *_decode(
        "queries of a group have each other's position",
        "(row + 16 * block) / Source::HEADS",
        "(row + 16 * block)",
        STEPS,
    ),
    # ---- caches in e4m3
    *_e4m3("all heads have the scale of the first one's K", "scale *= k_scale[kv_head];", "scale *= k_scale[0];"),
    *_e4m3("V has the scale of K", "? v_scale[kv_head]", "? k_scale[kv_head]"),
    *_e4m3(
        "columns of V keep the order of their pairs", "__byte_perm(v_frag[2 * i + 1], 0, 0x3120)", "v_frag[2 * i + 1]"
    ),
    *_e4m3("columns of Q have not the order of those of K", "frag[block][2] = first.y;", "frag[block][2] = second.y;"),
    # ---- packed sequences
    *_varlen(
        "all sequences have the rows of the first",
        "found.q_row = cu_seqlens_q[number];",
        "found.q_row = cu_seqlens_q[0];",
    ),
    *_varlen(
        "all sequences have the keys of the first",
        "found.kv_row = cu_seqlens_k[number];",
        "found.kv_row = cu_seqlens_k[0];",
    ),
    *_varlen("the search ends a sequence early", "(middle) <= tile", "(middle) < tile"),
    *_varlen("masks are aligned to the first key", "? kv_rows - q_rows : 0", "? 0 : 0"),
    *_varlen("the row behind a sequence is written", "q_rows * HEADS - segment", "q_rows * HEADS + 1 - segment"),
    *_varlen(
        "a list of tiles lacks one",
        "order[atomicAdd(&counts[tile == thread",
        "order[0 * atomicAdd(&counts[tile == thread",
        _LISTED,
    ),
    *_varlen(
        "a list of tiles has every other one twice",
        "bucket_of(tile)], 1)] = tile;",
        "bucket_of(tile)], 1)] = tile / 2 * 2;",
        _LISTED,
    ),
)
