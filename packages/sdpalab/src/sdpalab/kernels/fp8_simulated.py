"""The ``fp8_simulated`` kernel: its workspaces and its three steps. The idea is in ``fp8_simulated.cu``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sdpalab.kernels.kernel import Config, CudaKernel, Numerics, Quantisation
from sdpalab.kernels.plan import Buffer, LaunchPlan
from sdpalab.kernels.quantisation import over_row_blocks, quantised_supports, row_blocks
from sdpalab.kernels.wmma import LIMITS, WMMA, wmma_launch, wmma_reject
from sdpalab.problem import Problem

__all__ = ["FP8_SIMULATED"]

ROWS = 64
"""Rows of Q, K or V per block of the first two steps."""
TENSORS = ("q", "k", "v")


def _supports(problem: Problem) -> str | None:
    return quantised_supports(problem, "fp8_simulated")


def _reject(problem: Problem, config: Config) -> str | None:
    return wmma_reject(problem, config, LIMITS.value("shared_bytes"))


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    shapes = dict(zip(TENSORS, (problem.q_shape, problem.kv_shape, problem.v_shape), strict=True))
    q_blocks, kv_blocks = row_blocks(problem, ROWS)
    blocks = {"q": q_blocks, "k": kv_blocks, "v": kv_blocks}
    maxima = [Buffer(f"{x}_maxima", (*shapes[x][:2], blocks[x]), "float32", "workspace") for x in TENSORS]
    numbers = [Buffer(f"{x}_bytes", shapes[x], "uint8", "workspace") for x in TENSORS]
    scales = [Buffer(f"{x}_scales", shapes[x][:2], "float32", "workspace") for x in TENSORS]
    maxima_names, quantised_names = ([buffer.name for buffer in group] for group in (maxima, [*numbers, *scales]))
    attention = wmma_launch(problem, config)
    return LaunchPlan(
        (*maxima, *numbers, *scales),
        (
            over_row_blocks(problem, ROWS, f"head_maxima<{ROWS}>", maxima_names),
            over_row_blocks(problem, ROWS, f"quantise_heads<{ROWS}>", [*maxima_names, *quantised_names]),
            replace(attention, args=(*quantised_names, *attention.args[3:])),
        ),
    )


_DEFAULT = Config(BLOCK_M=64, BLOCK_N=32)

FP8_SIMULATED = CudaKernel(
    name="fp8_simulated",
    source=Path("fp8_simulated.cu"),
    entry="fp8_simulated_attention",
    plan=_plan,
    configs=(_DEFAULT, _DEFAULT.but(BLOCK_M=32), _DEFAULT.but(BLOCK_M=128), _DEFAULT.but(BLOCK_N=64)),
    supports=_supports,
    reject=_reject,
    numerics=Numerics(quantised=Quantisation()),
    limits=WMMA.limits,
    min_arch=89,
    knobs=WMMA.knobs,
    lse=True,
    idea="Q, K and V kept in e4m3 with one scale a head, and multiplied in 16 bits: what 8 bits cost in accuracy",
)
