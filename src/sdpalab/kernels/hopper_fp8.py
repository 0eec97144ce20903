"""The ``hopper_fp8`` kernel: its knobs, its shared memory and its two steps. The idea is in ``hopper_fp8.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Numerics, Quantisation
from sdpalab.kernels.ladder import ladder_supports, reject_oversized, reject_unlisted
from sdpalab.kernels.plan import Launch, LaunchPlan, TiledMap
from sdpalab.kernels.quantisation import quantisation_buffers, quantise_rows, quantised_supports, row_blocks
from sdpalab.kernels.warpgroups import (
    LIMITS,
    MAX_SHARED_BYTES,
    SMS,
    WARP_M,
    WARPGROUP_M,
    block_threads,
    reject_crowded,
    shared_bytes,
    tiled_map,
)
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["HOPPER_FP8", "SCALE_ROWS", "resolve", "smem_bytes"]

NAME = "hopper_fp8"
SCALE_ROWS = 128
"""Rows of Q, K or V that share a scale."""
HEAD_DIMS = (64, 128)
KNOBS = {"BLOCK_M": (0, 64, 128), "BLOCK_N": (64, 128), "NUM_STAGES": (2, 3, 4)}


def resolve(problem: Problem, config: Config, sms: int = SMS) -> Config:
    """``config`` with a value for BLOCK_M=0: 64 query rows a block if blocks of 128 would leave SMs without one.

    It stays 128 where a lone consumer lacks the registers.
    """
    if config.int("BLOCK_M"):
        return config
    blocks = -(-problem.seq_q // 128) * problem.heads * problem.batch
    few = blocks < sms and _reject_crowded(problem, config.but(BLOCK_M=64)) is None
    return config.but(BLOCK_M=64 if few else 128)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes."""
    block_m, block_n, stages = config.int("BLOCK_M"), config.int("BLOCK_N"), config.int("NUM_STAGES")
    return shared_bytes(problem.head_dim, block_m, block_n, stages, element_bytes=1)


def _reject_crowded(problem: Problem, config: Config) -> str | None:
    """Why a consumer cannot hold its three accumulators and its weights, or None if it can."""
    block_n = config.int("BLOCK_N")
    needed = problem.head_dim + block_n // 2 + block_n // 8
    return reject_crowded(needed, problem.head_dim, config.int("BLOCK_M"), block_n)


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, HALF_DTYPES, NAME, HEAD_DIMS) or quantised_supports(problem, NAME)


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    resolved = resolve(problem, config)
    return _reject_crowded(problem, resolved) or reject_oversized(
        smem_bytes(problem, resolved), MAX_SHARED_BYTES, config
    )


def _byte_map(buffer: str, matrices: int, rows: int, columns: int, box: tuple[int, int]) -> TiledMap:
    """[matrices, rows, columns] of bytes, in boxes whose rows are as long as the swizzle is wide."""
    return TiledMap(buffer, box=(1, *box), swizzle=f"{box[1]}B", shape=(matrices, rows, columns))


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    block_m, block_n, dim = config.int("BLOCK_M"), config.int("BLOCK_N"), problem.head_dim
    q_heads, kv_heads = problem.batch * problem.heads, problem.batch * problem.kv_heads
    maps = (
        _byte_map("q_bytes", q_heads, problem.seq_q, dim, (WARPGROUP_M, dim)),
        _byte_map("k_bytes", kv_heads, problem.seq_kv, dim, (block_n, dim)),
        _byte_map("v_bytes", kv_heads * row_blocks(problem, SCALE_ROWS)[1], dim, SCALE_ROWS, (dim, block_n)),
        tiled_map("o", q_heads, problem.seq_q, dim, WARP_M),
    )
    attention = Launch(
        grid=(-(-problem.seq_q // block_m), problem.heads, problem.batch),
        block=(block_threads(block_m), 1, 1),
        args=(*maps, "q_scales", "kv_scales", problem.seq_q, problem.seq_kv, problem.group, problem.scale, "lse"),
        dynamic_smem=smem_bytes(problem, config),
        programmatic=True,
    )
    quantise = quantise_rows(problem, SCALE_ROWS, v_in_blocks=True)
    return LaunchPlan(quantisation_buffers(problem, SCALE_ROWS), (quantise, attention))


_DEFAULT = Config(BLOCK_M=0, BLOCK_N=128, NUM_STAGES=2)

HOPPER_FP8 = CudaKernel(
    name=NAME,
    source=Path("hopper_fp8.cu"),
    entry="hopper_fp8_attention",
    plan=_plan,
    configs=(
        _DEFAULT,
        _DEFAULT.but(BLOCK_M=128),
        _DEFAULT.but(BLOCK_M=128, NUM_STAGES=4),
        _DEFAULT.but(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=3),
    ),
    supports=_supports,
    reject=_reject,
    numerics=Numerics(probabilities="float8_e4m3fn", probability_scale=256.0, quantised=Quantisation(rows=SCALE_ROWS)),
    limits=LIMITS,
    min_arch=90,
    only_arch="sm_90a",
    knobs=KNOBS,
    lse=True,
    resolve=resolve,
    idea="FlashAttention-3 in e4m3: V^T quantised in the order of the weights, each tile's product joins O in float32",
)
