"""Bugs in the log-sum-exp of the shipped kernels; the output stays right, except for one bug that it depends on."""

from __future__ import annotations

from functools import partial

from sdpalab.bugs.bug import HAZARD, Bug, Family
from sdpalab.bugs.cuda import ALL
from sdpalab.bugs.source import CAUSAL, EVEN, FLAT, GROUPED, RAGGED, in_source
from sdpalab.problem import Problem
from sdpalab.status import Status

__all__ = ["BUGS"]

_ONE_KEY = EVEN.with_(seq_kv=1)
_ZERO = _ONE_KEY.with_(scale=0.0)
"""The log-sum-exp is 0."""

_FORMULA = "(row_max * scale_log2 + ptx::lg2_approx_ftz_f32(row_sum)) * LN_2"
_WRITTEN = "log_sum_exp(softmax[i].max, row_sum[i], score_scale.log2)"

_bug = partial(in_source, family=Family.LSE)


def _formula(what: str, new: str, harmless: Problem | None = None) -> tuple[Bug, ...]:
    """Plants another formula in the header that all kernels share."""
    return _bug(ALL, what, (_FORMULA, new), harmless=harmless)


BUGS: tuple[Bug, ...] = (
    *_formula("log-sum-exp to base 2", "row_max * scale_log2 + ptx::lg2_approx_ftz_f32(row_sum)", harmless=_ZERO),
    *_formula(
        "log-sum-exp without the scale", "(row_max * LOG2_E + ptx::lg2_approx_ftz_f32(row_sum)) * LN_2", harmless=FLAT
    ),
    *_formula("the maximum in place of the log-sum-exp", "row_max * scale_log2 * LN_2", harmless=_ONE_KEY),
    *_formula("the logarithm of the sum without the maximum", "ptx::lg2_approx_ftz_f32(row_sum) * LN_2", harmless=FLAT),
    *_formula(
        "the key of the largest score counted twice in the log-sum-exp",
        "(row_max * scale_log2 + ptx::lg2_approx_ftz_f32(row_sum + 1.0f)) * LN_2",
    ),
    *_formula("log-sum-exp in bfloat16", f"__uint_as_float(__float_as_uint({_FORMULA}) & 0xffff0000u)", harmless=_ZERO),
    *_bug(
        "scalar wmma",
        "all heads write the log-sum-exp of the first",
        ("lse + static_cast<long long>(q_head) * seq_q;", "lse;"),
        problem=GROUPED,
        harmless=EVEN,
        statuses=HAZARD | {Status.NOT_FINITE},
    ),
    *_bug(
        "flash",
        "all heads write the log-sum-exp of the first",
        (
            "static_cast<unsigned long long>(source.first_row_of_all(segment) + block_row) + row;",
            "static_cast<unsigned long long>(segment.q_tile * TILE_ROWS + block_row) + row;",
        ),
        problem=GROUPED,
        harmless=EVEN,
        statuses=HAZARD | {Status.NOT_FINITE},
    ),
    *_bug(
        "scalar",
        "keys behind the mask counted in the log-sum-exp",
        ("float acc[ROWS][COLS] = {};", "float acc[ROWS][COLS] = {};\n    float hidden[ROWS] = {};"),
        (
            "s[i][n] = key < visible ?",
            "hidden[i] += key >= visible && key < seq_kv\n"
            "                                 ? ptx::ex2_approx_ftz_f32(s[i][n] * score_scale.log2) : 0.0f;\n"
            "                s[i][n] = key < visible ?",
        ),
        (
            _WRITTEN,
            "log_sum_exp(0.0f, hidden[i] + row_sum[i] *\n"
            "                    ptx::ex2_approx_ftz_f32(softmax[i].max * score_scale.log2), score_scale.log2)",
        ),
        problem=CAUSAL,
        harmless=RAGGED,
    ),
    *_bug(
        "scalar",
        "the sum of one lane in the log-sum-exp",
        (_WRITTEN, "log_sum_exp(softmax[i].max, softmax[i].sum, score_scale.log2)"),
        harmless=_ONE_KEY,
    ),
    *_bug(
        "scalar",
        "the log-sum-exp a row further down",
        ("lse_of_block(lse, seq_q)[row]", "lse_of_block(lse, seq_q)[(row + 1) % seq_q]"),
        harmless=EVEN.with_(seq_q=1),
    ),
    *_bug(
        "scalar",
        "log-sum-exp written to a null pointer",
        ("if (lse != nullptr && key_lane == 0) {", "if (key_lane == 0) {"),
        statuses=HAZARD,
    ),
    *_bug(
        "scalar",
        "an output that depends on whether the log-sum-exp is asked for",
        (
            "const float normaliser = softmax_normaliser(row_sum[i]);",
            "const float normaliser = softmax_normaliser(row_sum[i]) * (lse != nullptr ? 1.0f : 1.001f);",
        ),
        statuses=frozenset({Status.NONDETERMINISTIC}),
    ),
)
