"""The ``flash_backward`` kernel: its knobs, its shared memory and its steps (idea: ``flash_backward.cu``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sdpalab.kernels.flash_backward_two_pass import (
    BACKWARD_FEATURES,
    MAX_CTAS,
    backward_supports,
    delta_launch,
    gradient_limits,
)
from sdpalab.kernels.kernel import Config, CudaKernel, Knob, Numerics, StaticLimits
from sdpalab.kernels.ladder import reject_oversized, reject_unlisted, window_macros
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan
from sdpalab.packing import Packing
from sdpalab.problem import Problem

__all__ = ["FLASH_BACKWARD", "smem_bytes"]

KNOBS = {
    "BLOCK": (0, 64, 128),
    "STREAM": (0, 32, 64),
    "WARP_KEYS": (16, 32),
    "QUERY_WARPS": (1, 2),
    "DO_STAGES": (1, 2),
    "DETERMINISTIC": (0, 1),
}
CONVERT_THREADS = 256
MAX_THREADS = 256
"""Threads of a block with 255 registers each."""
MAX_SHARED_BYTES = 163 * 1024
"""Shared memory of a block on sm_80; a configuration above 99 KiB does not run on sm_86 and sm_89."""


def _block(problem: Problem, config: Config) -> int:
    """Keys of a CTA, 16 a warp: BLOCK, or, for 0, 64 where two CTAs then share an SM of sm_89, and 128 above head_dim
    96."""
    return config.int("BLOCK") or (128 if problem.head_dim > 96 else 64)


def _stream(problem: Problem, config: Config) -> int:
    """Queries of a tile: STREAM, or, for 0, 64, and 32 above head_dim 64 or with a mask."""
    return config.int("STREAM") or (32 if problem.head_dim > 64 or problem.attn_mask else 64)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: K and V, two tiles of Q, those of dO, dS, the rows' statistics, and P
    where two warps share keys."""
    block, stream = _block(problem, config), _stream(problem, config)
    rows = 2 * block + (2 + config.int("DO_STAGES")) * stream
    return 2 * (rows * problem.head_dim + config.int("QUERY_WARPS") * block * stream) + 2 * 2 * 4 * stream


def _threads(problem: Problem, config: Config) -> int:
    return 32 * _block(problem, config) // config.int("WARP_KEYS") * config.int("QUERY_WARPS")


def _rows(problem: Problem) -> tuple[int, int]:
    """Rows of a head in Q and in K: of a batch entry, or of all packed sequences."""
    shapes = Packing(problem).inputs
    return (shapes["q"][0][0], shapes["k"][0][0]) if problem.varlen else (problem.seq_q, problem.seq_kv)


def _tiles(problem: Problem, rows: int, size: int) -> int:
    """Tiles of ``size`` rows of a head; of packed sequences the bound of ``entry_rows.cuh``."""
    return rows // size + problem.batch + 1 if problem.varlen else -(-rows // size)


def _batches(problem: Problem) -> int:
    """Batch entries with heads of their own in the tensors."""
    return 1 if problem.varlen else problem.batch


def _ctas(problem: Problem, config: Config) -> int:
    tiles = _tiles(problem, _rows(problem)[1], _block(problem, config))
    return _batches(problem) * problem.kv_heads * tiles


