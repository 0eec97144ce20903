"""The ``hopper_fp8`` kernel: its knobs, its shared memory and its two steps. The idea is in ``hopper_fp8.cu``."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from pathlib import Path

from sdpalab.kernels.hopper import FLOPS_PER_CLOCK, modelled_clocks
from sdpalab.kernels.kernel import Config, CudaKernel, Numerics, Quantisation
from sdpalab.kernels.ladder import reject_oversized, reject_unlisted
from sdpalab.kernels.plan import Launch, LaunchPlan, TiledMap
from sdpalab.kernels.quantisation import quantisation_buffers, quantise_rows, quantised_supports, row_blocks
from sdpalab.kernels.warpgroups import (
    LIMITS,
    MAX_SHARED_BYTES,
    SMS,
    WARP_M,
    WARPGROUP_M,
    block_threads,
    merged_bytes,
    reject_crowded,
    shared_bytes,
    tiled_map,
)
from sdpalab.problem import Problem

__all__ = ["HOPPER_FP8", "SCALE_ROWS", "resolve", "smem_bytes"]

NAME = "hopper_fp8"
SCALE_ROWS = 128
"""Rows of Q, K or V that share a scale."""
HEAD_DIMS = (64, 128, 256)
VALUES = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "NUM_STAGES": (2, 3, 4), "SPLIT": (1, 2, 4)}
PANEL_COLUMNS = 128
"""Bytes of a shared-memory row under the widest swizzle."""


@lru_cache(maxsize=1024)
def resolve(problem: Problem, config: Config, sms: int = SMS) -> Config:
    """``config`` with a value for each knob that is 0, for a GPU of ``sms`` SMs.

    BLOCK_M and SPLIT minimise :func:`~sdpalab.kernels.hopper.modelled_clocks`, with products twice as fast as in 16
    bits. BLOCK_N is the largest that the registers allow, up to the keys of a block; NUM_STAGES is the largest that
    shared memory allows, up to the tiles of a block.
    """
    rows, splits = ((config.int(name),) if config.int(name) else VALUES[name] for name in ("BLOCK_M", "SPLIT"))
    ways = [_sized(problem, config.but(BLOCK_M=block_m, SPLIT=split)) for block_m, split in product(rows, splits)]
    suitable = [way for way in ways if _unsuitable(problem, way) is None]
    return min(suitable or ways[:1], key=lambda way: _clocks(problem, way, sms))


def _clocks(problem: Problem, resolved: Config, sms: int) -> float:
    block_m, split = resolved.int("BLOCK_M"), resolved.int("SPLIT")
    return modelled_clocks(problem, block_m, split, sms=sms, flops_per_clock=2 * FLOPS_PER_CLOCK)


def _sized(problem: Problem, config: Config) -> Config:
    """``config`` with values for BLOCK_N and NUM_STAGES; all other knobs must have values."""
    keys = -(-problem.seq_kv // config.int("SPLIT"))
    small, large = (config.but(BLOCK_N=config.int("BLOCK_N") or block_n) for block_n in VALUES["BLOCK_N"])
    sized = small if keys <= small.int("BLOCK_N") or _reject_crowded(problem, large) else large
    least, *more = VALUES["NUM_STAGES"]
    useful = [stages for stages in reversed(more) if stages <= -(-keys // sized.int("BLOCK_N"))]
    fitting = (stages for stages in useful if smem_bytes(problem, sized.but(NUM_STAGES=stages)) <= MAX_SHARED_BYTES)
    return sized.but(NUM_STAGES=config.int("NUM_STAGES") or next(fitting, least))


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes, for a ``config`` with a value for each knob."""
    block_m, block_n, stages, split = (config.int(name) for name in VALUES)
    own = shared_bytes(problem.head_dim, block_m, block_n, stages, element_bytes=1)
    return own + merged_bytes(problem.head_dim, block_m, split)


