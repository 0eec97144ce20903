"""The ``cluster`` test kernel: its knob, its shared memory and its launch. The idea is told in the ``.cu``.

It is also a user's file: ``sdpalab sanitize tests/kernels/cluster_attention.py``.
"""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, StaticLimits
from sdpalab.kernels.ladder import ladder_supports
from sdpalab.kernels.plan import Launch, TiledMap
from sdpalab.problem import DTYPES, Problem

__all__ = ["CLUSTER_ATTENTION", "smem_bytes"]

CLUSTER = 2
BLOCK_M = 64
BLOCK_N = 64
WARPS = 4
STAGES = (2, 3, 4)
LIMITS = StaticLimits(
    registers=128,
    shared_bytes=82 * 1024,
    min_blocks_per_sm=2,
    reason="two clusters share two SMs, so that one's products hide the other's softmax",
)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: Q, a tile of K and one of V in each stage, partial results, mbarriers.

    A warp's partial results are 16 bytes a lane for each eight columns of O, and for the softmax.
    """
    row, stages = 2 * problem.head_dim, config.int("NUM_STAGES")
    partial = 32 * 16 * (problem.head_dim // 8 + 1)
    return BLOCK_M * row + stages * 2 * BLOCK_N * row + WARPS // CLUSTER * partial + 8 * (1 + 2 * stages)


def _supports(problem: Problem) -> str | None:
    if problem.head_dim != 64:
        return f"kernel cluster supports head_dim 64, not {problem.head_dim}"
    return ladder_supports(problem, tuple(DTYPES), "cluster_attention")


def _reject(_: Problem, config: Config) -> str | None:
    if config.int("NUM_STAGES") not in STAGES:
        return f"NUM_STAGES must be one of {', '.join(map(str, STAGES))}, not {config.int('NUM_STAGES')}"
    return None


def _plan(problem: Problem, config: Config) -> Launch:
    dim = problem.head_dim
    return Launch(
        grid=(CLUSTER * -(-problem.seq_q // BLOCK_M), problem.heads, problem.batch),
        block=(32 * WARPS, 1, 1),
        args=(
            TiledMap("q", (1, 1, BLOCK_M // CLUSTER, dim), "128B"),
            TiledMap("k", (1, 1, BLOCK_N, dim), "128B"),
            TiledMap("v", (1, 1, BLOCK_N, dim), "128B"),
            *("o", problem.seq_q, problem.seq_kv, problem.group, problem.scale),
        ),
        dynamic_smem=smem_bytes(problem, config),
        cluster=(CLUSTER, 1, 1),
    )


_DEFAULT = Config(NUM_STAGES=4)

CLUSTER_ATTENTION = CudaKernel(
    name="cluster_attention",
    source=Path("cluster_attention.cu"),
    entry="cluster_attention",
    plan=_plan,
    configs=(_DEFAULT, _DEFAULT.but(NUM_STAGES=2)),
    supports=_supports,
    reject=_reject,
    limits=LIMITS,
    min_arch=90,
    only_arch="sm_90a",
    idea="keys split over a cluster of two blocks: Q by multicast, halves merged through distributed shared memory",
)
