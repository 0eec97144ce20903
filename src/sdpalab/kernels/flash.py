"""The ``flash`` kernel: its knobs, its shared memory and its launch. The idea is told in ``flash.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, ladder_supports, reject_oversized
from sdpalab.kernels.plan import Launch
from sdpalab.problem import DTYPES, Problem

__all__ = ["FLASH", "smem_bytes", "tile_n"]

WARP_M = 16
TILE_SIZES = (32, 64, 128)
STAGES = (2, 3, 4)
MAX_SHARED_BYTES = 99 * 1024
"""What a block may have on sm_86, sm_89 and sm_120, the least of all from sm_80 on."""


def tile_n(problem: Problem, config: Config) -> int:
    """Keys of a tile: BLOCK_N, or by head_dim where that is 0.

    Above 64 the accumulator of O takes the registers that 64 keys of scores would need.
    """
    return config.int("BLOCK_N") or (32 if problem.head_dim > 64 else 64)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: a tile of K and one of V in each stage."""
    return config.int("NUM_STAGES") * 2 * tile_n(problem, config) * problem.head_dim * 2


def _threads(config: Config) -> int:
    return config.int("BLOCK_M") // WARP_M * 32


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, tuple(DTYPES), "flash")


def _reject(problem: Problem, config: Config) -> str | None:
    block_m, block_n, stages = (config.int(name) for name in ("BLOCK_M", "BLOCK_N", "NUM_STAGES"))
    if block_m not in TILE_SIZES:
        return f"BLOCK_M must be 32, 64 or 128, not {block_m}"
    if block_n not in (0, *TILE_SIZES):
        return f"BLOCK_N must be 32, 64, 128, or 0 for a tile by head_dim, not {block_n}"
    if stages not in STAGES:
        return f"NUM_STAGES must be 2, 3 or 4, not {stages}"
    keys = tile_n(problem, config)
    if block_m > 2 * keys:
        return f"BLOCK_M={block_m} must be at most twice the tile of {keys} keys: Q passes through the memory of one stage"
    rows = _threads(config) * 8 // problem.head_dim
    if rows % 8 or keys % rows:
        return (
            f"BLOCK_M={block_m} copies {rows} rows of {problem.head_dim} at a time, which must be a multiple of 8 that "
            f"divides the tile of {keys} keys"
        )
    fragments = 3 * problem.head_dim // 4 + keys // 2
    if fragments > MAX_FRAGMENTS:
        return f"a thread would hold {fragments} registers of Q, O and S, and at most {MAX_FRAGMENTS} leave room for the rest"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)
