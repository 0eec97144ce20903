"""The ``hopper_fp8`` kernel: its knobs, its shared memory and its two steps. The idea is told in ``hopper_fp8.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Numerics, Quantisation, StaticLimits
from sdpalab.kernels.ladder import ladder_supports, reject_oversized, reject_unlisted
from sdpalab.kernels.plan import Launch, LaunchPlan, TiledMap
from sdpalab.kernels.quantisation import quantisation_buffers, quantise_rows, quantised_supports, row_blocks
from sdpalab.problem import DTYPES, Problem

__all__ = ["HOPPER_FP8", "SCALE_ROWS", "block_rows", "smem_bytes"]

NAME = "hopper_fp8"
SCALE_ROWS = 128
"""Rows of Q, K or V that share a scale."""
HEAD_DIMS = (64, 128)
WARPGROUP_M = 64
WARP_M = 16
PANEL_COLUMNS = 64
KNOBS = {"BLOCK_M": (0, 64, 128), "BLOCK_N": (64, 128), "NUM_STAGES": (2, 3, 4)}
MAX_SHARED_BYTES = 227 * 1024
SMS = 132
"""Of an H100 SXM or an H200."""
CONSUMER_REGISTERS = {64: 232, 128: 240}
"""Of a thread, by BLOCK_M; 32 of them are for what is neither an accumulator nor a weight."""


def block_rows(problem: Problem, config: Config) -> int:
    """Query rows of a block: BLOCK_M, or where that is 0, 64 if blocks of 128 would leave SMs of an H200 without one.

    It stays 128 where a lone consumer lacks the registers.
    """
    if config.int("BLOCK_M"):
        return config.int("BLOCK_M")
    blocks = -(-problem.seq_q // 128) * problem.heads * problem.batch
    return 64 if blocks < SMS and _too_many_registers(problem, config.but(BLOCK_M=64)) is None else 128


def _macros(problem: Problem, config: Config) -> Config:
    return config.but(BLOCK_M=block_rows(problem, config))


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: O, which is larger than Q, the ring of K and V, and 8 a barrier."""
    stages = config.int("NUM_STAGES")
    rows = 2 * block_rows(problem, config) + stages * 2 * config.int("BLOCK_N")
    return rows * problem.head_dim + 8 * (1 + 4 * stages)


def _too_many_registers(problem: Problem, config: Config) -> str | None:
    """Why a consumer cannot hold its three accumulators and its weights, or None if it can."""
    block_m, block_n = block_rows(problem, config), config.int("BLOCK_N")
    need, have = problem.head_dim + block_n // 2 + block_n // 8, CONSUMER_REGISTERS[block_m] - 32
    if need <= have:
        return None
    return (
        f"head_dim {problem.head_dim} and BLOCK_N={block_n} take {need} registers for accumulators and weights, and "
        f"with BLOCK_M={block_m} a thread has {have} for them"
    )


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, tuple(DTYPES), NAME, HEAD_DIMS) or quantised_supports(problem, NAME)


def _reject(problem: Problem, config: Config) -> str | None:
    return (
        reject_unlisted(config, KNOBS)
        or _too_many_registers(problem, config)
        or reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)
    )


def _byte_map(buffer: str, matrices: int, rows: int, columns: int, box: tuple[int, int]) -> TiledMap:
    """[matrices, rows, columns] of bytes, in boxes whose rows are as long as the swizzle is wide."""
    return TiledMap(buffer, box=(1, *box), swizzle=f"{box[1]}B", shape=(matrices, rows, columns))


def _output_map(problem: Problem) -> TiledMap:
    """O as [heads, panels, seq_q, 64]: boxes of all panels of a warp's rows, one behind the other."""
    panels = problem.head_dim // PANEL_COLUMNS
    return TiledMap(
        "o",
        box=(1, panels, WARP_M, PANEL_COLUMNS),
        swizzle="128B",
        shape=(problem.batch * problem.heads, panels, problem.seq_q, PANEL_COLUMNS),
        strides=(problem.seq_q * problem.head_dim * 2, PANEL_COLUMNS * 2, problem.head_dim * 2, 2),
    )


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    block_m, block_n, dim = block_rows(problem, config), config.int("BLOCK_N"), problem.head_dim
    q_heads, kv_heads = problem.batch * problem.heads, problem.batch * problem.kv_heads
    maps = (
        _byte_map("q_bytes", q_heads, problem.seq_q, dim, (WARPGROUP_M, dim)),
        _byte_map("k_bytes", kv_heads, problem.seq_kv, dim, (block_n, dim)),
        _byte_map("v_bytes", kv_heads * row_blocks(problem, SCALE_ROWS)[1], dim, SCALE_ROWS, (dim, block_n)),
        _output_map(problem),
    )
    attention = Launch(
        grid=(-(-problem.seq_q // block_m), problem.heads, problem.batch),
        block=(128 * (1 + block_m // WARPGROUP_M), 1, 1),
        args=(*maps, "q_scales", "kv_scales", problem.seq_q, problem.seq_kv, problem.group, problem.scale, "lse"),
        dynamic_smem=smem_bytes(problem, config),
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
    limits=StaticLimits(
        registers=168, shared_bytes=MAX_SHARED_BYTES, reason="at launch; consumers then take up to 240 registers"
    ),
    min_arch=90,
    only_arch="sm_90a",
    knobs=KNOBS,
    lse=True,
    macros=_macros,
    idea="FlashAttention-3 in e4m3: V^T quantised in the order of the weights, each tile's product joins O in float32",
)
