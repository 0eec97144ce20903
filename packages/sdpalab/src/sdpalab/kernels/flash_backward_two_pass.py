"""The ``flash_backward_two_pass`` kernel: its knobs, its shared memory and its launches (idea:
``flash_backward_two_pass.cu``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, Knob, StaticLimits
from sdpalab.kernels.ladder import INDEX_LIMIT, reject_oversized, reject_unlisted, why_not_scale, window_macros
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["BACKWARD_FEATURES", "FLASH_BACKWARD_TWO_PASS", "backward_supports", "delta_launch", "gradient_limits"]

HEAD_DIMS = (64, 96, 128)
BACKWARD_FEATURES = (
    "window_size",
    "softcap",
    "kv_lengths",
    "attn_mask",
    "alibi_slopes",
    "sinks",
    "q_lengths",
    "bottom_right",
    "backward",
)
"""Features of the kernels of gradients. A sink is part of the log-sum-exp, and no array of theirs."""
KNOBS = {"BLOCK": (0, 64, 128), "STREAM": (0, 32, 64)}
WARP_M = 16
STAGES = 2
MAX_SHARED_BYTES = 99 * 1024
"""Shared memory of a block on sm_86 and sm_89, the least from sm_80 on."""
MAX_CTAS = 2**31 - 1
DELTA_THREADS = 256


def backward_supports(problem: Problem, kernel: str) -> str | None:
    """None if a kernel of gradients on mma.sync can compute ``problem``, otherwise the reason."""
    if problem.head_dim not in HEAD_DIMS:
        return f"kernel {kernel} supports head_dim 64, 96 or 128, not {problem.head_dim}"
    if problem.dtype not in HALF_DTYPES:
        return f"kernel {kernel} computes float16 or bfloat16, not {problem.dtype}"
    for name, length in (("seq_q", problem.seq_q), ("seq_kv", problem.seq_kv)):
        if length > INDEX_LIMIT // 2:
            return f"kernel {kernel} numbers the rows of a head with 32 bits, and {name}={length} does not fit"
    return why_not_scale(problem, kernel)


def delta_launch(problem: Problem, rows: int) -> Launch:
    """The step that writes ``delta``, the sum of dO * O of each of ``rows`` rows over all heads, with ``DELTA_THREADS``
    threads a block."""
    lanes = 16 if problem.head_dim > 64 else 8
    return Launch(
        grid=(-(-rows // (DELTA_THREADS // lanes)), 1, 1),
        block=(DELTA_THREADS, 1, 1),
        args=("o", "do", "delta", rows),
        entry="attention_delta",
    )


def _block(problem: Problem, config: Config) -> int:
    """Rows that a CTA owns: BLOCK, or, for 0, 64, and 128 above head_dim 96."""
    return config.int("BLOCK") or (128 if problem.head_dim > 96 else 64)


def _stream(problem: Problem, config: Config) -> int:
    """Rows of a streamed tile: STREAM, or, for 0, 64, and 32 above head_dim 64."""
    return config.int("STREAM") or (32 if problem.head_dim > 64 else 64)


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: two owned tiles, stages of two streamed ones, and their statistics.

    Up to head_dim 64 the owned tiles pass through the last stage to registers.
    """
    own, stage = (2 * 2 * rows * problem.head_dim for rows in (_block(problem, config), _stream(problem, config)))
    before = (STAGES - 1 if problem.head_dim <= 64 else STAGES) * stage
    return max(before + own, STAGES * stage) + STAGES * 2 * 4 * _stream(problem, config)


def _ctas(problem: Problem, config: Config) -> tuple[int, int]:
    """CTAs that own keys, and all CTAs."""
    block = _block(problem, config)
    of_keys = problem.batch * problem.kv_heads * -(-problem.seq_kv // block)
    return of_keys, of_keys + problem.batch * problem.heads * -(-problem.seq_q // block)


def _supports(problem: Problem) -> str | None:
    return backward_supports(problem, "flash_backward_two_pass")


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    stream = _stream(problem, config)
    if problem.head_dim > 64 and stream > 32:
        return f"STREAM={stream} is for head_dim 64: above, the scores of 64 streamed rows take too many registers"
    if _ctas(problem, config)[1] > MAX_CTAS:
        return f"{problem.label} needs more blocks than the {MAX_CTAS} of a grid's first axis"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _macros(problem: Problem, config: Config) -> Mapping[str, Knob]:
    return {**window_macros(problem), "BLOCK": _block(problem, config), "STREAM": _stream(problem, config)}


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    of_keys, ctas = _ctas(problem, config)
    arrays = ("q", "k", "v", "do", "lse", "delta", "dq", "dk", "dv")
    gradients = Launch(
        grid=(ctas, 1, 1),
        block=(_block(problem, config) // WARP_M * 32, 1, 1),
        args=(
            *(*arrays, "kv_lengths", "q_lengths", "attn_mask", "alibi_slopes"),
            *(problem.seq_q, problem.seq_kv, problem.heads, problem.group, problem.scale, of_keys),
        ),
        dynamic_smem=smem_bytes(problem, config),
    )
    delta = Buffer("delta", problem.q_shape[:3], "float32", "workspace")
    return LaunchPlan((delta,), (delta_launch(problem, problem.batch * problem.heads * problem.seq_q), gradients))


def gradient_limits(problem: Problem) -> StaticLimits:
    """The limits of a kernel of gradients: no spills, but for addresses of a mask above head_dim 96."""
    limits = MISSION_LIMITS.but(
        registers=255,
        shared_bytes=MAX_SHARED_BYTES,
        reason="dK, dV, S and dP are 128 to 160 registers; eight warps of 255 fill the register file",
    )
    if problem.head_dim > 96 and problem.attn_mask:
        return limits.but(spill_bytes=64, stack_bytes=64, reason=f"{limits.reason}, and the mask's addresses spill")
    return limits


_DEFAULT = Config(BLOCK=0, STREAM=0)

FLASH_BACKWARD_TWO_PASS = CudaKernel(
    name="flash_backward_two_pass",
    source=Path("flash_backward_two_pass.cu"),
    entry="attention_gradients",
    plan=_plan,
    configs=(_DEFAULT, _DEFAULT.but(BLOCK=64, STREAM=32), _DEFAULT.but(BLOCK=64, STREAM=64)),
    supports=_supports,
    reject=_reject,
    limits=gradient_limits,
    knobs={"BLOCK": (64, 128), "STREAM": (32, 64)},
    features=BACKWARD_FEATURES,
    macros=_macros,
    idea="gradients on mma.sync without atomics: CTAs own keys (dK, dV) or queries (dQ); 7 products, equal bits",
)
