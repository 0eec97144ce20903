"""The ``warp_specialized`` kernel: its knobs, its shared memory and its launch (idea: ``warp_specialized.cu``)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from sdpalab.kernels.flash import dense_supports, ragged_macros, smem_bytes, tile_n
from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, reject_oversized, reject_unlisted
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.stream_k import reciprocal
from sdpalab.problem import Problem

__all__ = ["WARP_SPECIALIZED"]

WARP_M = 16
KNOBS = {"BLOCK_M": (64, 128), "BLOCK_N": (0, 32, 64), "NUM_STAGES": (2, 3, 4), "NUM_PRODUCER_WARPS": (1, 2)}
MAX_SHARED_BYTES = 48 * 1024


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    block_m, keys = config.int("BLOCK_M"), tile_n(problem, config)
    if block_m > 2 * keys:
        return (
            f"BLOCK_M={block_m} must be at most twice the {keys} keys of a tile: Q passes through one stage of K and V"
        )
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _limits(problem: Problem) -> StaticLimits:
    if problem.head_dim > 64:
        registers, reason = 168, "two blocks of five warps fit the register file"
    else:
        registers, reason = 128, "three blocks of five warps fit the register file, or one of nine"
    return MISSION_LIMITS.but(registers=registers, shared_bytes=MAX_SHARED_BYTES, reason=reason)


def _plan(problem: Problem, config: Config) -> Launch:
    warps = config.int("BLOCK_M") // WARP_M + config.int("NUM_PRODUCER_WARPS")
    launch = ladder_launch(problem, config.int("BLOCK_M"), 32 * warps, smem_bytes(problem, config))
    return replace(launch, args=(*launch.args, reciprocal(launch.grid[0] * problem.group)))


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=0, NUM_STAGES=2, NUM_PRODUCER_WARPS=1)

WARP_SPECIALIZED = CudaKernel(
    name="warp_specialized",
    source=Path("warp_specialized.cu"),
    entry="warp_specialized_attention",
    plan=_plan,
    macros=lambda problem, config: {**config, **ragged_macros(problem, config)},
    configs=(
        _DEFAULT,
        _DEFAULT.but(NUM_STAGES=3),
        _DEFAULT.but(NUM_PRODUCER_WARPS=2),
        _DEFAULT.but(BLOCK_N=32, NUM_STAGES=4),
        _DEFAULT.but(BLOCK_M=128, BLOCK_N=64),
    ),
    supports=partial(dense_supports, kernel="warp_specialized"),
    reject=_reject,
    limits=_limits,
    knobs=KNOBS,
    lse=True,
    idea="producer warps keep a ring of K and V filled, consumer warps only compute; named barriers in between",
)
