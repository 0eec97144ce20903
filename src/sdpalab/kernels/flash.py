"""The ``flash`` kernel: its knobs, its shared memory and its launch. The idea is told in ``flash.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, ladder_supports, reject_oversized
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem

__all__ = ["FLASH", "smem_bytes", "tile_n"]

WARP_M = 16
LIMITS = StaticLimits()
WIDE_LIMITS = StaticLimits(registers=168, reason="at D = 128 the accumulator of O alone is 64 registers a thread")


def tile_n(problem: Problem, config: Config) -> int:
    """Keys of a tile: BLOCK_N, or by head_dim where that is 0."""
    return config.int("BLOCK_N") or (32 if problem.head_dim > 64 else 64)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: NUM_STAGES tiles of K and of V, 16-bit."""
    return config.int("NUM_STAGES") * 2 * tile_n(problem, config) * problem.head_dim * 2


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, ("float16", "bfloat16"), "flash")


def _reject(problem: Problem, config: Config) -> str | None:
    block_m, block_n, stages = config.int("BLOCK_M"), tile_n(problem, config), config.int("NUM_STAGES")
    if block_m not in (32, 64, 128):
        return f"BLOCK_M must be 32, 64 or 128, not {block_m}"
    if block_n not in (32, 64, 128):
        return f"BLOCK_N must be 0 (by head_dim), 32, 64 or 128, not {block_n}"
    if stages not in (2, 3, 4):
        return f"NUM_STAGES must be 2, 3 or 4, not {stages}"
    if block_m > 2 * block_n:
        return f"Q passes through one stage of K and V, so BLOCK_M must be at most 2 * BLOCK_N, not {block_m}"
    return reject_oversized(smem_bytes(problem, config), LIMITS.shared_bytes, config)


def _plan(problem: Problem, config: Config) -> Launch:
    block_m = config.int("BLOCK_M")
    return ladder_launch(problem, block_m, 32 * (block_m // WARP_M), smem_bytes(problem, config))


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=0, NUM_STAGES=2)

FLASH = CudaKernel(
    name="flash",
    source=Path("flash.cu"),
    entry="flash_attention",
    plan=_plan,
    configs=(_DEFAULT, _DEFAULT.but(BLOCK_M=128), _DEFAULT.but(BLOCK_N=32), _DEFAULT.but(NUM_STAGES=3)),
    supports=_supports,
    reject=_reject,
    limits=lambda problem: LIMITS if problem.head_dim <= 64 else WIDE_LIMITS,
    idea="mma.sync with P kept in registers, cp.async double buffering, XOR-swizzled shared memory",
)
