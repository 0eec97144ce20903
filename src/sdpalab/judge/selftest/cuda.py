"""Bugs in the source of the shipped CUDA kernels, made by substitution.

A bug in a shared header is planted in the copy that the kernel includes, so that every kernel has every such bug.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdpalab.judge.selftest.mutant import WRONG, Bug, Mutant
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.kernels.registry import CUDA_KERNELS
from sdpalab.problem import Problem

__all__ = ["mutants"]

_RAGGED = Problem(1, 1, 100, 32)  # no kernel's tile of keys divides 100
_CAUSAL = _RAGGED.with_(causal=True)
_CROSS = Problem(1, 1, 150, 32, seq_kv=90, causal=True)
_EVEN = Problem(1, 1, 128, 32)
_GROUPED = Problem(2, 4, 80, 32, kv_heads=2)
_SEVERAL_TILES = Problem(1, 1, 200, 64)
_FLAT = _EVEN.with_(scale=0.0)
"""All scores are 0, and all weights 1."""

_HAZARD = frozenset({Status.HAZARD})
_HAZARD_OR_WRONG = WRONG | _HAZARD


@dataclass(frozen=True)
class _Edit:
    """One bug. ``where`` is a header, or the kernels whose own file it is planted in; ``old`` is there just once."""

    name: str
    where: str | tuple[str, ...]
    edits: Sequence[tuple[str, str]]
    problem: Problem
    harmless: Problem | None = None
    statuses: frozenset[Status] = WRONG


_KERNELS = ("scalar", "wmma", "flash")

_BUGS = (
    _Edit(
        "rescale of O lost",
        ("scalar", "flash"),
        [("const float rescale = softmax[", "const float rescale = 1.0f + 0.0f * softmax[")],
        _EVEN,
        _EVEN.with_(seq_kv=16),
    ),
    _Edit(
        "rescale of O lost",
        ("wmma",),
        [("const float rescale = softmax.", "const float rescale = 1.0f + 0.0f * softmax.")],
        _EVEN,
        _EVEN.with_(seq_kv=16),
    ),
    _Edit("rescale of the sum lost", "softmax.cuh", [("sum *= rescale;", "")], _EVEN, _FLAT),
    _Edit("no log2(e)", "softmax.cuh", [("fabsf(scale) * LOG2_E)", "fabsf(scale))")], _EVEN, _FLAT),
    _Edit(
        "the sign of the scale ignored",
        "softmax.cuh",
        [("copysignf(1.0f, scale)", "1.0f")],
        _EVEN.with_(scale=-0.2),
        _EVEN,
    ),
    _Edit("no normalisation", "softmax.cuh", [(": ptx::rcp_approx_ftz_f32(row_sum)", ": 1.0f")], _EVEN),
    _Edit(
        "the maximum starts at 0",
        "softmax.cuh",
        [("float max = LOWEST_FLOAT;", "float max = 0.0f;")],
        _EVEN,
        _FLAT,
    ),
    _Edit(
        "clamped exponents, epsilon in the sum, zeros for what is not finite",
        "softmax.cuh",
        [
            (
                "ptx::ex2_approx_ftz_f32((score - reference) * scale_log2)",
                "ptx::ex2_approx_ftz_f32(fminf(fmaxf((score - reference) * scale_log2, -10.0f), 10.0f))",
            ),
            (
                "row_sum == 0.0f ? 0.0f : ptx::rcp_approx_ftz_f32(row_sum)",
                "fabsf(row_sum) <= 3.4e38f ? ptx::rcp_approx_ftz_f32(row_sum + 1e-6f) : 0.0f",
            ),
        ],
        _CAUSAL,
        _FLAT,
    ),
    _Edit(
        "query i sees key i + 1",
        "mask.cuh",
        [("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? min(row + 2, seq_kv)")],
        _CAUSAL,
        _RAGGED,
    ),
    _Edit(
        "the end of the keys forgotten under the mask",
        "mask.cuh",
        [("CAUSAL ? min(row + 1, seq_kv)", "CAUSAL ? row + 1")],
        _CROSS,
        _CAUSAL,
        _HAZARD_OR_WRONG,
    ),
    _Edit(
        "the last, ragged tile dropped",
        "mask.cuh",
        [
            (
                "return ceil_div(visible_keys(last_row, seq_kv), block_n)",
                "return visible_keys(last_row, seq_kv) / block_n",
            )
        ],
        _RAGGED,
        _EVEN,
        _HAZARD_OR_WRONG,
    ),
    _Edit(
        "query head h reads K/V head h mod Hkv",
        "head.cuh",
        [("blockIdx.y / group;", "blockIdx.y % (gridDim.y / group);")],
        _GROUPED,
        _EVEN,
    ),
    _Edit(
        "all batches read the K and V of batch 0",
        "head.cuh",
        [("static_cast<long long>(blockIdx.z) * (gridDim.y / group) + ", "")],
        _GROUPED,
        _EVEN,
    ),
    _Edit(
        "pairs packed the wrong way round",
        "dtype.cuh",
        [("return ptx::cvt_rn_f16x2_f32(low, high);", "return ptx::cvt_rn_f16x2_f32(high, low);")],
        _EVEN,
    ),
    _Edit(
        "rows past the end of K and V are loaded",
        ("scalar", "wmma"),
        [("if (row < rows_left) {", "if (row <= rows_left) {")],
        _RAGGED,
        _EVEN,
        _HAZARD,
    ),
    _Edit(
        "rows past the end of K and V are loaded",
        "tile.cuh",
        [("pass_row < rows_left ? CHUNK_BYTES : 0", "pass_row <= rows_left ? CHUNK_BYTES : 0")],
        _RAGGED,
        _EVEN,
        _HAZARD,
    ),
    _Edit(
        "rows past the end of O are stored", ("scalar", "wmma"), [("if (row < seq_q) {", "{")], _RAGGED, _EVEN, _HAZARD
    ),
    _Edit(
        "rows past the end of O are stored",
        "store.cuh",
        [("if (row < rows_left) {", "{")],
        _RAGGED,
        _EVEN,
        _HAZARD,
    ),
    _Edit(
        "the tile at the edge is not masked",
        ("flash",),
        [
            (
                "return visible_keys(first_row, seq_kv) / block_n;",
                "return ceil_div(visible_keys(first_row, seq_kv), block_n);",
            )
        ],
        _RAGGED,
        _EVEN,
    ),
    _Edit(
        "the mask of row lane / 4 used for row lane / 4 + 8",
        ("flash",),
        [("visible_keys(row + 8, seq_kv) - column}", "visible_keys(row, seq_kv) - column}")],
        _CAUSAL,
        _RAGGED,
    ),
    _Edit(
        "the maximum of two lanes in place of four",
        ("flash",),
        [("return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));", "return x;")],
        _EVEN,
        _FLAT,
    ),
    _Edit(
        "the sum of two lanes in place of four",
        ("flash",),
        [("return x + __shfl_xor_sync(0xffffffffu, x, 2);", "return x;")],
        _EVEN,
    ),
    _Edit(
        "V loaded without the transpose",
        ("flash",),
        [("ptx::ldmatrix_x4_trans(v_frag,", "ptx::ldmatrix_x4(v_frag,")],
        _EVEN,
    ),
    _Edit(
        "K addressed as if it were Q",
        ("flash",),
        [("smem_base + col_block_offset<HEAD_DIM>(lane);", "smem_base + row_block_offset<HEAD_DIM>(lane);")],
        _EVEN,
        _FLAT,
    ),
    _Edit(
        "the swizzle of another phase where the copy writes",
        "tile.cuh",
        [
            (
                "smem_offset(swizzled_offset<COLS>(thread / CHUNKS, thread % CHUNKS))",
                "smem_offset(swizzled_offset<COLS>(thread / CHUNKS + 2, thread % CHUNKS) - 2 * CHUNKS * CHUNK_BYTES)",
            )
        ],
        _EVEN,
    ),
    _Edit(
        "both halves of a row add up the whole sum",
        ("wmma",),
        [("softmax.sum + __shfl_xor_sync(0xffffffffu, softmax.sum, TILE)", "2.0f * softmax.sum")],
        _EVEN,
        _FLAT,
    ),
)

_LOADED = "no barrier between the loads and the products"
_REUSED = "no barrier before the next tile's loads"

_SYNCHRONISATION = (
    (_LOADED, "scalar", "tile_sync();\n\n        // S = Q K^T", "// S = Q K^T"),
    (_REUSED, "scalar", "tile_sync();  // everyone has read", "// everyone has read"),
    (_LOADED, "wmma", "__syncthreads();\n\n        warp_product", "warp_product"),
    (_REUSED, "wmma", "__syncthreads();  // everyone has read", "// everyone has read"),
    ("no wait for the copy of Q", "flash", "ptx::cp_async_wait_group<NUM_STAGES - 1>();", ""),
    ("no barrier after the copy of Q", "flash", "__syncthreads();\n    const ScoreScale", "const ScoreScale"),
    ("no wait for a tile", "flash", "ptx::cp_async_wait_group<NUM_STAGES - 2>();", ""),
    ("a group too few waited for", "flash", "wait_group<NUM_STAGES - 2>", "wait_group<NUM_STAGES - 1>"),
    ("no barrier after a tile's copy", "flash", "__syncthreads();\n        load(", "load("),
    ("no barrier before the output overwrites keys", "flash", "__syncthreads();  // the output", "// the output"),
    ("the tiles' copies are not committed", "flash", "ptx::cp_async_commit_group();\n    };", "};"),
    ("the copy is a stage ahead of its place", "flash", "load_stage = 0;", "load_stage = STAGE_BYTES;"),
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
    for name in _KERNELS:
        kernel, (text, headers) = CUDA_KERNELS[name], _flattened(name)
        for bug in _BUGS:
            if bug.where in headers or name in bug.where:
                candidate = _edited(kernel, text, bug.edits)
                what = f"{name}: {bug.name}"
                made.append(Mutant(Bug.CUDA, what, candidate, bug.problem, bug.statuses, harmless=bug.harmless))
        for what, where, old, new in _SYNCHRONISATION:
            if where == name:
                candidate = _edited(kernel, text, [(old, new)])
                made.append(Mutant(Bug.SYNCHRONISATION, f"{name}: {what}", candidate, _SEVERAL_TILES, _HAZARD))
    return made


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
