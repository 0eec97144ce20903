"""Typical bugs of kernels on tensor memory, planted in ``blackwell`` and its headers."""

from __future__ import annotations

from collections.abc import Mapping

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.source import in_source
from sdpalab.kernels.kernel import Knob
from sdpalab.problem import Problem

__all__ = ["BUGS"]

_TWO: Mapping[str, Knob] = {"Q_TILES": 2, "SPLIT": 1, "NUM_STAGES": 1}
_RAGGED = Problem(1, 1, 200, 64, seq_kv=128 * 3 - 7)
"""Two tiles of rows, the second one ragged; three tiles of keys through one stage, the last one ragged."""
_STEEP = _RAGGED.with_(scale=4.0)
"""Scores that outgrow the first maxima."""
_CAUSAL = Problem(1, 1, 200, 64, seq_kv=200, causal=True)


def _bug(
    what: str, hazard: str, *replacements: tuple[str, str], problem: Problem = _RAGGED, harmless: Problem | None = None
) -> tuple[Bug, ...]:
    """One bug; without a ``hazard``, only the output reveals it."""
    family = Family.SYNCHRONISATION if hazard else Family.CUDA
    return in_source(
        "blackwell", what, *replacements, problem=problem, harmless=harmless, hazard=hazard, family=family, knobs=_TWO
    )


_FENCE_AFTER = "            ptx::tcgen05_fence_after_thread_sync();\n"
_SCORES_THERE = "            mbarrier_wait(smem.barriers.s_full[tile], parity);\n"
_ADVANCE = "factor = softmax.advance(tile_max, scale.log2);"
_STAGE_FREE = "            mbarrier_wait(smem.barriers.empty[at.stage][operand], at.parity ^ 1);\n"
_OUTPUT_THERE = "            mbarrier_wait(smem.barriers.o_full[tile], 0);\n"
_WEIGHTS_THERE = "                mbarrier_wait(barriers.p_full[tile], step & 1);\n"

BUGS: tuple[Bug, ...] = (
    # Synchronisation.
    *_bug("no wait for the scores", "tensor-memory", (_SCORES_THERE, "")),
    *_bug("no fence after the wait for the scores", "tensor-memory", (_SCORES_THERE + _FENCE_AFTER, _SCORES_THERE)),
    *_bug(
        "no wait for the stores of the weights",
        "tensor-memory",
        ("16 * i, pairs);\n            }\n            ptx::tcgen05_wait_st();\n", "16 * i, pairs);\n            }\n"),
    ),
    *_bug(
        "no fence before the weights are passed on",
        "tensor-memory",
        (
            "scores.store(scores_tensor);\n            ptx::tcgen05_fence_before_thread_sync();\n",
            "scores.store(scores_tensor);\n",
        ),
    ),
    *_bug("a product does not wait for the weights", "tensor-memory", (_WEIGHTS_THERE, "")),
    *_bug("a stage is loaded before its product is complete", "async", (_STAGE_FREE, "")),
    *_bug("the output is stored during a product", "tensor-memory", (_OUTPUT_THERE, "")),
    *_bug(
        "the scores are committed before their product",
        "tensor-memory",
        (
            "            ptx::tcgen05_commit(ptx::smem_address(&barriers.s_full[tile]));\n        };",
            "        };",
        ),
        (
            "            issue_scores<KEYS>(scores(tensor, tile),",
            "            ptx::tcgen05_commit(ptx::smem_address(&barriers.s_full[tile]));\n"
            "            issue_scores<KEYS>(scores(tensor, tile),",
        ),
    ),
    *_bug(
        "a warp reads the lanes of another",
        "tensor-memory",
        ("threadIdx.x / 32 % 4 << 21", "threadIdx.x / 64 % 4 << 21"),
    ),
    *_bug(
        "columns are not freed",
        "tensor-memory",
        ("            ptx::tcgen05_dealloc<COLUMNS>(tensor);\n", ""),
    ),
    *_bug(
        "the correction does not wait for the factors",
        "race",
        ("                mbarrier_wait(smem.barriers.factors[tile], step & 1);\n", ""),
    ),
    # Results.
    *_bug("K's descriptor does not advance", "", ("k + column_step<KEYS>(step), PRODUCT", "k, PRODUCT")),
    *_bug("V's descriptor does not advance", "", ("v + row_step(step), PRODUCT", "v, PRODUCT")),
    *_bug(
        "the first product of a tile of keys overwrites the output",
        "",
        ("PRODUCT<HEAD_DIM, true>, adds || step > 0", "PRODUCT<HEAD_DIM, true>, step > 0"),
    ),
    *_bug(
        "the second tile of rows has the mask of the first",
        "",
        ("visible(row, seq_kv,", "visible(first_row + own, seq_kv,"),
        problem=_CAUSAL,
        harmless=_RAGGED,
    ),
    *_bug("O is not rescaled", "", ("                each *= factor;\n", ""), problem=_STEEP),
    *_bug(
        "the sum of a row is not rescaled",
        "",
        (_ADVANCE, f"const float sum = softmax.sum;\n                {_ADVANCE}\n                softmax.sum = sum;"),
        problem=_STEEP,
    ),
)
