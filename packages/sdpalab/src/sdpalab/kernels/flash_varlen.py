"""The kernel ``flash_varlen``: its knobs and its launch. The idea is in ``flash_varlen.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Knob
from sdpalab.kernels.plan import Launch, LaunchPlan
from sdpalab.kernels.sequences import (
    FEATURES,
    KNOBS,
    block_threads,
    heads_of_tile,
    limits,
    query_tiles,
    reject_blocks,
    sequence_macros,
    shared_bytes,
    supports,
)
from sdpalab.packing import Packing
from sdpalab.problem import Problem

__all__ = ["FLASH_VARLEN"]

VARLEN_KNOBS = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (16, 32, 64), **KNOBS}


def _supports(problem: Problem) -> str | None:
    if not problem.varlen:
        return f"kernel flash_varlen takes packed sequences, not layout {problem.layout}"
    return supports(problem, "flash_varlen")


def _resolve(problem: Problem, config: Config, sms: int = 0) -> Config:
    """``config`` with keys of a tile for BLOCK_N=0: those whose scores have registers beside O."""
    widest = max(problem.head_dim, problem.dim_v)
    return config.but(BLOCK_N=config.int("BLOCK_N") or (64 if widest <= 64 else 32 if widest <= 192 else 16))


def _reject(problem: Problem, config: Config) -> str | None:
    return reject_blocks(problem, _resolve(problem, config), VARLEN_KNOBS)


def _macros(problem: Problem, config: Config) -> dict[str, Knob]:
    return sequence_macros(problem, config, ("BLOCK_M", "BLOCK_N", "ROWS_PER_WARP", "NUM_STAGES"))


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    total_q = Packing(problem).inputs["q"][0][0]
    lengths = "kv_lengths" if problem.layout_form.gaps else 0
    launch = Launch(
        grid=(query_tiles(problem, config), problem.heads // heads_of_tile(problem, config), 1),
        block=(block_threads(config), 1, 1),
        args=(
            *("q", "k", "v", "o", "lse", "cu_seqlens_q", "cu_seqlens_k", lengths),
            *(problem.batch, total_q, problem.heads, problem.kv_heads, problem.scale),
        ),
        dynamic_smem=shared_bytes(problem, config),
    )
    return LaunchPlan((), (launch,))


_VARLEN = Config(BLOCK_M=64, BLOCK_N=0, ROWS_PER_WARP=16, NUM_STAGES=2, PACK_GQA=1)

FLASH_VARLEN = CudaKernel(
    name="flash_varlen",
    source=Path("flash_varlen.cu"),
    entry="flash_varlen",
    plan=_plan,
    configs=(_VARLEN, _VARLEN.but(BLOCK_M=128, ROWS_PER_WARP=32), _VARLEN.but(PACK_GQA=0, NUM_STAGES=3)),
    supports=_supports,
    reject=_reject,
    limits=limits,
    knobs={**VARLEN_KNOBS, "BLOCK_N": (0, 16, 32, 64)},
    macros=_macros,
    resolve=_resolve,
    lse=True,
    features=(*FEATURES, "kv_lengths"),
    idea="flash for packed sequences: a block finds its sequence by a binary search, no list of work",
)
