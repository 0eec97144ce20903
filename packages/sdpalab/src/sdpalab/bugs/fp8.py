"""Bugs of 8-bit values: scales lost, mixed up or taken from the wrong rows, and sums that saturate at 448.

The kernels declare their quantisation, so the limits of their errors include it.
"""

from __future__ import annotations

from functools import partial

from sdpalab.bugs.bug import WRONG, Bug, Family
from sdpalab.bugs.edit import QUANTISE
from sdpalab.bugs.source import EVEN, RAGGED, SEVERAL_TILES, in_source
from sdpalab.problem import Problem
from sdpalab.status import Status

__all__ = ["BUGS", "SHOWN_BY_EXACT_PROBES"]

_BOTH = "fp8_simulated fp8"
_in_widened = partial(in_source, "fp8", knobs={"P_DTYPE": "fp16"})
"""Plants a bug in ``fp8`` with float16 weights and V widened for them."""
_in_quantiser = partial(in_source, of=QUANTISE)
"""Plants a bug in the quantisation step before the kernel."""
_MMA_ORDER = ("QuantisePatch<RowOrder::mma> patch", "QuantisePatch<RowOrder::natural> patch")
_TILE_MAXIMUM = ("return softmax_weight(tile_max[row], rows[row].max, scale_log2)", "return 1.0f")
_BLOCKS = Problem(1, 1, 64, 64, seq_kv=300)
_in_hopper = partial(
    in_source, "hopper_fp8", problem=_BLOCKS, knobs={"BLOCK_M": 64, "BLOCK_N": 64, "NUM_STAGES": 2, "SPLIT": 1}
)
_WIDE = Problem(1, 1, 60, 256, seq_kv=64)
"""The product with V is computed in column parts, and Q and K are two panels."""
_PART_WAIT = "            ptx::wgmma_wait_group<1>();\n            hold(product"
_PART_FENCE = "                ptx::wgmma_fence();\n            }\n            issue_part"
_HEADS = EVEN.with_(heads=2, kv_heads=2)
_ONE_BLOCK = RAGGED.with_(seq_q=60, seq_kv=60)
_NORMALISER = "return row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum);"


def _cut(number: str) -> str:
    """A float32 expression truncated to the bits of bfloat16."""
    return f"__uint_as_float(__float_as_uint({number}) & 0xffff0000u)"


_CUT_NORMALISER = (
    _NORMALISER,
    f"return row_sum == 0.0f ? 0.0f : {_cut('ptx::rcp_approx_ftz_f32(row_sum)')};",
)
_SHORT_RANGE = ("constexpr float E4M3_MAX = 448.0f;", "constexpr float E4M3_MAX = 240.0f;")

SHOWN_BY_EXACT_PROBES: tuple[Bug, ...] = (
    *_in_quantiser(_BOTH, "240 for the largest number of e4m3", _SHORT_RANGE),
    *_in_hopper("240 for the largest number of e4m3", _SHORT_RANGE, of=QUANTISE),
    *in_source(_BOTH, "the normaliser in bfloat16", _CUT_NORMALISER, problem=RAGGED, harmless=EVEN),
    *_in_hopper("the normaliser in bfloat16", _CUT_NORMALISER, harmless=_BLOCKS.with_(seq_kv=256)),
    *in_source(
        "fp8_simulated",
        "the scale of V in bfloat16",
        ("score_scale, v_scales[kv_head]);", f"score_scale, {_cut('v_scales[kv_head]')});"),
    ),
    *in_source(
        "fp8",
        "the scale of V in bfloat16",
        ("[i % 4], scales.y, o);", f"[i % 4], {_cut('scales.y')}, o);"),
    ),
    *_in_hopper(
        "the scale of V in bfloat16",
        ("unit[row] = factor * tile_scales.y;", f"unit[row] = factor * {_cut('tile_scales.y')};"),
    ),
    *_in_widened(
        "the unit of the scores in bfloat16", ("unit(q_scale * k_scale)", f"unit({_cut('q_scale * k_scale')})")
    ),
)
"""Bugs with an error below the tolerance that rounding to e4m3 leaves for O; exact e4m3 elements detect them."""

