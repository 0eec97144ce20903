"""The ``hopper_backward`` kernel: its knobs, its shared memory and its steps (idea: ``hopper_backward.cu``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sdpalab.kernels.flash_backward_two_pass import BACKWARD_FEATURES, MAX_CTAS, backward_supports
from sdpalab.kernels.kernel import Config, CudaKernel, Knob, Numerics
from sdpalab.kernels.ladder import reject_oversized, reject_unlisted, window_macros
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, TiledMap
from sdpalab.kernels.warpgroups import LIMITS, MAX_SHARED_BYTES, WARPGROUP_M
from sdpalab.problem import Problem

__all__ = ["HOPPER_BACKWARD", "smem_bytes"]

KNOBS = {"BLOCK": (64, 128), "STREAM": (0, 64, 128), "NUM_STAGES": (1, 2, 3), "DETERMINISTIC": (0, 1)}
PANEL_COLUMNS = 64
MOST_MASKED_DIM = 96
THREADS = 256
"""Threads of a block of the first and of the last step."""


def _stream(problem: Problem, config: Config) -> int:
    """Queries of a tile: STREAM, or, for 0, 64 for a lone consumer or above head_dim 64, otherwise 128."""
    return config.int("STREAM") or (64 if problem.head_dim > 64 else config.int("BLOCK"))


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes, as in ``SharedStorage``: K and V; stages of Q, dO and the rows'
    statistics; dS; dQ in float32; the mbarriers; and a word for a ticket."""
    block, stream, stages = config.int("BLOCK"), _stream(problem, config), config.int("NUM_STAGES")
    columns = -(-problem.head_dim // PANEL_COLUMNS) * PANEL_COLUMNS
    tiles = 2 * (2 * block + 2 * stages * stream) * columns
    return tiles + 2 * 2 * block * stream + 4 * stream * columns + 8 * stages * stream + 8 * (4 + 4 * stages)


def _ctas(problem: Problem, config: Config) -> int:
    return problem.batch * problem.kv_heads * -(-problem.seq_kv // config.int("BLOCK"))


def _supports(problem: Problem) -> str | None:
    if problem.attn_mask and problem.softcap and problem.head_dim > MOST_MASKED_DIM:
        return (
            f"kernel hopper_backward takes attn_mask beside a soft cap up to head_dim {MOST_MASKED_DIM}, and would "
            f"spill at {problem.head_dim}"
        )
    return backward_supports(problem, "hopper_backward")


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    block, stream = config.int("BLOCK"), _stream(problem, config)
    parts = stream // WARPGROUP_M * -(-problem.head_dim // PANEL_COLUMNS)
    if parts != block // WARPGROUP_M:
        return (
            f"each 64 keys of BLOCK have a consumer for 64 x 64 of dQ: at head_dim {problem.head_dim} and "
            f"STREAM={stream} BLOCK is {parts * WARPGROUP_M}, not {block}"
        )
    if _ctas(problem, config) > MAX_CTAS:
        return f"{problem.label} needs more blocks than the {MAX_CTAS} of a grid's first axis"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _macros(problem: Problem, config: Config) -> Mapping[str, Knob]:
    return {**window_macros(problem), **config, "STREAM": _stream(problem, config)}


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    stream, heads, kv_heads = _stream(problem, config), problem.batch * problem.heads, problem.batch * problem.kv_heads
    tiles = -(-problem.seq_q // stream)
    rows, threads = heads * tiles * stream, heads * tiles * stream * problem.head_dim // 16
    buffers = (
        Buffer("statistics", (heads, tiles, 2, stream), "float32", "workspace"),
        Buffer("dq_sums", (heads, tiles, stream, problem.head_dim), "float32", "workspace", fill=0.0),
        *([Buffer("semaphores", (1 + heads * tiles,), "int32", "semaphore")] if config["DETERMINISTIC"] else []),
    )
    lanes = 16 if problem.head_dim > 64 else 8
    statistics = Launch(
        grid=(-(-rows // (THREADS // lanes)), 1, 1),
        block=(THREADS, 1, 1),
        args=("o", "do", "lse", "q_lengths", "statistics", problem.seq_q, problem.heads, rows),
        entry="attention_statistics",
    )

    def tiled(name: str) -> TiledMap:
        of_queries = name in ("q", "do")
        shape = (heads, problem.seq_q) if of_queries else (kv_heads, problem.seq_kv)
        box = (1, stream if of_queries else WARPGROUP_M, PANEL_COLUMNS)
        return TiledMap(name, box=box, swizzle="128B", shape=(*shape, problem.head_dim))

    gradients = Launch(
        grid=(_ctas(problem, config), 1, 1),
        block=(128 + 2 * config.int("BLOCK"), 1, 1),
        args=(
            *map(tiled, ("q", "k", "v", "do", "dk", "dv")),
            *("statistics", "dq_sums", "kv_lengths", "q_lengths", "attn_mask", "alibi_slopes"),
            *(problem.seq_q, problem.seq_kv, problem.heads, problem.group, problem.scale),
            "semaphores" if config["DETERMINISTIC"] else 0,
        ),
        dynamic_smem=smem_bytes(problem, config),
        programmatic=True,
    )
    convert = Launch(
        grid=(-(-threads // THREADS), 1, 1),
        block=(THREADS, 1, 1),
        args=("dq_sums", "dq", problem.seq_q, problem.scale, threads),
        entry="attention_dq",
        programmatic=True,
    )
    return LaunchPlan(buffers, (statistics, gradients, convert))


def _numerics(config: Config) -> Numerics:
    return Numerics(unordered=() if config["DETERMINISTIC"] else ("dq",))


_DEFAULT = Config(BLOCK=128, STREAM=0, NUM_STAGES=2, DETERMINISTIC=0)

HOPPER_BACKWARD = CudaKernel(
    name="hopper_backward",
    source=Path("hopper_backward.cu"),
    entry="attention_gradients",
    plan=_plan,
    configs=(_DEFAULT, _DEFAULT.but(STREAM=128, DETERMINISTIC=1), _DEFAULT.but(BLOCK=64, STREAM=64)),
    supports=_supports,
    reject=_reject,
    numerics=_numerics,
    limits=LIMITS,
    min_arch=90,
    only_arch="sm_90a",
    knobs={"BLOCK": (64, 128), "STREAM": (64, 128), "NUM_STAGES": (1, 2, 3), "DETERMINISTIC": (0, 1)},
    features=BACKWARD_FEATURES,
    macros=_macros,
    idea="FlashAttention-3's backward: TMA feeds warpgroups that own keys; a warp adds dQ up by bulk reductions",
)
