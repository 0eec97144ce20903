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
"""What a block may have on sm_86, sm_89 and sm_120, the least from sm_80 on (CUDA C++ Programming Guide, Appendix)."""


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
        return (
            f"BLOCK_M={block_m} must be at most twice the tile of {keys} keys: Q passes through the memory of one stage"
        )
    rows = _threads(config) * 8 // problem.head_dim
    if rows % 8 or keys % rows:
        return (
            f"BLOCK_M={block_m} copies {rows} rows of {problem.head_dim} at a time, which must be a multiple of 8 that "
            f"divides the tile of {keys} keys"
        )
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _limits(problem: Problem) -> StaticLimits:
    if problem.head_dim > 64:
        return StaticLimits(
            registers=192,
            shared_bytes=48 * 1024,
            min_blocks_per_sm=2,
            reason="Q and O of 128 columns alone are 96 registers; two blocks of four warps still share an SM",
        )
    return StaticLimits(
        registers=128,
        shared_bytes=48 * 1024,
        min_blocks_per_sm=2,
        reason="the register file holds four blocks of four warps at 128 registers a thread; on sm_89 it is 120",
    )


def _plan(problem: Problem, config: Config) -> Launch:
    return ladder_launch(problem, config.int("BLOCK_M"), _threads(config), smem_bytes(problem, config))


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=0, NUM_STAGES=2)

FLASH = CudaKernel(
    name="flash",
    source=Path("flash.cu"),
    entry="flash_attention",
    plan=_plan,
    configs=(
        _DEFAULT,
        _DEFAULT.but(NUM_STAGES=3),
        _DEFAULT.but(BLOCK_M=32),
        _DEFAULT.but(BLOCK_N=32),
        _DEFAULT.but(BLOCK_M=128, BLOCK_N=64),
    ),
    supports=_supports,
    reject=_reject,
    limits=_limits,
    idea="FlashAttention-2 on mma.sync: the weights stay in registers and become the operand of the second product",
)
