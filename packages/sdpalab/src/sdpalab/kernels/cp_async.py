"""The ``cp_async`` kernel: its knobs, its shared memory and its launch. The idea is in ``cp_async.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels import wmma
from sdpalab.kernels.kernel import Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_supports, reject_unlisted
from sdpalab.kernels.plan import Launch
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["CP_ASYNC", "smem_bytes"]

STAGES = {"NUM_STAGES": (1, 2, 3)}


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: that of the ``wmma`` kernel with NUM_STAGES tiles of K and V."""
    return wmma.smem_bytes(problem, config, stages=config.int("NUM_STAGES"))


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, HALF_DTYPES, "cp_async")


def _limits(problem: Problem) -> StaticLimits:
    if problem.head_dim <= 64:
        return wmma.LIMITS
    reason = f"two stages of D = 128 take {smem_bytes(problem, _DEFAULT)} bytes; {wmma.WIDE_LIMITS.reason}"
    return wmma.WIDE_LIMITS.but(shared_bytes=72 * 1024, reason=reason)


def _reject(problem: Problem, config: Config) -> str | None:
    return reject_unlisted(config, STAGES) or wmma.wmma_reject(
        problem, config, _limits(problem).value("shared_bytes"), stages=config.int("NUM_STAGES")
    )


def _plan(problem: Problem, config: Config) -> Launch:
    return wmma.wmma_launch(problem, config, stages=config.int("NUM_STAGES"))


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=32, NUM_STAGES=2)

CP_ASYNC = CudaKernel(
    name="cp_async",
    source=Path("cp_async.cu"),
    entry="cp_async_attention",
    plan=_plan,
    configs=(
        _DEFAULT,
        _DEFAULT.but(NUM_STAGES=1),
        _DEFAULT.but(NUM_STAGES=3),
        _DEFAULT.but(BLOCK_M=32),
        _DEFAULT.but(BLOCK_N=16),
    ),
    supports=_supports,
    reject=_reject,
    limits=_limits,
    knobs={"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64), **STAGES},
    lse=True,
    idea="the wmma kernel with cp.async: the next tiles of K and V are on their way while one is computed with",
)
