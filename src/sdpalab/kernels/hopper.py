"""The ``hopper`` kernel: its knobs, its shared memory and its launch. The idea is told in ``hopper.cu``."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.ladder import ladder_supports, reject_oversized, reject_unlisted
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.warpgroups import (
    LIMITS,
    MAX_SHARED_BYTES,
    SMS,
    WARP_M,
    WARPGROUP_M,
    barrier_bytes,
    block_threads,
    reject_crowded,
    tiled_map,
)
from sdpalab.problem import DTYPES, Problem

__all__ = ["HOPPER", "chosen", "modelled_clocks", "smem_bytes"]

HEAD_DIMS = (64, 128, 256)
VALUES = {"BLOCK_M": (64, 128, 192), "BLOCK_N": (64, 80, 128, 176), "NUM_STAGES": (2, 3, 4), "SPLIT": (1, 2, 4)}

FLOPS_PER_CLOCK = 4096
"""Of one SM's tensor cores, float16: 989 TFLOPS on 132 SMs at 1.83 GHz."""
EXPONENTIALS_PER_CLOCK = 16
CLUSTER_BYTES_PER_CLOCK = 14
"""What an SM sends to another at most; an estimate, not yet run on hardware."""
BLOCK_CLOCKS = 1500
"""Of a block beside its tiles: launch, the first tile's way from memory, the store; an estimate as well."""


def modelled_clocks(problem: Problem, block_m: int, split: int) -> float:
    """Clocks that an H200 would take: waves of blocks times what a block costs. To compare choices, not to predict.

    A lone consumer waits for its exponentials and its products in turn; several of them hide the one behind the other.
    Blocks of a cluster then exchange partial results.
    """
    blocks = -(-problem.seq_q // block_m) * problem.heads * problem.batch * split
    scores = block_m * -(-problem.seq_kv // split)
    products = 4 * scores * problem.head_dim / FLOPS_PER_CLOCK
    exponentials = scores / EXPONENTIALS_PER_CLOCK
    work = products + exponentials if block_m == WARPGROUP_M else max(products, exponentials)
    sent = block_m * (split - 1) / split * problem.head_dim * 4
    return -(-blocks // SMS) * (BLOCK_CLOCKS + work + sent / CLUSTER_BYTES_PER_CLOCK)


def chosen(problem: Problem, config: Config) -> Config:
    """``config`` with a value for each knob that is 0.

    BLOCK_M and SPLIT are those of the least :func:`modelled_clocks`. BLOCK_N is what the registers allow, as each tile
    has a cost of its own, but no more than a block has keys; NUM_STAGES what shared memory allows, but no more than a
    block has tiles.
    """
    rows, splits = ((config.int(name),) if config.int(name) else VALUES[name] for name in ("BLOCK_M", "SPLIT"))
    widest = 80 if problem.head_dim == 256 else 128
    fitting = [
        (modelled_clocks(problem, block_m, split), block_m, split)
        for block_m, split in product(rows, splits)
        if _reject_crowded(problem, block_m, config.int("BLOCK_N") or widest) is None
    ]
    _, block_m, split = min(fitting, default=(0, rows[0], splits[0]))
    keys = -(-problem.seq_kv // split)
    block_n = config.int("BLOCK_N") or (64 if keys <= 64 else widest)
    made = config.but(BLOCK_M=block_m, BLOCK_N=block_n, SPLIT=split)
    most = min(4, max(2, -(-keys // block_n)))
    stages = config.int("NUM_STAGES") or next(
        (many for many in range(most, 2, -1) if smem_bytes(problem, made.but(NUM_STAGES=many)) <= MAX_SHARED_BYTES), 2
    )
    return made.but(NUM_STAGES=stages)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: Q, the ring of K and V, partial results, and 8 bytes a barrier.

    ``config`` has a value for each knob. A warp's partial results are 16 bytes a lane for each eight columns of O, and
    for the softmax.
    """
    block_m, stages, split = (config.int(name) for name in ("BLOCK_M", "NUM_STAGES", "SPLIT"))
    rows = block_m + stages * 2 * config.int("BLOCK_N")
    partials = (split - 1) * (block_m // WARP_M // split)
    return rows * problem.head_dim * 2 + partials * 32 * 16 * (problem.head_dim // 8 + 1) + barrier_bytes(stages) + 8


def _reject_crowded(problem: Problem, block_m: int, block_n: int) -> str | None:
    """Why a consumer cannot hold its accumulators of O and S and its weights, or None if it can."""
    needed = problem.head_dim // 2 + block_n // 2 + block_n // 4
    return reject_crowded(needed, problem.head_dim, block_m, block_n)


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, tuple(DTYPES), "hopper", HEAD_DIMS)


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, {name: (0, *values) for name, values in VALUES.items()})
    if unlisted is not None:
        return unlisted
    made = chosen(problem, config)
    crowded = _reject_crowded(problem, made.int("BLOCK_M"), made.int("BLOCK_N"))
    return crowded or reject_oversized(smem_bytes(problem, made), MAX_SHARED_BYTES, made)


def _plan(problem: Problem, config: Config) -> Launch:
    made = chosen(problem, config)
    block_m, split = made.int("BLOCK_M"), made.int("SPLIT")
    q_heads, kv_heads = problem.batch * problem.heads, problem.batch * problem.kv_heads
    of_queries = (q_heads, problem.seq_q, problem.head_dim)
    of_keys = (kv_heads, problem.seq_kv, problem.head_dim, made.int("BLOCK_N"))
    maps = (
        tiled_map("q", *of_queries, WARPGROUP_M),
        tiled_map("k", *of_keys),
        tiled_map("v", *of_keys),
        tiled_map("o", *of_queries, WARP_M),
    )
    return Launch(
        grid=(split * -(-problem.seq_q // block_m), problem.heads, problem.batch),
        block=(block_threads(block_m), 1, 1),
        args=(*maps, problem.seq_q, problem.seq_kv, problem.group, problem.scale, "lse"),
        dynamic_smem=smem_bytes(problem, made),
        cluster=(split, 1, 1),
    )


_AUTO = Config(BLOCK_M=0, BLOCK_N=0, NUM_STAGES=0, SPLIT=0)

HOPPER = CudaKernel(
    name="hopper",
    source=Path("hopper.cu"),
    entry="hopper_attention",
    plan=_plan,
    configs=(
        _AUTO,
        Config(BLOCK_M=128, BLOCK_N=64, NUM_STAGES=2, SPLIT=1),
        Config(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=2, SPLIT=2),
    ),
    supports=_supports,
    reject=_reject,
    limits=LIMITS,
    min_arch=90,
    only_arch="sm_90a",
    knobs=VALUES,
    lse=True,
    macros=chosen,
    idea="FlashAttention-3: TMA feeds warpgroups that overlap softmax and products; clusters split keys of few rows",
)
