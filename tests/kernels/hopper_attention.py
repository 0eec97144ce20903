"""FlashAttention-3 for sm_90a: the kernel that holds the simulator's Hopper side together, told in the ``.cu``.

It is also a user's file: ``sdpalab sanitize tests/kernels/hopper_attention.py``.
"""

from __future__ import annotations

from pathlib import Path

from sdpalab import Config, CudaKernel, Launch, Problem, StaticLimits, TiledMap
from sdpalab.kernels.ladder import ladder_supports, reject_oversized
from sdpalab.problem import DTYPES

WARPGROUP_M = 64
PANEL_COLUMNS = 64
KNOBS = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "NUM_STAGES": (2, 3, 4)}
MAX_SHARED_BYTES = 227 * 1024


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: Q, the ring of K and V, and 8 bytes a barrier."""
    stages = config.int("NUM_STAGES")
    rows = config.int("BLOCK_M") + stages * 2 * config.int("BLOCK_N")
    return rows * problem.head_dim * 2 + 8 * (1 + 4 * stages)


def tiled_map(buffer: str, heads: int, rows: int, head_dim: int, box_rows: int) -> TiledMap:
    """[heads, rows, head_dim] as [heads, panels, rows, 64]: boxes of all panels of some rows, one behind the other."""
    panels = head_dim // PANEL_COLUMNS
    return TiledMap(
        buffer,
        box=(1, panels, box_rows, PANEL_COLUMNS),
        swizzle="128B",
        shape=(heads, panels, rows, PANEL_COLUMNS),
        strides=(rows * head_dim * 2, PANEL_COLUMNS * 2, head_dim * 2, 2),
    )


def _supports(problem: Problem) -> str | None:
    if problem.head_dim not in (64, 128):
        return f"kernel hopper_attention supports head_dim 64 or 128, not {problem.head_dim}"
    return ladder_supports(problem, tuple(DTYPES), "hopper_attention")


def _reject(problem: Problem, config: Config) -> str | None:
    for name, allowed in KNOBS.items():
        if config.int(name) not in allowed:
            return f"{name} must be one of {', '.join(map(str, allowed))}, not {config.int(name)}"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _plan(problem: Problem, config: Config) -> Launch:
    block_m, block_n = config.int("BLOCK_M"), config.int("BLOCK_N")
    q_heads, kv_heads = problem.batch * problem.heads, problem.batch * problem.kv_heads
    q, o = (tiled_map(name, q_heads, problem.seq_q, problem.head_dim, WARPGROUP_M) for name in "qo")
    k, v = (tiled_map(name, kv_heads, problem.seq_kv, problem.head_dim, block_n) for name in "kv")
    return Launch(
        grid=(-(-problem.seq_q // block_m), problem.heads, problem.batch),
        block=(128 * (1 + block_m // WARPGROUP_M), 1, 1),
        args=(q, k, v, o, problem.seq_q, problem.seq_kv, problem.group, problem.scale),
        dynamic_smem=smem_bytes(problem, config),
    )


KERNEL = CudaKernel(
    name="hopper_attention",
    source=Path("hopper_attention.cu"),
    entry="hopper_attention",
    plan=_plan,
    configs=(
        Config(BLOCK_M=128, BLOCK_N=128, NUM_STAGES=2),
        Config(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=3),
    ),
    supports=_supports,
    reject=_reject,
    limits=StaticLimits(168, MAX_SHARED_BYTES, reason="three warpgroups at launch; consumers then take 240 registers"),
    min_arch=90,
    only_arch="sm_90a",
    idea="FlashAttention-3: one warp feeds TMA, and warpgroups overlap their softmax with asynchronous products",
)
