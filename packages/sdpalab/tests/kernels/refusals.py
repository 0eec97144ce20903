"""Configurations that a kernel refuses: its plan with a reason, and its source by a static_assert that mirrors it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from sdpalab.compile import BuildError, build
from sdpalab.kernels.kernel import Config, CudaKernel, Kernel, Knob, UnsupportedProblem
from sdpalab.problem import Problem

__all__ = ["WMMA_TILES", "Refusal", "assert_refused"]


@dataclass(frozen=True)
class Refusal:
    """An error, and the messages that report it.

    Attributes
    ----------
    changes : mapping
        Changes of knobs to the configuration that is taken for right.
    reason : str
        Part of what the plan is refused with; empty where the plan chooses what is right instead.
    message : str
        Part of what the compiler says; empty where the source leaves it to the plan, or to the compiler's own words.
    problem : Problem
    """

    changes: Mapping[str, Knob]
    reason: str
    message: str = ""
    problem: Problem = field(default=Problem(1, 1, 64, 64))

    def __str__(self) -> str:
        return f"{Config(self.changes)} {self.problem.label}".strip()


WMMA_TILES = (
    Refusal(
        {"BLOCK_M": 24},
        "BLOCK_M must be 16 rows for each of 1 to 32 warps, not 24",
        "BLOCK_M is 16 rows for each of 32 warps at most",
    ),
    Refusal(
        {"BLOCK_N": 48},
        "BLOCK_N must be a multiple of 16 that divides head_dim or exceeds it, not 48",
        "BLOCK_N is a multiple of 16 that divides HEAD_DIM or exceeds it",
    ),
)
"""Tiles that no kernel on ``include/tile/wmma.cuh`` takes."""


def assert_refused(kernel: Kernel, refusal: Refusal, base: Config | None = None) -> None:
    """Neither a plan is made nor the source compiled; ``base`` is the default configuration if left out."""
    problem = refusal.problem
    config = (base or kernel.default_config).but(**refusal.changes)
    where = f"{kernel.name} {problem.label} {config}"
    with pytest.raises(UnsupportedProblem) as refused:
        kernel.launch_plan(problem, config)
    assert refusal.reason in str(refused.value), f"{where}: {refused.value}"
    if refusal.message:
        assert isinstance(kernel, CudaKernel), f"{where}: the source of a static_assert is CUDA C++"
        with pytest.raises(BuildError) as failed:
            build(kernel.module(problem, config), kernel.default_arch)
        message = f"{failed.value} {failed.value.log}"
        assert refusal.message in message, f"{where}: {message}"
