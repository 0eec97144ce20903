"""Bugs in the sources of ``scalar``, ``wmma`` and ``flash`` and of the headers that they share.

A bug planted in a header applies to all kernels that include it.
"""

from __future__ import annotations

from functools import partial

from sdpalab.bugs.bug import HAZARD, Bug
from sdpalab.bugs.source import CAUSAL, CROSS, EVEN, FLAT, GROUPED, HAZARD_OR_WRONG, RAGGED, in_source
from sdpalab.problem import Problem
from sdpalab.status import Status

__all__ = ["ALL", "BUGS", "MODULO_IN_FLASH"]

ALL = "scalar wmma flash"
_KV_HEAD_IN_FLASH = "source.by_kv_head.divide(segment.q_tile_of_all)"


def _with_group(kv_head: str) -> tuple[tuple[str, str], ...]:
    """Edits of flash after which a tile of queries reads this K/V head, an expression with ``source.group``."""
    return (
        (_KV_HEAD_IN_FLASH, kv_head),
        ("    Divisor by_kv_head;", "    Divisor by_kv_head;\n    int group;"),
        ("seq_kv, 0, {by_kv_head}};", "seq_kv, 0, {by_kv_head}, group};"),
    )


MODULO_IN_FLASH = _with_group(
    "segment.head / gridDim.y * (gridDim.y / source.group) + segment.head % (gridDim.y / source.group)"
)
"""Edits after which query head h reads K/V head h mod Hkv."""

_SHARED = Problem(1, 1, 128, 32, seq_kv=512)
"""Two tiles of queries, eight tiles of keys: the second block has a part of both."""
_ALONE = Problem(1, 1, 64, 32, seq_kv=64)
"""One block computes the whole problem."""
_SHARED_FLAT = _SHARED.with_(scale=0.0)

_merging = partial(in_source, "flash", problem=_SHARED, knobs={"SCHEDULE": "stream_k", "NUM_CTAS": 3})
"""Plants a bug with three blocks sharing the work on any problem."""


def _clamped(kernels: str, exponent: str, clamped: str) -> tuple[Bug, ...]:
    """Bugs from the numerical guards of the project that preceded this one."""
    return in_source(
        kernels,
        "clamped exponents, epsilon in the sum, zeros for what is not finite",
        (exponent, clamped),
        (
            "row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum)",
            "fabsf(row_sum) <= 3.4e38f ? ptx::rcp_approx_ftz_f32(row_sum + 1e-6f) : 0.0f",
        ),
        problem=CAUSAL,
        harmless=FLAT,
    )


_PADDED = Problem(2, 1, 40, 64, seq_kv=150, kv_lengths=(150, 83))
_padding = partial(in_source, "flash", problem=_PADDED, harmless=EVEN.with_(head_dim=64), of="variant")
"""Plants bugs in the source for windows, soft caps and lengths."""