BUGS: tuple[Bug, ...] = (
    *SHOWN_BY_EXACT_PROBES,
    *in_source(
        _BOTH, "the scale of K left out", ("unit(q_scale * k_scale)", "unit(q_scale)"), harmless=EVEN.with_(scale=0.0)
    ),
    *in_source("fp8_simulated", "the scale of V left out", ("score_scale, v_scales[kv_head]);", "score_scale);")),
    *in_source(
        "fp8",
        "the scale of the next tile's V",
        ("[i % 4], scales.y, o);", "[i % 4], next_scales.y, o);"),
        problem=SEVERAL_TILES,
        harmless=_ONE_BLOCK,
    ),
    *_in_quantiser(
        "fp8_simulated",
        "the scale of the first head for all",
        (
            "block.of(q_maxima, k_maxima, v_maxima) + block.head * block.blocks;",
            "block.of(q_maxima, k_maxima, v_maxima);",
        ),
        problem=_HEADS,
        harmless=EVEN,
    ),
    *_in_quantiser(
        "fp8_simulated",
        "the scale of a head's first rows for all of it",
        ("i < block.blocks;", "i < 1;"),
        problem=SEVERAL_TILES,
        harmless=_ONE_BLOCK,
    ),
    *_in_quantiser(
        _BOTH,
        "a scale eight times too small, and what is above it cut off",
        ("const float scale = block_max / E4M3_MAX;", "const float scale = block_max / (8.0f * E4M3_MAX);"),
    ),
    *in_source(
        "fp8_simulated",
        "the sum of the weights ends at 448",
        ("return row_sum == 0.0f ? 0.0f : ", "row_sum = fminf(row_sum, 448.0f);\n    return row_sum == 0.0f ? 0.0f : "),
        problem=EVEN.with_(seq_q=32, seq_kv=512, scale=0.0),
        harmless=EVEN,
        family=Family.HISTORICAL,
    ),
    *_in_quantiser(
        _BOTH,
        "rows of the next head share the last scale",
        ("if (row(i) < rows_left) {\n                chunk = ", "if (true) {\n                chunk = "),
        problem=RAGGED.with_(heads=2, kv_heads=2),
        harmless=_HEADS,
        statuses=WRONG | {Status.HAZARD},
    ),
    *_in_quantiser(
        "fp8", "keys in their own order, where the weights have another", _MMA_ORDER, harmless=EVEN.with_(scale=0.0)
    ),
    *in_source(
        "fp8",
        "the log-sum-exp of 2^4 times the weights",
        ("row_sum[half] * weight_unit", "row_sum[half]"),
        family=Family.LSE,
    ),
    *_in_widened(
        "keys widened in the wrong order",
        ("(halves.x), ptx::cvt_rn_f16x2_e4m3x2(halves.y)", "(halves.y), ptx::cvt_rn_f16x2_e4m3x2(halves.x)"),
        harmless=EVEN.with_(scale=0.0),
    ),
    *_in_widened(
        "the weights of sixteen keys for the next sixteen, too",
        ("(product, frag[2 * n + 1], second.x", "(product, frag[2 * n], second.x"),
        harmless=EVEN.with_(scale=0.0),
    ),
    *in_source(
        "fp8",
        "no maximum but the tile's",
        (
            "rescale[row] = rows[0][row].advance(score_max[row], scale_log2);",
            "rows[0][row].max = score_max[row], rescale[row] = 1.0f;",
        ),
        problem=SEVERAL_TILES,
        harmless=SEVERAL_TILES.with_(scale=0.0),
    ),
    *in_source(
        "fp8",
        "maxima without the unit of the scores",
        ("{raw_max[0] * tile.unit, raw_max[1] * tile.unit}", "{raw_max[0], raw_max[1]}"),
        harmless=EVEN.with_(scale=0.0),
    ),
    *_in_hopper(
        "keys in their own order, where the weights have another",
        _MMA_ORDER,
        harmless=_BLOCKS.with_(scale=0.0, seq_kv=256),
        of=QUANTISE,
    ),
    *_in_hopper("no maximum but the tile's", _TILE_MAXIMUM, harmless=_BLOCKS.with_(scale=0.0)),
    *_in_hopper(
        "a tile's own maximum is forgotten where its product joins O",
        ("unit[row] = factor * tile_scales.y;", "unit[row] = tile_scales.y;"),
        harmless=_BLOCKS.with_(scale=0.0),
    ),
    *_in_hopper(
        "rescale of O lost",
        (
            "bring_to_reference(const Rescale& rescale) {\n        if (rescale.needed) {",
            "bring_to_reference(const Rescale& rescale) {\n        if (false) {",
        ),
        problem=_BLOCKS.with_(scale=30.0),
        harmless=_BLOCKS,
    ),
    *in_source(
        "fp8",
        "rescale of O lost",
        ("o_frag[d][i] *= factor[i / 2];", "o_frag[d][i] *= 1.0f + 0.0f * factor[i / 2];"),
        problem=SEVERAL_TILES.with_(scale=30.0),
        harmless=_ONE_BLOCK.with_(head_dim=64),
    ),
    *_in_hopper(
        "the scale of the next tile's V",
        ("        join(due_unit);\n", "        join(unit);\n"),
        harmless=_BLOCKS.with_(seq_kv=60),
    ),
    *_in_hopper(
        "the scales of a head's first rows for all of it",
        ("scales[2 * min(number / (SCALE_ROWS / KEYS), last_block)];", "scales[0];"),
        harmless=_BLOCKS.with_(seq_kv=60),
    ),
    *_in_hopper(
        "each part of the product has the first columns of V",
        ("        v += byte_row_step<KEYS>(part * PART_COLUMNS);\n", ""),
        problem=_WIDE,
        harmless=_BLOCKS,
    ),
    *_in_hopper(
        "the second panel is the first",
        ("step / PER_PANEL * ROWS * BYTE_PANEL_COLUMNS + ", ""),
        problem=_WIDE,
        harmless=_BLOCKS,
    ),
    *_in_hopper(
        "a part of the product joins too early", (_PART_WAIT, "            hold(product"), problem=_WIDE, hazard="wgmma"
    ),
    *_in_hopper(
        "no fence before the registers of a part",
        (_PART_FENCE, "            }\n            issue_part"),
        problem=_WIDE,
        hazard="wgmma",
    ),
    *_in_hopper(
        "no wait for the kernel that quantises",
        ("        ptx::griddepcontrol_wait();\n        ptx::fence_mbarrier", "        ptx::fence_mbarrier"),
        hazard="race",
    ),
)
