"""The ``wmma`` kernel: its knobs, its shared memory and its launch. The idea is in ``wmma.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, ladder_supports, reject_oversized
from sdpalab.kernels.plan import Launch
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["LIMITS", "WIDE_LIMITS", "WMMA", "smem_bytes", "wmma_launch", "wmma_reject"]

TILE = 16
MAX_WARPS = 32
LIMITS = MISSION_LIMITS
WIDE_LIMITS = LIMITS.but(registers=144, reason="at D = 128 a thread holds twice the outputs")


def smem_bytes(problem: Problem, config: Config, *, stages: int = 1) -> int:
    """Dynamic shared memory of a block in bytes: Q, K, V and P as elements, and a float scratch for the products.

    ``stages`` is the number of tiles of K and V.
    """
    block_m, block_n = config.int("BLOCK_M"), config.int("BLOCK_N")
    elements = (block_m + stages * 2 * block_n) * (problem.head_dim + 8) + block_m * (block_n + 8)
    floats = block_m * (block_n + 4)
    return 2 * elements + 4 * floats


def wmma_reject(problem: Problem, config: Config, shared_limit: int, *, stages: int = 1) -> str | None:
    """None if ``include/tile/wmma.cuh`` supports such tiles and they fit ``shared_limit`` bytes, otherwise the
    reason."""
    block_m, block_n = config.int("BLOCK_M"), config.int("BLOCK_N")
    if not TILE <= block_m <= TILE * MAX_WARPS or block_m % TILE:
        return f"BLOCK_M must be {TILE} rows for each of 1 to {MAX_WARPS} warps, not {block_m}"
    if block_n < TILE or block_n % TILE or problem.head_dim % min(block_n, problem.head_dim):
        return f"BLOCK_N must be a multiple of {TILE} that divides head_dim or exceeds it, not {block_n}"
    return reject_oversized(smem_bytes(problem, config, stages=stages), shared_limit, config)


def wmma_launch(problem: Problem, config: Config, *, stages: int = 1) -> Launch:
    """Launch with one warp per 16 of a block's BLOCK_M rows."""
    block_m = config.int("BLOCK_M")
    return ladder_launch(problem, block_m, 32 * (block_m // TILE), smem_bytes(problem, config, stages=stages))


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, HALF_DTYPES, "wmma")


def _limits(problem: Problem) -> StaticLimits:
    return LIMITS if problem.head_dim <= 64 else WIDE_LIMITS


def _reject(problem: Problem, config: Config) -> str | None:
    return wmma_reject(problem, config, LIMITS.value("shared_bytes"))


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=32)

WMMA = CudaKernel(
    name="wmma",
    source=Path("wmma.cu"),
    entry="wmma_attention",
    plan=wmma_launch,
    configs=(_DEFAULT, _DEFAULT.but(BLOCK_M=32), _DEFAULT.but(BLOCK_M=128), _DEFAULT.but(BLOCK_N=64)),
    supports=_supports,
    reject=_reject,
    limits=_limits,
    knobs={"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64)},
    lse=True,
    idea="both products on tensor cores through nvcuda::wmma, softmax and rescale through shared memory",
)
