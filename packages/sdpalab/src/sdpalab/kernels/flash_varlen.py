"""The kernel ``flash_varlen``: its knobs and its launch. The idea is in ``flash_varlen.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Knob
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan
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

VARLEN_KNOBS = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (16, 32, 64), "ORDER": ("grid", "longest"), **KNOBS}
BLOCKS_PER_SM = 2
ORDER_THREADS = 1024
"""Threads of the block that sorts, and its buckets."""


def _supports(problem: Problem) -> str | None:
    if not problem.varlen:
        return f"kernel flash_varlen takes packed sequences, not layout {problem.layout}"
    return supports(problem, "flash_varlen")


def _resolve(problem: Problem, config: Config, sms: int = 1) -> Config:
    """``config`` with keys of a tile for BLOCK_N=0, whose scores have registers beside O, and an order for ``auto``:
    longest first where the tiles of several sequences do not fit on ``sms`` SMs at once."""
    widest = max(problem.head_dim, problem.dim_v)
    config = config.but(BLOCK_N=config.int("BLOCK_N") or (64 if widest <= 64 else 32 if widest <= 192 else 16))
    blocks = query_tiles(problem, config) * problem.heads // heads_of_tile(problem, config)
    waves = problem.batch > 1 and blocks > BLOCKS_PER_SM * sms
    return config.but(ORDER=("longest" if waves else "grid") if config["ORDER"] == "auto" else config["ORDER"])


def _reject(problem: Problem, config: Config) -> str | None:
    return reject_blocks(problem, _resolve(problem, config), VARLEN_KNOBS)


def _macros(problem: Problem, config: Config) -> dict[str, Knob]:
    return sequence_macros(problem, config, ("BLOCK_M", "BLOCK_N", "ROWS_PER_WARP", "NUM_STAGES"))


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    total_q = Packing(problem).inputs["q"][0][0]
    lengths = ("cu_seqlens_q", "cu_seqlens_k", "kv_lengths" if problem.layout_form.gaps else 0)
    tiles, sorts = query_tiles(problem, config), config["ORDER"] == "longest"
    launch = Launch(
        grid=(problem.heads // heads_of_tile(problem, config), tiles, 1),
        block=(block_threads(config), 1, 1),
        args=(
            *("q", "k", "v", "o", "lse", *lengths, "order" if sorts else 0),
            *(problem.batch, total_q, problem.heads, problem.kv_heads, problem.scale),
        ),
        dynamic_smem=shared_bytes(problem, config),
    )
    if not sorts:
        return LaunchPlan((), (launch,))
    sort = Launch((1, 1, 1), (ORDER_THREADS, 1, 1), (*lengths, problem.batch, tiles, "order"), entry="order_tiles")
    return LaunchPlan((Buffer("order", (tiles,), "int32", "workspace"),), (sort, launch))


_VARLEN = Config(BLOCK_M=64, BLOCK_N=0, ROWS_PER_WARP=16, NUM_STAGES=2, PACK_GQA=1, ORDER="auto")

FLASH_VARLEN = CudaKernel(
    name="flash_varlen",
    source=Path("flash_varlen.cu"),
    entry="flash_varlen",
    plan=_plan,
    configs=(
        _VARLEN,
        _VARLEN.but(BLOCK_M=128, ROWS_PER_WARP=32),
        _VARLEN.but(PACK_GQA=0, NUM_STAGES=3),
        _VARLEN.but(BLOCK_N=32, ORDER="longest"),
    ),
    supports=_supports,
    reject=_reject,
    limits=limits,
    knobs={**VARLEN_KNOBS, "BLOCK_N": (0, 16, 32, 64), "ORDER": ("auto", "grid", "longest")},
    macros=_macros,
    resolve=_resolve,
    lse=True,
    features=(*FEATURES, "kv_lengths"),
    idea="flash for packed sequences: blocks find their sequences by a binary search, and the longest tiles run first",
)
