"""Bugs in the source of the shipped CUDA kernels, made by substitution.

A bug in a shared header is planted in the copy that the kernel includes, so that every kernel has every such bug.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sdpalab.bugs.bug import Bug, Mutant
from sdpalab.bugs.edit import (
    CAUSAL,
    CROSS,
    EVEN,
    FLAT,
    GROUPED,
    HAZARD,
    HAZARD_OR_WRONG,
    RAGGED,
    SEVERAL_TILES,
    Edit,
)
from sdpalab.bugs.fp8 import FP8_BUGS, FP8_KERNELS, WIDENED, WIDENING_BUGS
from sdpalab.bugs.lse import LSE_BUGS
from sdpalab.bugs.merge import MERGE_BUGS, MERGING
from sdpalab.kernels.kernel import CudaKernel, Knob
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.kernels.registry import CUDA_KERNELS

__all__ = ["mutants"]

_KERNELS = ("scalar", "wmma", "flash")

_BUGS = (
    Edit(
        "rescale of O lost",
        ("scalar",),
        [("const float rescale = softmax[", "const float rescale = 1.0f + 0.0f * softmax[")],
        EVEN,
        EVEN.with_(seq_kv=16),
    ),
    Edit(
        "rescale of O lost",
        ("wmma",),
        [("const float rescale = softmax.", "const float rescale = 1.0f + 0.0f * softmax.")],
        EVEN,
        EVEN.with_(seq_kv=16),
    ),
    Edit(
        "rescale of O lost",
        ("flash",),
        [("o_frag[d][i] *= rescale[i / 2];", "o_frag[d][i] *= 1.0f + 0.0f * rescale[i / 2];")],
        EVEN,
        EVEN.with_(seq_kv=16),
    ),
    Edit("rescale of the sum lost", "softmax/online.cuh", [("sum *= rescale;", "")], EVEN, FLAT),
    Edit("no log2(e)", "softmax/online.cuh", [("fabsf(scale) * LOG2_E)", "fabsf(scale))")], EVEN, FLAT),
    Edit(
        "the sign of the scale ignored",
        "softmax/online.cuh",
        [("copysignf(1.0f, scale)", "1.0f")],
        EVEN.with_(scale=-0.2),
        EVEN,
    ),
    Edit("no normalisation", "softmax/online.cuh", [(": ptx::rcp_approx_ftz_f32(row_sum)", ": 1.0f")], EVEN),
    Edit(
        "the maximum starts at 0",
        "softmax/online.cuh",
        [("float max = LOWEST_FLOAT;", "float max = 0.0f;")],
        EVEN,
        FLAT,
    ),
    Edit(
        "clamped exponents, epsilon in the sum, zeros for what is not finite",
        "softmax/online.cuh",
        [
            (
                "const float exponent = (score - reference) * scale_log2;",
                "const float exponent = fminf(fmaxf((score - reference) * scale_log2, -10.0f), 10.0f);",
            ),
            (
                "row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum)",
                "fabsf(row_sum) <= 3.4e38f ? ptx::rcp_approx_ftz_f32(row_sum + 1e-6f) : 0.0f",
            ),
        ],
        CAUSAL,
        FLAT,
    ),
    Edit(
        "query i sees key i + 1",
        "softmax/mask.cuh",
        [("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? min(row + 2, seq_kv)")],
        CAUSAL,
        RAGGED,
    ),
    Edit(
        "the end of the keys forgotten under the mask",
        "softmax/mask.cuh",
        [("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? row + 1")],
        CROSS,
        CAUSAL,
        HAZARD_OR_WRONG,
    ),
    Edit(
        "the last, ragged tile dropped",
        "softmax/mask.cuh",
        [
            (
                "return ceil_div(visible_keys(last_row, seq_kv), block_n)",
                "return visible_keys(last_row, seq_kv) / block_n",
            )
        ],
        RAGGED,
        EVEN,
        HAZARD_OR_WRONG,
    ),
    Edit(
        "query head h reads K/V head h mod Hkv",
        "schedule/head.cuh",
        [("(q_head / group)", "(q_head / gridDim.y * (gridDim.y / group) + q_head % (gridDim.y / group))")],
        GROUPED,
        EVEN,
    ),
    Edit(
        "all batches read the K and V of batch 0",
        "schedule/head.cuh",
        [("(q_head / group)", "(q_head % gridDim.y / group)")],
        GROUPED,
        EVEN,
    ),
    Edit(
        "pairs packed the wrong way round",
        "tile/dtype.cuh",
        [("return ptx::cvt_rn_f16x2_f32(low, high);", "return ptx::cvt_rn_f16x2_f32(high, low);")],
        EVEN,
    ),
    Edit(
        "rows past the end of K and V are loaded",
        ("scalar",),
        [("if (row < rows_left) {", "if (row <= rows_left) {")],
        RAGGED,
        EVEN,
        HAZARD,
    ),
    Edit(
        "rows past the end of K and V are loaded",
        ("wmma",),
        [("src + e, row < rows_left", "src + e, row <= rows_left")],
        RAGGED,
        EVEN,
        HAZARD,
    ),
    Edit(
        "rows past the end of K and V are loaded",
        "tile/swizzle.cuh",
        [("pass_row < rows_left ? CHUNK_BYTES : 0", "pass_row <= rows_left ? CHUNK_BYTES : 0")],
        RAGGED,
        EVEN,
        HAZARD,
    ),
    Edit("rows past the end of O are stored", ("scalar", "wmma"), [("if (row < seq_q) {", "{")], RAGGED, EVEN, HAZARD),
    Edit(
        "rows past the end of O are stored",
        "epilogue/store.cuh",
        [("if (row < rows_left) {", "{")],
        RAGGED,
        EVEN,
        HAZARD,
    ),
    Edit(
        "the tile at the edge is not masked",
        ("flash",),
        [
            (
                "return visible_keys(first_row, seq_kv) / block_n;",
                "return ceil_div(visible_keys(first_row, seq_kv), block_n);",
            )
        ],
        RAGGED,
        EVEN,
    ),
    Edit(
        "the mask of row lane / 4 used for row lane / 4 + 8",
        ("flash",),
        [("visible_keys(row + 8, seq_kv) - column}", "visible_keys(row, seq_kv) - column}")],
        CAUSAL,
        RAGGED,
    ),
    Edit(
        "the maximum of two lanes in place of four",
        ("flash",),
        [("return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));", "return x;")],
        EVEN,
        FLAT,
    ),
    Edit(
        "the sum of two lanes in place of four",
        ("flash",),
        [("return x + __shfl_xor_sync(0xffffffffu, x, 2);", "return x;")],
        EVEN,
    ),
    Edit(
        "V loaded without the transpose",
        ("flash",),
        [("ptx::ldmatrix_x4_trans(v_frag,", "ptx::ldmatrix_x4(v_frag,")],
        EVEN,
    ),
    Edit(
        "K addressed as if it were Q",
        ("flash",),
        [("smem_base + col_block_offset<HEAD_DIM>(lane);", "smem_base + row_block_offset<HEAD_DIM>(lane);")],
        EVEN,
        FLAT,
    ),
    Edit(
        "the swizzle of another phase where the copy writes",
        "tile/swizzle.cuh",
        [
            (
                "smem_offset(swizzled_offset<COLS>(thread / CHUNKS, thread % CHUNKS))",
                "smem_offset(swizzled_offset<COLS>(thread / CHUNKS + 2, thread % CHUNKS) - 2 * CHUNKS * CHUNK_BYTES)",
            )
        ],
        EVEN,
    ),
    Edit(
        "both halves of a row add up the whole sum",
        ("wmma",),
        [("softmax.sum + __shfl_xor_sync(0xffffffffu, softmax.sum, TILE)", "2.0f * softmax.sum")],
        EVEN,
        FLAT,
    ),
)

_LOADED = "no barrier between the loads and the products"
_REUSED = "no barrier before the next tile's loads"

_SYNCHRONISATION = (
    (_LOADED, "scalar", "tile_sync();\n\n        // S = Q K^T", "// S = Q K^T"),
    (_REUSED, "scalar", "tile_sync();  // everyone has read", "// everyone has read"),
    (_LOADED, "wmma", "__syncthreads();  // this tile has come, for all\n", ""),
    (_REUSED, "wmma", "__syncthreads();  // everyone has read", "// everyone has read"),
    ("no wait for the copy of Q", "flash", "ptx::cp_async_wait_group<NUM_STAGES - 1>();", ""),
    ("no barrier after the copy of Q", "flash", "__syncthreads();\n        unsigned q_frag", "unsigned q_frag"),
    ("no wait for a tile", "flash", "ptx::cp_async_wait_group<NUM_STAGES - 2>();", ""),
    ("a group too few waited for", "flash", "wait_group<NUM_STAGES - 2>", "wait_group<NUM_STAGES - 1>"),
    ("no barrier after a tile's copy", "flash", "__syncthreads();\n            load(", "load("),
    ("no barrier before the output overwrites keys", "flash", "__syncthreads();  // the output", "// the output"),
    ("the tiles' copies are not committed", "flash", "ptx::cp_async_commit_group();\n        };", "};"),
    (
        "the copy is a stage ahead of its place",
        "flash",
        "stage == 0 ? SMEM_BYTES - STAGE_BYTES : stage - STAGE_BYTES",
        "stage",
    ),
)
"""What is missing, in which kernel, and the substitution."""


def mutants() -> list[Mutant]:
    """All bugs in the source of the shipped kernels.

    Raises
    ------
    ValueError
        If the text that a bug replaces is not there exactly once: the kernel has changed, and the bug has to follow.
    """
    made = []
    for name in (*_KERNELS, *FP8_KERNELS):
        kernel, (text, headers) = CUDA_KERNELS[name], _flattened(name)
        planted = []
        if name == "flash":
            planted = [(bug, _with_knobs(kernel, MERGING)) for bug in MERGE_BUGS]
            kernel = _with_knobs(kernel, {"SCHEDULE": "tiles"})
        elif name == "fp8":
            planted = [(bug, _with_knobs(kernel, WIDENED)) for bug in WIDENING_BUGS]
        bugs = FP8_BUGS if name in FP8_KERNELS else (*_BUGS, *LSE_BUGS)
        planted += [(bug, kernel) for bug in bugs if bug.where in headers or name in bug.where]
        for bug, configured in planted:
            candidate = _edited(configured, text, bug.edits)
            what = f"{name}: {bug.name}"
            made.append(Mutant(bug.bug, what, candidate, bug.problem, bug.statuses, harmless=bug.harmless))
        for what, where, old, new in _SYNCHRONISATION:
            if where == name:
                candidate = _edited(kernel, text, [(old, new)])
                made.append(Mutant(Bug.SYNCHRONISATION, f"{name}: {what}", candidate, SEVERAL_TILES, HAZARD))
    return made


def _with_knobs(kernel: CudaKernel, knobs: Mapping[str, Knob]) -> CudaKernel:
    """The kernel with one configuration, the default one with those knobs."""
    return replace(kernel, configs=(kernel.default_config.but(**knobs),))


def _flattened(name: str) -> tuple[str, set[str]]:
    """A kernel's source with the shared headers in place of their #include directives, and their names."""
    seen: set[str] = set()

    def flat(text: str) -> str:
        def body(match: re.Match[str]) -> str:
            if match[1] in seen:
                return ""
            seen.add(match[1])
            return flat((INCLUDE_DIR / match[1]).read_text().replace("#pragma once", ""))

        return re.sub(r'^#include "(.*)"$', body, text, flags=re.MULTILINE)

    source = CUDA_KERNELS[name].source
    assert isinstance(source, Path)
    return flat(source.read_text()), seen


def _edited(kernel: CudaKernel, text: str, edits: Sequence[tuple[str, str]]) -> CudaKernel:
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{kernel.name}: {old!r} is there {text.count(old)} times, and a bug needs it once")
        text = text.replace(old, new)
    return replace(kernel, name=f"{kernel.name}-mutant", source=text)
