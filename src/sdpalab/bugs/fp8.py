"""Bugs of what is kept in 8 bits: scales lost, mixed up or taken from the wrong rows, and sums that end at 448.

The kernels that have them declare their quantisation, so that what they are held to is as coarse as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdpalab.bugs.bug import WRONG, Bug
from sdpalab.bugs.edit import EVEN, RAGGED, SEVERAL_TILES, Edit
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Knob

__all__ = ["FP8_BUGS", "FP8_KERNELS", "WIDENED", "WIDENING_BUGS"]

FP8_KERNELS = ("fp8_simulated", "fp8")

WIDENED: Mapping[str, Knob] = {"P_DTYPE": "fp16"}
"""Knobs with which the weights of ``fp8`` are float16, and V is widened for them."""

_HEADS = EVEN.with_(heads=2, kv_heads=2)
_ONE_BLOCK = RAGGED.with_(seq_q=60, seq_kv=60)

FP8_BUGS: Sequence[Edit] = (
    Edit(
        "the scale of K left out",
        FP8_KERNELS,
        [("unit(q_scale * k_scale)", "unit(q_scale)")],
        EVEN,
        EVEN.with_(scale=0.0),
    ),
    Edit(
        "the scale of V left out",
        ("fp8_simulated",),
        [("score_scale, v_scales[kv_head]);", "score_scale);")],
        EVEN,
    ),
    Edit(
        "the scale of the next tile's V",
        ("fp8",),
        [("score_scale.log2, scales.y,", "score_scale.log2, next_scales.y,")],
        SEVERAL_TILES,
        _ONE_BLOCK,
    ),
    Edit(
        "the scale of the first head for all",
        ("fp8_simulated",),
        [
            (
                "block.of(q_maxima, k_maxima, v_maxima) + block.head * block.blocks;",
                "block.of(q_maxima, k_maxima, v_maxima);",
            )
        ],
        _HEADS,
        EVEN,
    ),
    Edit(
        "the scale of a head's first rows for all of it",
        ("fp8_simulated",),
        [("i < block.blocks;", "i < 1;")],
        SEVERAL_TILES,
        _ONE_BLOCK,
    ),
    Edit(
        "a scale eight times too small, and what is above it cut off",
        FP8_KERNELS,
        [("const float scale = block_max / E4M3_MAX;", "const float scale = block_max / (8.0f * E4M3_MAX);")],
        EVEN,
    ),
    Edit(
        "the sum of the weights ends at 448",
        ("fp8_simulated",),
        [
            (
                "return row_sum == 0.0f ? 0.0f : ",
                "row_sum = fminf(row_sum, 448.0f);\n    return row_sum == 0.0f ? 0.0f : ",
            )
        ],
        EVEN.with_(seq_q=32, seq_kv=512, scale=0.0),
        EVEN,
        bug=Bug.HISTORICAL,
    ),
    Edit(
        "rows of the next head share the last scale",
        FP8_KERNELS,
        [("if (row(i) < rows_left) {\n                chunk = ", "if (true) {\n                chunk = ")],
        RAGGED.with_(heads=2, kv_heads=2),
        _HEADS,
        WRONG | {Status.HAZARD},
    ),
    Edit(
        "keys in their own order, where the weights have another",
        ("fp8",),
        [("const QuantisePatch<RowOrder::mma> patch", "const QuantisePatch<RowOrder::natural> patch")],
        EVEN,
        EVEN.with_(scale=0.0),
    ),
    Edit(
        "the log-sum-exp of 2^8 times the weights",
        ("fp8",),
        [("row_sum * WEIGHT_UNIT", "row_sum")],
        EVEN,
        bug=Bug.LSE,
    ),
)

WIDENING_BUGS: Sequence[Edit] = (
    Edit(
        "keys widened in the wrong order",
        "softmax/fp8.cuh",
        [("(halves.x), ptx::cvt_rn_f16x2_e4m3x2(halves.y)", "(halves.y), ptx::cvt_rn_f16x2_e4m3x2(halves.x)")],
        EVEN,
        EVEN.with_(scale=0.0),
    ),
    Edit(
        "the weights of sixteen keys for the next sixteen, too",
        ("fp8",),
        [("(product, frag[2 * n + 1], second.x", "(product, frag[2 * n], second.x")],
        EVEN,
        EVEN.with_(scale=0.0),
    ),
)