BUGS: tuple[Bug, ...] = (
    *_padding(
        "V behind a length is not cleared",
        ("rows_left = PARTIAL_KV ? source.keys - number", "rows_left = PARTIAL_KV ? source.seq_kv - number"),
    ),
    *_padding(
        "the maximum is taken before the padding is masked",
        (
            "byte_address(source.k, k_next), rows_left);",
            "byte_address(source.k, k_next), source.seq_kv - number * KEYS - k_copy.row);",
        ),
        ("        products.online_softmax(scores, first);\n", ""),
        (
            "        if (HAS_EDGE && !unmasked.contains(tile)) {\n",
            "        products.online_softmax(scores, first);\n        if (HAS_EDGE && !unmasked.contains(tile)) {\n",
        ),
        statuses=frozenset({Status.NONDETERMINISTIC}),  # the float maximum drops NaN, and keeps infinity
    ),
    *in_source(
        "scalar",
        "rescale of O lost",
        ("const float rescale = softmax[", "const float rescale = 1.0f + 0.0f * softmax["),
        harmless=EVEN.with_(seq_kv=16),
    ),
    *in_source(
        "wmma",
        "rescale of O lost",
        ("const float rescale = softmax.", "const float rescale = 1.0f + 0.0f * softmax."),
        harmless=EVEN.with_(seq_kv=16),
    ),
    *in_source(
        "flash",
        "rescale of O lost",
        ("o_frag[d][i] *= factor[i / 2];", "o_frag[d][i] *= 1.0f + 0.0f * factor[i / 2];"),
        harmless=EVEN.with_(seq_kv=16),
    ),
    *in_source(ALL, "rescale of the sum lost", ("sum *= rescale;", ""), harmless=FLAT),
    *in_source(ALL, "no log2(e)", ("fabsf(scale) * LOG2_E)", "fabsf(scale))"), harmless=FLAT),
    *in_source(
        ALL,
        "the sign of the scale ignored",
        ("copysignf(1.0f, scale)", "1.0f"),
        problem=EVEN.with_(scale=-0.2),
        harmless=EVEN,
    ),
    *in_source(ALL, "no normalisation", (": ptx::rcp_approx_ftz_f32(row_sum)", ": 1.0f")),
    *in_source(ALL, "the maximum starts at 0", ("float max = LOWEST_FLOAT;", "float max = 0.0f;"), harmless=FLAT),
    *_clamped(
        "scalar wmma",
        "ptx::ex2_approx_ftz_f32((score - reference) * scale_log2);",
        "ptx::ex2_approx_ftz_f32(fminf(fmaxf((score - reference) * scale_log2, -10.0f), 10.0f));",
    ),
    *_clamped(
        "flash",
        "return fmaf(score, scale_log2, offset[row]);",
        "return fminf(fmaxf(fmaf(score, scale_log2, offset[row]), -10.0f), 10.0f);",
    ),
    *in_source(
        ALL,
        "query i sees key i + 1",
        ("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? min(row + 2, seq_kv)"),
        problem=CAUSAL,
        harmless=RAGGED,
    ),
    *in_source(
        ALL,
        "the end of the keys forgotten under the mask",
        ("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? row + 1"),
        problem=CROSS,
        harmless=CAUSAL,
        statuses=HAZARD_OR_WRONG,
    ),
    *in_source(
        ALL,
        "the last, ragged tile dropped",
        ("return ceil_div(visible_keys(last_row, seq_kv), block_n)", "return visible_keys(last_row, seq_kv) / block_n"),
        problem=RAGGED,
        harmless=EVEN,
        statuses=HAZARD_OR_WRONG,
    ),
    *in_source(
        "scalar wmma",
        "query head h reads K/V head h mod Hkv",
        ("(q_head / group)", "(q_head / gridDim.y * (gridDim.y / group) + q_head % (gridDim.y / group))"),
        problem=GROUPED,
        harmless=EVEN,
    ),
    *in_source("flash", "query head h reads K/V head h mod Hkv", *MODULO_IN_FLASH, problem=GROUPED, harmless=EVEN),
    *in_source(
        "scalar wmma",
        "all batches read the K and V of batch 0",
        ("(q_head / group)", "(q_head % gridDim.y / group)"),
        problem=GROUPED,
        harmless=EVEN,
    ),
    *in_source(
        "flash",
        "all batches read the K and V of batch 0",
        *_with_group("segment.head % gridDim.y / source.group"),
        problem=GROUPED,
        harmless=EVEN,
    ),
    *in_source(
        ALL,
        "pairs packed the wrong way round",
        ("return ptx::cvt_rn_f16x2_f32(low, high);", "return ptx::cvt_rn_f16x2_f32(high, low);"),
    ),
    *in_source(
        "scalar",
        "rows past the end of K and V are loaded",
        ("if (row < rows_left) {", "if (row <= rows_left) {"),
        problem=RAGGED,
        harmless=EVEN,
        hazard="out-of-bounds",
    ),
    *in_source(
        "wmma",
        "rows past the end of K and V are loaded",
        ("src + e, row < rows_left", "src + e, row <= rows_left"),
        problem=RAGGED,
        harmless=EVEN,
        hazard="out-of-bounds",
    ),
    *in_source(
        "flash",
        "rows past the end of K and V are loaded",
        ("pass_row < rows_left ? CHUNK_BYTES : 0", "pass_row <= rows_left ? CHUNK_BYTES : 0"),
        problem=RAGGED,
        harmless=EVEN,
        hazard="out-of-bounds",
    ),
    *in_source(
        "scalar wmma",
        "rows past the end of O are stored",
        ("if (row < seq_q) {", "{"),
        problem=RAGGED,
        harmless=EVEN,
        hazard="out-of-bounds",
    ),
    *in_source(
        "flash",
        "rows past the end of O are stored",
        ("if (row < rows_left) {", "{"),
        problem=RAGGED,
        harmless=EVEN,
        hazard="out-of-bounds",
    ),
    *in_source(
        "flash",
        "the tile at the edge is not masked",
        (
            "return visible_keys(first_row, seq_kv) / block_n;",
            "return ceil_div(visible_keys(first_row, seq_kv), block_n);",
        ),
        problem=RAGGED,
        harmless=EVEN,
    ),
    *in_source(
        "flash",
        "the mask of row lane / 4 used for row lane / 4 + 8",
        ("(row + 16 * block + 8) / Source::HEADS", "(row + 16 * block) / Source::HEADS"),
        problem=CAUSAL,
        harmless=RAGGED,
    ),
    *in_source(
        "flash",
        "the maximum of two lanes in place of four",
        ("return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));", "return x;"),
        harmless=FLAT,
    ),
    *in_source(
        "flash",
        "the sum of two lanes in place of four",
        ("return x + __shfl_xor_sync(0xffffffffu, x, 2);", "return x;"),
    ),
    *in_source("flash", "V loaded without the transpose", ("ptx::ldmatrix_x4_trans_at<N", "ptx::ldmatrix_x4_at<N")),
    *in_source(
        "flash",
        "K addressed as if it were Q",
        ("return col_block_offset<PANEL<K_COLS>>(lane);", "return row_block_offset<PANEL<K_COLS>>(lane);"),
        harmless=FLAT,
    ),
    *in_source(
        "flash",
        "the swizzle of another phase where the copy writes",
        (
            "smem_offset(swizzled_offset<PANEL<COLS>>(thread / CHUNKS, thread % CHUNKS))",
            "smem_offset(swizzled_offset<PANEL<COLS>>(thread / CHUNKS + 2, thread % CHUNKS)"
            " - 2 * CHUNKS * CHUNK_BYTES)",
        ),
    ),
    *in_source(
        "wmma",
        "both halves of a row add up the whole sum",
        ("softmax.sum + __shfl_xor_sync(0xffffffffu, softmax.sum, TILE)", "2.0f * softmax.sum"),
        harmless=FLAT,
    ),
    # Keys of a query tile that several blocks share, and the merge of their partial results.
    *_merging(
        "parts of O merged without rescaling",
        ("o_frag[block][d][0] += o.x * weight[0];", "o_frag[block][d][0] += o.x;"),
        harmless=_SHARED_FLAT,
    ),
    *_merging(
        "parts of the sum merged without rescaling",
        ("rows[block][1].sum += of_rows.w * weight[1];", "rows[block][1].sum += of_rows.w;"),
        harmless=_SHARED_FLAT,
    ),
    *_merging(
        "the maximum of the first part taken for that of all",
        (
            "rows[block][0].max = fmaxf(rows[block][0].max, own.x);",
            "rows[block][0].max = rows[block][0].max == LOWEST_FLOAT ? own.x : rows[block][0].max;",
        ),
        harmless=_SHARED_FLAT,
    ),
    *_merging(
        "the part with the last keys left out",
        (
            "i < sharers.count; ++i) {\n            Part(partials, sharers.first + i, i == 0, thread).add_to",
            "i < sharers.count - 1; ++i) {\n            Part(partials, sharers.first + i, i == 0, thread).add_to",
        ),
        harmless=_ALONE,
    ),
    *_merging(
        "the last block but one merges", ("== parts - 1u;", "== parts - 2u;"), harmless=_ALONE, statuses=HAZARD_OR_WRONG
    ),
    *_merging(
        "the semaphore is not released",
        ("atom_inc_acq_rel_gpu_u32(semaphore, parts - 1)", "atom_inc_acq_rel_gpu_u32(semaphore, parts)"),
        harmless=_ALONE,
        statuses=HAZARD,
    ),
    *_merging(
        "units that are left over are nobody's",
        ("block * units_per_block + min(block, longer);", "block * units_per_block;"),
        harmless=_ALONE,
        statuses=HAZARD_OR_WRONG,
    ),
)
