"""The shipped kernels (the ladder), their launch plans, and the loader of a user's kernel.

One kernel is a ``.cu`` and a ``.py`` of the same name; :mod:`~sdpalab.kernels.registry` lists them,
:mod:`~sdpalab.kernels.kernel` defines a kernel, and :mod:`~sdpalab.kernels.plan` its launch plan.
"""

from __future__ import annotations

from sdpalab.kernels.kernel import Config, CudaKernel, Kernel, Numerics, Quantisation, StaticLimits, UnsupportedProblem
from sdpalab.kernels.plan import (
    INCLUDE_DIR,
    Buffer,
    Dim3,
    Gemm,
    Launch,
    LaunchPlan,
    Module,
    Step,
    TiledMap,
    TritonModule,
    problem_buffers,
)
from sdpalab.kernels.triton_kernel import TritonKernel

__all__ = [
    "INCLUDE_DIR",
    "Buffer",
    "Config",
    "CudaKernel",
    "Dim3",
    "Gemm",
    "Kernel",
    "Launch",
    "LaunchPlan",
    "Module",
    "Numerics",
    "Quantisation",
    "StaticLimits",
    "Step",
    "TiledMap",
    "TritonKernel",
    "TritonModule",
    "UnsupportedProblem",
    "problem_buffers",
]
