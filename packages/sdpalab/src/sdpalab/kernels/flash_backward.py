"""The ``flash_backward`` kernel: its knobs, its shared memory and its steps (idea: ``flash_backward.cu``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sdpalab.kernels.flash_backward_two_pass import (
    BACKWARD_FEATURES,
    MAX_CTAS,
    MAX_SHARED_BYTES,
    backward_supports,
    delta_launch,
    gradient_limits,
)
from sdpalab.kernels.kernel import Config, CudaKernel, Knob, Numerics
from sdpalab.kernels.ladder import reject_oversized, reject_unlisted, window_macros
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan
from sdpalab.problem import Problem

__all__ = ["FLASH_BACKWARD", "smem_bytes"]

KNOBS = {"BLOCK": (0, 64, 128), "STREAM": (0, 32, 64), "DO_STAGES": (1, 2), "DETERMINISTIC": (0, 1)}
CONVERT_THREADS = 256


def _block(problem: Problem, config: Config) -> int:
    """Keys of a CTA, 16 a warp: BLOCK, or, for 0, 64 where two CTAs then share an SM of sm_89, and 128 above head_dim
    96."""
    return config.int("BLOCK") or (128 if problem.head_dim > 96 else 64)


def _stream(problem: Problem, config: Config) -> int:
    """Queries of a tile: STREAM, or, for 0, the most whose scores fit the registers (:func:`_most`)."""
    return config.int("STREAM") or _most(problem)


def _most(problem: Problem) -> int:
    """Queries of the largest tile that spills nothing: 64, and 32 above head_dim 64 or with a mask."""
    return 32 if problem.head_dim > 64 or problem.attn_mask else 64


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: K and V, two tiles of Q, those of dO, dS, and the rows' statistics."""
    block, stream = _block(problem, config), _stream(problem, config)
    rows = 2 * block + (2 + config.int("DO_STAGES")) * stream
    return 2 * (rows * problem.head_dim + block * stream) + 2 * 2 * 4 * stream


def _ctas(problem: Problem, config: Config) -> int:
    return problem.batch * problem.kv_heads * -(-problem.seq_kv // _block(problem, config))


def _supports(problem: Problem) -> str | None:
    return backward_supports(problem, "flash_backward")


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    if _stream(problem, config) > _most(problem):
        return "STREAM=64 is for head_dim 64 without attn_mask: elsewhere 64 rows of scores take too many registers"
    if _ctas(problem, config) > MAX_CTAS:
        return f"{problem.label} needs more blocks than the {MAX_CTAS} of a grid's first axis"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _macros(problem: Problem, config: Config) -> Mapping[str, Knob]:
    return {
        **window_macros(problem),
        "BLOCK": _block(problem, config),
        "STREAM": _stream(problem, config),
        "DO_STAGES": config["DO_STAGES"],
        "DETERMINISTIC": config["DETERMINISTIC"],
    }


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    stream, heads = _stream(problem, config), problem.batch * problem.heads
    tiles = -(-problem.seq_q // stream)
    threads = heads * tiles * stream * problem.head_dim // 8
    buffers = (
        Buffer("delta", problem.q_shape[:3], "float32", "workspace"),
        Buffer("dq_sums", (heads, tiles, stream, problem.head_dim), "float32", "workspace", fill=0.0),
        *([Buffer("semaphores", (1 + heads * tiles,), "int32", "semaphore")] if config["DETERMINISTIC"] else []),
    )
    arrays = ("q", "k", "v", "do", "lse", "delta", "dq_sums", "dk", "dv")
    gradients = Launch(
        grid=(_ctas(problem, config), 1, 1),
        block=(_block(problem, config) // 16 * 32, 1, 1),
        args=(
            *(*arrays, "kv_lengths", "q_lengths", "attn_mask", "alibi_slopes"),
            *(problem.seq_q, problem.seq_kv, problem.heads, problem.group, problem.scale),
            "semaphores" if config["DETERMINISTIC"] else 0,
        ),
        dynamic_smem=smem_bytes(problem, config),
    )
    convert = Launch(
        grid=(-(-threads // CONVERT_THREADS), 1, 1),
        block=(CONVERT_THREADS, 1, 1),
        args=("dq_sums", "dq", problem.seq_q, problem.scale, threads),
        entry="attention_dq",
    )
    return LaunchPlan(buffers, (delta_launch(problem), gradients, convert))


def _numerics(config: Config) -> Numerics:
    return Numerics(unordered=() if config["DETERMINISTIC"] else ("dq",))


_DEFAULT = Config(BLOCK=0, STREAM=0, DO_STAGES=1, DETERMINISTIC=0)

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
    ),
    supports=_supports,
    reject=_reject,
    numerics=_numerics,
    limits=gradient_limits,
    knobs={"BLOCK": (64, 128), "STREAM": (32, 64), "DO_STAGES": (1, 2), "DETERMINISTIC": (0, 1)},
    features=BACKWARD_FEATURES,
    macros=_macros,
    idea="FlashAttention-2's backward on mma.sync: keys stay, queries stream, dQ is added up in float32; 5 products",
)
