"""Bugs of the backward pass in CUDA: edits of the kernel that ``sdpalab new cuda --task backward`` writes, and of the
shipped ``flash_backward_two_pass``."""

from __future__ import annotations

from functools import partial
from typing import Any

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.edit import TEMPLATE
from sdpalab.bugs.links import link
from sdpalab.bugs.source import HAZARD_OR_WRONG, in_source
from sdpalab.problem import Problem

__all__ = ["BUGS"]

PLAIN = Problem(1, 2, 70, 32, task="backward")
CAUSAL = PLAIN.with_(causal=True)
CROSS = Problem(1, 2, 50, 32, seq_kv=100, causal=True, task="backward")
GROUPED = Problem(1, 6, 24, 16, kv_heads=2, task="backward")
BATCHES = Problem(2, 2, 40, 32, task="backward")

_DELTA_OF_DQ = "const float delta = dot(do_row, dq_row);"
_DELTA_OF_DK = "delta = fmaf(__half2float(dout[element]), __half2float(o[element]), delta);"
_DS_OF_DQ = "const float ds = p * (dot(do_row, v_smem[j]) - delta);"
_STORE = "store_row(out, kv_head * seq_kv + row, sum, OF_K ? scale : 1.0f);"
_BARRIER = """        }
        __syncthreads();
    }
    if (there) {
        store_row(dq"""


def _edit(
    what: str,
    *edits: tuple[str, str],
    problem: Problem = PLAIN,
    source: str = "",
    kernel: str = TEMPLATE,
    **fields: Any,
) -> tuple[Bug, ...]:
    return in_source(
        kernel,
        what,
        *edits,
        problem=problem,
        family=Family.GRADIENTS,
        link=link(source) if source else "",
        **fields,
    )


_two_pass = partial(_edit, kernel="flash_backward_two_pass")
TENSOR_CORES = Problem(1, 1, 100, 64, task="backward")
TENSOR_CORES_GROUPED = Problem(1, 4, 80, 64, kv_heads=2, task="backward")
TENSOR_CORES_CROSS = Problem(1, 1, 60, 64, seq_kv=150, causal=True, bottom_right=True, task="backward")

