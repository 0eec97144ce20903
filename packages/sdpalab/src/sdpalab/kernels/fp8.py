"""The ``fp8`` kernel: its knobs, its shared memory and its two steps. The idea is in ``fp8.cu``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, Knob, Numerics, Quantisation, StaticLimits
from sdpalab.kernels.ladder import ladder_launch, reject_oversized, reject_unlisted
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.quantisation import quantisation_buffers, quantise_rows, quantised_supports
from sdpalab.kernels.stream_k import reciprocal
from sdpalab.problem import Problem

__all__ = ["FP8", "SCALE_ROWS", "smem_bytes"]

SCALE_ROWS = 64
"""Rows of Q, K or V that share a scale, and keys of a tile."""
WARP_M = 16
KNOBS = {"BLOCK_M": (32, 64, 128), "NUM_STAGES": (2, 3, 4), "P_DTYPE": ("e4m3", "fp16")}
MAX_SHARED_BYTES = 48 * 1024


def smem_bytes(problem: Problem, config: Config) -> int:
    """Dynamic shared memory of a block in bytes: one tile of K and one of V per stage."""
    return config.int("NUM_STAGES") * 2 * SCALE_ROWS * problem.head_dim


def _threads(config: Config) -> int:
    return config.int("BLOCK_M") // WARP_M * 32


def _supports(problem: Problem) -> str | None:
    return quantised_supports(problem, "fp8")


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    rows = _threads(config) * 16 // problem.head_dim
    if rows > SCALE_ROWS:
        copied = f"copies {rows} rows of head_dim {problem.head_dim} at a time"
        return f"a block of BLOCK_M={config['BLOCK_M']} {copied}, and a tile has {SCALE_ROWS} keys"
    return reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


def _numerics(config: Config) -> Numerics:
    quantised = Quantisation(rows=SCALE_ROWS)
    if config.get("P_DTYPE") == "fp16":  # its factor causes no rounding and is not declared
        return Numerics(probabilities="float16", quantised=quantised)
    return Numerics(probabilities="float8_e4m3fn", probability_scale=16.0, quantised=quantised)


def _limits(problem: Problem) -> StaticLimits:
    if problem.head_dim > 64:
        reason = "the fragments of Q, O, S and P alone are 120 registers"
        return MISSION_LIMITS.but(registers=208, shared_bytes=MAX_SHARED_BYTES, reason=reason)
    reason = "sm_90 and sm_100 convert e4m3 to float16 and take up to 167; sm_89, which multiplies it, takes 130"
    return MISSION_LIMITS.but(registers=168, shared_bytes=MAX_SHARED_BYTES, reason=reason)


def _macros(problem: Problem, config: Config) -> Mapping[str, Knob]:
    """Macros of the source: the knobs, and whether the problem ends within a tile."""
    ragged = {"RAGGED_Q": problem.seq_q % config.int("BLOCK_M") > 0, "RAGGED_KV": problem.seq_kv % SCALE_ROWS > 0}
    return {**config, **{name: int(value) for name, value in ragged.items()}}


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    attention = ladder_launch(problem, config.int("BLOCK_M"), _threads(config), smem_bytes(problem, config))
    workspaces = quantisation_buffers(problem, SCALE_ROWS)
    by_kv_head = reciprocal(attention.grid[0] * problem.group)
    args = (*(buffer.name for buffer in workspaces), *attention.args[3:], by_kv_head)
    return LaunchPlan(workspaces, (quantise_rows(problem, SCALE_ROWS, v_in_blocks=True), replace(attention, args=args)))


_DEFAULT = Config(BLOCK_M=64, NUM_STAGES=2, P_DTYPE="e4m3")

FP8 = CudaKernel(
    name="fp8",
    source=Path("fp8.cu"),
    entry="fp8_attention",
    plan=_plan,
    configs=(
        _DEFAULT,
        _DEFAULT.but(NUM_STAGES=3),
        _DEFAULT.but(BLOCK_M=32),
        _DEFAULT.but(BLOCK_M=128),
        _DEFAULT.but(P_DTYPE="fp16"),
    ),
    supports=_supports,
    reject=_reject,
    numerics=_numerics,
    limits=_limits,
    min_arch=89,
    knobs=KNOBS,
    macros=_macros,
    lse=True,
    idea="e4m3 tensor cores for both products, with a scale for each 64 rows; quantised by a kernel of its own",
)