def _reject_crowded(problem: Problem, config: Config) -> str | None:
    """Reason why the registers of a consumer cannot hold accumulators and weights; None if they can.

    The accumulators are those of O, of the scores, and of a tile's product with V; above head_dim 128 the last two
    share registers.
    """
    dim, block_n = problem.head_dim, config.int("BLOCK_N")
    beside_o = (dim + block_n) // 2 if dim <= 128 else 64
    return reject_crowded(dim // 2 + beside_o + block_n // 8, dim, config.int("BLOCK_M"), block_n)


def _unsuitable(problem: Problem, resolved: Config) -> str | None:
    """Reason why blocks of these knobs, which all have values, cannot compute ``problem``; None if they can."""
    return _reject_crowded(problem, resolved) or reject_oversized(
        smem_bytes(problem, resolved), MAX_SHARED_BYTES, resolved
    )


def _supports(problem: Problem) -> str | None:
    return quantised_supports(problem, NAME, HEAD_DIMS)


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, {name: (0, *values) for name, values in VALUES.items()})
    return unlisted or _unsuitable(problem, resolve(problem, config))


def _panel_map(buffer: str, heads: int, rows: int, head_dim: int, box_rows: int) -> TiledMap:
    """Map of a byte array [heads, rows, head_dim] as [heads, panels, rows, columns]: a box has all panels of some rows.

    The width of a panel is that of its swizzle.
    """
    columns = min(head_dim, PANEL_COLUMNS)
    panels = head_dim // columns
    return TiledMap(
        buffer,
        box=(1, panels, box_rows, columns),
        swizzle=f"{columns}B",
        shape=(heads, panels, rows, columns),
        strides=(rows * head_dim, columns, head_dim, 1),
    )


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    block_m, block_n, split, dim = *(config.int(name) for name in ("BLOCK_M", "BLOCK_N", "SPLIT")), problem.head_dim
    q_heads, kv_heads = problem.batch * problem.heads, problem.batch * problem.kv_heads
    maps = (
        _panel_map("q_bytes", q_heads, problem.seq_q, dim, WARPGROUP_M),
        _panel_map("k_bytes", kv_heads, problem.seq_kv, dim, block_n),
        TiledMap(
            "v_bytes",
            box=(1, dim, block_n),
            swizzle=f"{block_n}B",
            shape=(kv_heads * row_blocks(problem, SCALE_ROWS)[1], dim, SCALE_ROWS),
        ),
        tiled_map("o", q_heads, problem.seq_q, dim, WARP_M),
    )
    attention = Launch(
        grid=(split * -(-problem.seq_q // block_m), problem.heads, problem.batch),
        block=(block_threads(block_m), 1, 1),
        args=(*maps, "q_scales", "kv_scales", problem.seq_q, problem.seq_kv, problem.group, problem.scale, "lse"),
        dynamic_smem=smem_bytes(problem, config),
        cluster=(split, 1, 1),
        programmatic=True,
    )
    quantise = quantise_rows(problem, SCALE_ROWS, v_in_blocks=True)
    return LaunchPlan(quantisation_buffers(problem, SCALE_ROWS), (quantise, attention))


_AUTO = Config(BLOCK_M=0, BLOCK_N=0, NUM_STAGES=0, SPLIT=0)
_WIDE = Config(BLOCK_M=128, BLOCK_N=128, NUM_STAGES=2, SPLIT=1)
_SMALL = Config(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=3, SPLIT=1)

HOPPER_FP8 = CudaKernel(
    name=NAME,
    source=Path("hopper_fp8.cu"),
    entry="hopper_fp8_attention",
    plan=_plan,
    configs=(_AUTO, _WIDE, _WIDE.but(NUM_STAGES=4), _SMALL, _SMALL.but(NUM_STAGES=2, SPLIT=2)),
    supports=_supports,
    reject=_reject,
    numerics=Numerics(probabilities="float8_e4m3fn", probability_scale=256.0, quantised=Quantisation(rows=SCALE_ROWS)),
    limits=LIMITS,
    min_arch=90,
    only_arch="sm_90a",
    knobs=VALUES,
    lse=True,
    resolve=resolve,
    idea="FlashAttention-3 in e4m3: V^T quantised in the order of the weights, each tile's product joins O in float32",
)