BUGS: tuple[Bug, ...] = (
    *_edit("delta of dQ is left out", (_DELTA_OF_DQ, "const float delta = 0.0f;")),
    *_edit("delta of dK is the sum of O", (_DELTA_OF_DK, "delta += __half2float(o[element]);")),
    *_edit(
        "delta of dK is that of the next row",
        (_DELTA_OF_DK, "delta = fmaf(__half2float(dout[element]), __half2float(o[element + HEAD_DIM]), delta);"),
        hazard="out-of-bounds",
    ),
    *_edit(
        "the log-sum-exp of the first tile of queries",
        (
            "lse_smem[threadIdx.x] = lse[q_rows + query0 + threadIdx.x];",
            "lse_smem[threadIdx.x] = lse[q_rows + threadIdx.x];",
        ),
        source="FA@b3f1b6a5",
    ),
    *_edit(
        "the log-sum-exp is taken for one to base 2",
        (
            "const float log_sum = there ? lse[query] : 0.0f;",
            "const float log_sum = there ? lse[query] * 0.6931472f : 0.0f;",
        ),
        source="gym#200",
    ),
    *_edit("dQ is not scaled", ("store_row(dq, query, dq_row, scale);", "store_row(dq, query, dq_row, 1.0f);")),
    *_edit("dK is scaled twice", (_STORE, _STORE.replace("OF_K ? scale", "OF_K ? scale * scale"))),
    *_edit("dV is scaled", (_STORE, _STORE.replace("OF_K ? scale : 1.0f", "scale"))),
    *_edit("dS lacks P", (_DS_OF_DQ, _DS_OF_DQ.replace("p * (", "("))),
    *_edit("delta is added", (_DS_OF_DQ, _DS_OF_DQ.replace("- delta", "+ delta"))),
    *_edit(
        "the last query head of a group is left out of dK and dV",
        ("member < group; ++member", "member < group - (group > 1); ++member"),
        problem=GROUPED,
        source="tilelang#930",
    ),
    *_edit(
        "dK and dV of K/V head h sum the query heads h, h + Hkv, ...",
        (
            "(kv_head * group + member) * seq_q;",
            "(size_t(blockIdx.z) * gridDim.y * group + member * gridDim.y + blockIdx.y) * seq_q;",
        ),
        problem=GROUPED,
        source="fla#384",
    ),
    *_edit(
        "query head h reads K/V head h // Hkv",
        ("head / group * seq_kv;", "head / (gridDim.y / group) % (gridDim.y / group) * seq_kv;"),
        problem=GROUPED,
        source="nsa#27",
    ),
    *_edit(
        "dQ of all batch entries reads the K and V of batch 0",
        ("head / group * seq_kv;", "blockIdx.y / group * seq_kv;"),
        problem=BATCHES,
    ),
    *_edit("dQ: query i sees key i + 1", ("min(row + 1, seq_kv)", "min(row + 2, seq_kv)"), problem=CAUSAL),
    *_edit(
        "dK: key j is not seen by query j",
        ("(CAUSAL ? max(row - query0, 0) : 0)", "(CAUSAL ? max(row + 1 - query0, 0) : 0)"),
        problem=CAUSAL,
    ),
    *_edit(
        "dQ: the loop over keys ends a tile too early",
        ("key0 < last; key0 += TILE", "key0 + TILE < last; key0 += TILE"),
        source="FA#1582",
    ),
    *_edit(
        "dK and dV of keys that no query sees are not written",
        (f"if (there) {{\n        {_STORE}", f"if (there && (!CAUSAL || row < seq_q)) {{\n        {_STORE}"),
        problem=CROSS,
        source="FA@6998e0ec",
    ),
    *_edit(
        "rows past the last key are keys, too",
        ("const int keys = min(TILE, seq_kv - key0);", "const int keys = TILE;"),
        hazard="out-of-bounds",
        source="FA@a4f148b6",
    ),
    *_edit(
        "rows past the last query are added to dK and dV",
        ("const int queries = min(TILE, seq_q - query0);", "const int queries = TILE;"),
        hazard="out-of-bounds",
        source="TE#3331",
    ),
    *_edit(
        "no barrier before the next tile of keys is copied",
        (_BARRIER, _BARRIER.replace("        __syncthreads();\n", "")),
        hazard="race",
        source="XF@5498468a",
    ),
    *_edit(
        "the sum of dQ begins with O",
        ("        dq_row[d] = 0.0f;\n", "        dq_row[d] += 0.0f;\n"),
        source="TE#2186",
    ),
    *_edit("dV is the sum of P Q", ("OF_K ? q_smem[i] : do_smem[i]", "q_smem[i]")),
    *_edit(
        "offsets of heads have 16 bits",
        (
            "const size_t kv_rows = head / group * seq_kv;",
            "const size_t kv_rows = short(head / group * seq_kv * HEAD_DIM) / HEAD_DIM;",
        ),
        problem=Problem(2, 8, 70, 32, task="backward"),
        hazard="out-of-bounds",
        source="FA#1500",
    ),
    *_two_pass(
        "delta of half of the columns",
        ("int distance = DELTA_LANES / 2; distance > 0;", "int distance = DELTA_LANES / 4; distance > 0;"),
        problem=TENSOR_CORES,
    ),
    *_two_pass("delta is the sum of O * O", ("(dout + row * HEAD_DIM)", "(o + row * HEAD_DIM)"), problem=TENSOR_CORES),
    *_two_pass(
        "the derivative of the soft cap is not squared",
        ("4.0f * power * part * part}", "4.0f * power * part}"),
        problem=TENSOR_CORES.with_(softcap=2.0),
        harmless=TENSOR_CORES,
        source="FA#2402",
    ),
    *_two_pass(
        "all query heads of a group are the first one",
        ("load_head += load_tile + 1 == tiles.end;", ""),
        problem=TENSOR_CORES_GROUPED,
        harmless=TENSOR_CORES,
        source="tilelang#930",
    ),
    *_two_pass(
        "the causal mask is aligned to the first key",
        ("key < end_key(query + ahead, keys);", "key < end_key(query, keys);"),
        problem=TENSOR_CORES_CROSS,
        harmless=TENSOR_CORES,
        source="FA@9e5e8bc9",
    ),
    *_two_pass(
        "the loop over queries ends one query before the window",
        ("min(last + WINDOW_LEFT - ahead + 1, queries)", "min(last + WINDOW_LEFT - ahead, queries)"),
        problem=TENSOR_CORES.with_(seq_q=129, seq_kv=129, window_size=(33, 0), causal=True),
        source="FA#1870",
    ),
    *_two_pass(
        "the distance of ALiBi is aligned to the first key",
        ("abs(query + entry.ahead - key)", "abs(query - key)"),
        problem=TENSOR_CORES_CROSS.with_(alibi_slopes=True),
        harmless=TENSOR_CORES,
        source="FA#540",
    ),
    *_two_pass(
        "no barrier before the next streamed tile is copied",
        ("ptx::cp_async_wait_group<0>();\n        __syncthreads();", "ptx::cp_async_wait_group<0>();"),
        problem=TENSOR_CORES,
        hazard="race",
        source="XF@5498468a",
    ),
    *_two_pass(
        "the epilogue overwrites rows that other warps still read",
        ("__syncthreads();  // the results", "// the results"),
        problem=TENSOR_CORES,
        hazard="race",
        source="FA@1c41d2b0",
    ),
    *_two_pass(
        "the log-sum-exp and delta of a tile are stored in the stage of the tile before",
        ("keep_statistic(stage ^ 1);", "keep_statistic(stage);"),
        problem=TENSOR_CORES,
        statuses=HAZARD_OR_WRONG,
        source="FA@b3f1b6a5",
    ),
)
"""Edits by their text."""
