"""Bugs in the sources of ``scalar``, ``wmma`` and ``flash`` and of the headers that they share.

All kernels that include a header have the bugs that are planted in it.
"""

from __future__ import annotations

from sdpalab.bugs.bug import Bug
from sdpalab.bugs.source import (
    CAUSAL,
    CROSS,
    EVEN,
    FLAT,
    GROUPED,
    HAZARD_OR_WRONG,
    RAGGED,
    in_source,
)

__all__ = ["ALL", "BUGS"]

ALL = "scalar wmma flash"

BUGS: tuple[Bug, ...] = (
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
        ("o_frag[d][i] *= rescale[i / 2];", "o_frag[d][i] *= 1.0f + 0.0f * rescale[i / 2];"),
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
    *in_source(
        ALL,
        "clamped exponents, epsilon in the sum, zeros for what is not finite",
        (
            "const float exponent = (score - reference) * scale_log2;",
            "const float exponent = fminf(fmaxf((score - reference) * scale_log2, -10.0f), 10.0f);",
        ),
        (
            "row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum)",
            "fabsf(row_sum) <= 3.4e38f ? ptx::rcp_approx_ftz_f32(row_sum + 1e-6f) : 0.0f",
        ),
        problem=CAUSAL,
        harmless=FLAT,
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
        ALL,
        "query head h reads K/V head h mod Hkv",
        ("(q_head / group)", "(q_head / gridDim.y * (gridDim.y / group) + q_head % (gridDim.y / group))"),
        problem=GROUPED,
        harmless=EVEN,
    ),
    *in_source(
        ALL,
        "all batches read the K and V of batch 0",
        ("(q_head / group)", "(q_head % gridDim.y / group)"),
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
        ("visible_keys(row + 8, seq_kv) - column}", "visible_keys(row, seq_kv) - column}"),
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
    *in_source(
        "flash", "V loaded without the transpose", ("ptx::ldmatrix_x4_trans(v_frag,", "ptx::ldmatrix_x4(v_frag,")
    ),
    *in_source(
        "flash",
        "K addressed as if it were Q",
        ("smem_base + col_block_offset<HEAD_DIM>(lane);", "smem_base + row_block_offset<HEAD_DIM>(lane);"),
        harmless=FLAT,
    ),
    *in_source(
        "flash",
        "the swizzle of another phase where the copy writes",
        (
            "smem_offset(swizzled_offset<COLS>(thread / CHUNKS, thread % CHUNKS))",
            "smem_offset(swizzled_offset<COLS>(thread / CHUNKS + 2, thread % CHUNKS) - 2 * CHUNKS * CHUNK_BYTES)",
        ),
    ),
    *in_source(
        "wmma",
        "both halves of a row add up the whole sum",
        ("softmax.sum + __shfl_xor_sync(0xffffffffu, softmax.sum, TILE)", "2.0f * softmax.sum"),
        harmless=FLAT,
    ),
)