def _supports(problem: Problem) -> str | None:
    return backward_supports(problem, "flash_backward")


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    threads, stream = _threads(problem, config), _stream(problem, config)
    if config["WARP_KEYS"] == 32 and problem.attn_mask:
        return "WARP_KEYS=32 is for problems without attn_mask: its addresses take too many registers"
    if config["WARP_KEYS"] == 32 and problem.head_dim > 64 and config["QUERY_WARPS"] == 1:
        return "WARP_KEYS=32 is for head_dim 64, or for QUERY_WARPS=2: dK and dV of 32 keys take too many registers"
    if not 2 * stream <= threads <= MAX_THREADS:
        return f"{config} has {threads} threads a block, and {2 * stream} to {MAX_THREADS} are possible"
    if _ctas(problem, config) > MAX_CTAS:
        return f"{problem.label} needs more blocks than the {MAX_CTAS} of a grid's first axis"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _macros(problem: Problem, config: Config) -> Mapping[str, Knob]:
    return {
        **window_macros(problem),
        **({"Q_LENGTHS": 0, "KV_LENGTHS": int(problem.layout_form.gaps)} if problem.varlen else {}),
        "BLOCK": _block(problem, config),
        "STREAM": _stream(problem, config),
        **{name: config[name] for name in ("WARP_KEYS", "QUERY_WARPS", "DO_STAGES", "DETERMINISTIC")},
    }


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    stream, heads = _stream(problem, config), _batches(problem) * problem.heads
    seq_q, seq_kv = _rows(problem)
    tiles = _tiles(problem, seq_q, stream)
    threads = heads * tiles * stream * problem.head_dim // 8
    statistics = (problem.heads, seq_q) if problem.varlen else problem.q_shape[:3]
    buffers = (
        Buffer("delta", statistics, "float32", "workspace"),
        Buffer("dq_sums", (heads, tiles, stream, problem.head_dim), "float32", "workspace", fill=0.0),
        *([Buffer("semaphores", (1 + heads * tiles,), "int32", "semaphore")] if config["DETERMINISTIC"] else []),
    )
    arrays = ("q", "k", "v", "do", "lse", "delta", "dq_sums", "dk", "dv")
    ends = ("cu_seqlens_q", "cu_seqlens_k", problem.batch) if problem.varlen else (0, 0, 0)
    lengths = ("kv_lengths" if problem.layout_form.gaps else 0, 0) if problem.varlen else ("kv_lengths", "q_lengths")
    gradients = Launch(
        grid=(_ctas(problem, config), 1, 1),
        block=(_threads(problem, config), 1, 1),
        args=(
            *(*arrays, *lengths, "attn_mask", "alibi_slopes"),
            *(seq_q, seq_kv, problem.heads, problem.group, problem.scale, *ends),
            "semaphores" if config["DETERMINISTIC"] else 0,
        ),
        dynamic_smem=smem_bytes(problem, config),
    )
    convert = Launch(
        grid=(-(-threads // CONVERT_THREADS), 1, 1),
        block=(CONVERT_THREADS, 1, 1),
        args=("dq_sums", "dq", seq_q, problem.heads, problem.scale, threads, ends[0], problem.batch),
        entry="attention_dq",
    )
    delta = delta_launch(problem, heads * seq_q)
    delta = replace(delta, args=(*delta.args, problem.heads))
    return LaunchPlan(buffers, (delta, gradients, convert))


def _limits(problem: Problem) -> StaticLimits:
    """No spills, but for addresses where 32 keys a warp, or a mask above head_dim 96, leave no registers for them."""
    limits = gradient_limits(problem).but(shared_bytes=MAX_SHARED_BYTES)
    if problem.head_dim == 64:
        return limits
    return limits.but(spill_bytes=64, stack_bytes=64, reason=f"{limits.reason}; with 32 keys a warp addresses spill")


def _numerics(config: Config) -> Numerics:
    return Numerics(unordered=() if config["DETERMINISTIC"] else ("dq",))


_DEFAULT = Config(BLOCK=0, STREAM=0, WARP_KEYS=16, QUERY_WARPS=1, DO_STAGES=1, DETERMINISTIC=0)

FLASH_BACKWARD = CudaKernel(
    name="flash_backward",
    source=Path("flash_backward.cu"),
    entry="attention_gradients",
    plan=_plan,
    configs=(
        _DEFAULT,
        _DEFAULT.but(DETERMINISTIC=1),
        _DEFAULT.but(BLOCK=64, STREAM=32, DO_STAGES=2, DETERMINISTIC=1),
        _DEFAULT.but(BLOCK=128, STREAM=32),
        _DEFAULT.but(BLOCK=128, STREAM=64, WARP_KEYS=32),
        _DEFAULT.but(BLOCK=64, STREAM=32, WARP_KEYS=32, QUERY_WARPS=2),
    ),
    supports=_supports,
    reject=_reject,
    numerics=_numerics,
    limits=_limits,
    knobs={
        "BLOCK": (64, 128),
        "STREAM": (32, 64),
        "WARP_KEYS": (16, 32),
        "QUERY_WARPS": (1, 2),
        "DO_STAGES": (1, 2),
        "DETERMINISTIC": (0, 1),
    },
    features=(*BACKWARD_FEATURES, "varlen"),
    macros=_macros,
    idea="FlashAttention-2's backward on mma.sync: keys stay, queries stream, dQ is added up in float32; 5 products",
)
