"""The ``wmma`` kernel: its knobs, its shared memory and its launch. The idea is told in ``wmma.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, ladder_supports, reject_oversized
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem

__all__ = ["WMMA", "smem_bytes"]

TILE = 16
MAX_WARPS = 32
LIMITS = StaticLimits()
WIDE_LIMITS = StaticLimits(registers=136, reason="at D = 128 a thread holds twice the outputs; sm_100 takes 132")


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: Q, K, V and P as halfs, and a float scratch for the products."""
    block_m, block_n = config.int("BLOCK_M"), config.int("BLOCK_N")
    halfs = (block_m + 2 * block_n) * (problem.head_dim + 8) + block_m * (block_n + 8)
    floats = block_m * (block_n + 4)
    return 2 * halfs + 4 * floats


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, ("float16",), "wmma")


def _limits(problem: Problem) -> StaticLimits:
    return LIMITS if problem.head_dim <= 64 else WIDE_LIMITS


def _reject(problem: Problem, config: Config) -> str | None:
    block_m, block_n = config.int("BLOCK_M"), config.int("BLOCK_N")
    if not TILE <= block_m <= TILE * MAX_WARPS or block_m % TILE:
        return f"BLOCK_M must be {TILE} rows for each of 1 to {MAX_WARPS} warps, not {block_m}"
    if block_n < TILE or block_n % TILE or problem.head_dim % min(block_n, problem.head_dim):
        return f"BLOCK_N must be a multiple of {TILE} that divides head_dim or exceeds it, not {block_n}"
    return reject_oversized(smem_bytes(problem, config), LIMITS.shared_bytes, config)


def _plan(problem: Problem, config: Config) -> Launch:
    block_m = config.int("BLOCK_M")
    return ladder_launch(problem, block_m, 32 * (block_m // TILE), smem_bytes(problem, config))


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=32)

WMMA = CudaKernel(
    name="wmma",
    source=Path("wmma.cu"),
    entry="wmma_attention",
    plan=_plan,
    configs=(_DEFAULT, _DEFAULT.but(BLOCK_M=32), _DEFAULT.but(BLOCK_M=128), _DEFAULT.but(BLOCK_N=64)),
    supports=_supports,
    reject=_reject,
    limits=_limits,
    knobs={"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64)},
    lse=True,
    idea="both products on tensor cores through nvcuda::wmma, softmax and rescale through shared memory",
)
