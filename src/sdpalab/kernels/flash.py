"""The ``flash`` kernel: its knobs, its shared memory and its launch. The idea is told in ``flash.cu``."""

from __future__ import annotations

import math
from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, ladder_supports, reject_oversized, reject_unlisted
from sdpalab.kernels.plan import Launch
from sdpalab.problem import DTYPES, Problem

__all__ = ["FLASH", "smem_bytes", "tile_n"]

WARP_M = 16
KNOBS = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (0, 32, 64), "NUM_STAGES": (2, 3, 4)}
MAX_SHARED_BYTES = 48 * 1024
MAX_SCALE = 3.4028234663852886e38 / math.log2(math.e)
"""Largest magnitude of a scale: times log2(e) it is still a float32."""


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
    if abs(problem.scale) > MAX_SCALE:
        return f"kernel flash holds scale * log2(e) as a float32, and scale={problem.scale:g} does not fit"
    return ladder_supports(problem, tuple(DTYPES), "flash")


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    block_m, keys = config.int("BLOCK_M"), tile_n(problem, config)
    if block_m > 2 * keys:
        return (
            f"BLOCK_M={block_m} must be at most twice the {keys} keys of a tile: Q passes through one stage of K and V"
        )
    rows = _threads(config) * 8 // problem.head_dim
    if rows % 8 or keys % rows:
        return (
            f"a block of BLOCK_M={block_m} copies {rows} rows of head_dim {problem.head_dim} at a time, which must be "
            f"a multiple of 8 that divides the {keys} keys of a tile"
        )
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _limits(problem: Problem) -> StaticLimits:
    if problem.head_dim > 64:
        registers, reason = 184, "the fragments of Q and O alone are 96 registers; two blocks of four warps share an SM"
    else:
        registers, reason = 128, "four blocks of four warps fit the register file (on sm_89 the kernel takes 120)"
    return StaticLimits(registers, MAX_SHARED_BYTES, min_blocks_per_sm=2, reason=reason)


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
    knobs=KNOBS,
    lse=True,
    idea="FlashAttention-2 on mma.sync: the weights stay in registers and become the operand of the second product",
)
