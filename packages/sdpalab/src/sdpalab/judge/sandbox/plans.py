"""A launch plan as data, sent from the process that ran the candidate's Python to the process that executes it.

The plan server receives text and numbers: CUDA C++ source, or PTX from Triton, with buffers and launches. A plan has no
field for machine code: the plan server compiles it from the text whose digest it reports.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import ml_dtypes
import numpy as np
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from sdpalab.compile import Build, Cache, build
from sdpalab.errors import UserError
from sdpalab.kernels.plan import (
    Buffer,
    Gemm,
    Launch,
    LaunchPlan,
    Module,
    PtxSource,
    Source,
    Step,
    TiledMap,
    TritonModule,
)

__all__ = ["MOST_PLAN", "PlanError", "SentPlan", "SentStep", "read_plan", "send_plan"]

MOST_PLAN = 1 << 24
"""Most bytes of a launch plan with its source text."""
MOST_BYTES = 4 << 30
"""Most bytes of all buffers of a plan together."""

_DTYPES: Mapping[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in ("uint8", "int32", "int64", "float16", "float32", "float64")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")},
}

Size: TypeAlias = Annotated[int, Field(ge=1, lt=1 << 31)]
Sizes: TypeAlias = tuple[Size, Size, Size]


class PlanError(UserError):
    """A plan that is not valid for this problem."""


class _Data(BaseModel):
    # JSON has no infinity, which an argument may be.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ser_json_inf_nan="constants")


def _language(code: Any) -> str:
    return "ptx" if isinstance(code, PtxSource) or (isinstance(code, dict) and "ptx" in code) else "source"


class SentStep(_Data):
    """One launch. ``code`` is the text to build: CUDA C++, or the PTX that Triton compiled."""

    grid: Sizes
    block: Sizes
    cluster: Sizes
    dynamic_smem: Annotated[int, Field(ge=0, lt=1 << 31)]
    args: tuple[Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | float | str | TiledMap, ...]
    code: Annotated[Annotated[Module, Tag("source")] | Annotated[PtxSource, Tag("ptx")], Discriminator(_language)]
    programmatic: bool = False

    def launch(self, module: Source | None = None) -> Launch:
        """The step of a plan."""
        sizes = self.grid, self.block, self.args, self.dynamic_smem, self.cluster
        return Launch(*sizes, module, programmatic=self.programmatic)


def _kind(step: Any) -> str:
    product = "transpose_b" in step if isinstance(step, dict) else isinstance(step, Gemm)
    return "product" if product else "launch"


AnyStep: TypeAlias = Annotated[
    Annotated[SentStep, Tag("launch")] | Annotated[Gemm, Tag("product")], Discriminator(_kind)
]
"""A step; the tag is the type name in messages."""


class SentPlan(_Data):
    """A launch plan whose modules are data."""

    buffers: tuple[Buffer, ...]
    steps: Annotated[tuple[AnyStep, ...], Field(min_length=1, max_length=64)]

    def builds(self, arch: str, cache: Cache) -> tuple[Build, ...]:
        """Module of each launch, built if necessary; raises as :func:`sdpalab.compile.build`."""
        return tuple(build(step.code, arch, cache=cache) for step in self.steps if isinstance(step, SentStep))

    def without(self, name: str) -> SentPlan:
        """The plan without that buffer, as :meth:`sdpalab.kernels.plan.LaunchPlan.without`."""
        steps = tuple(
            step.model_copy(update={"args": tuple(0 if arg == name else arg for arg in step.args)})
            if isinstance(step, SentStep)
            else step
            for step in self.steps
        )
        return SentPlan(buffers=tuple(buffer for buffer in self.buffers if buffer.name != name), steps=steps)

    def including(self, folders: Sequence[Path]) -> SentPlan:
        """The plan with further folders for ``#include``, after those of the kernel."""
        steps = tuple(
            step.model_copy(update={"code": replace(step.code, include_dirs=(*step.code.include_dirs, *folders))})
            if isinstance(step, SentStep) and isinstance(step.code, Module)
            else step
            for step in self.steps
        )
        return SentPlan(buffers=self.buffers, steps=steps)

    def plan(self, *, modules: bool = False) -> LaunchPlan:
        """The plan; without ``modules`` it has none, and :meth:`builds` builds them."""
        steps = [
            step.launch(step.code if modules else None) if isinstance(step, SentStep) else step for step in self.steps
        ]
        return LaunchPlan(self.buffers, tuple(steps))


def send_plan(plan: LaunchPlan, arch: str) -> bytes:
    """A kernel's plan as JSON. Triton's modules are compiled here, because this runs the kernel's own Python.

    Raises
    ------
    PlanError
        If a value in it is not a number, name or tensor map.
    BuildError, MachineError
        If a Triton function does not compile.
    """
    try:
        steps = tuple(_sent(step, arch) for step in plan.steps)
        return SentPlan(buffers=tuple(map(_buffer, plan.buffers)), steps=steps).model_dump_json().encode()
    except (ValidationError, TypeError, AttributeError) as error:
        raise PlanError(f"the launch plan is malformed: {_first(error)}") from None


def read_plan(data: bytes, known: tuple[Buffer, ...], include_dirs: Sequence[Path] = ()) -> SentPlan:
    """Parse and check the plan in ``data``: it must begin with the buffers of its problem
    (:func:`sdpalab.kernels.plan.problem_buffers`), and have only known fields. Its CUDA C++ may also include from
    ``include_dirs``.

    Raises
    ------
    PlanError
        If the plan is invalid, with the first error.
    """
    try:
        plan = SentPlan.model_validate_json(data)
    except ValidationError as error:
        raise PlanError(f"the launch plan is malformed: {_first(error)}") from None
    first = plan.buffers[: len(known)]
    if tuple(replace(buffer, fill=None) for buffer in first) != known:
        names = ", ".join(f"{buffer.name} {list(buffer.shape)}" for buffer in known)
        raise PlanError(f"the launch plan does not begin with the buffers of its problem: {names}")
    extra = plan.buffers[len(known) :]
    if any(buffer.role not in ("workspace", "semaphore") or buffer.dtype not in _DTYPES for buffer in extra):
        raise PlanError(f"a further buffer of a launch plan is a workspace or semaphore of one of {', '.join(_DTYPES)}")
    if any(buffer.fill is not None and buffer.role not in ("out", "workspace") for buffer in plan.buffers):
        raise PlanError("only an output or a workspace of a launch plan has a fill")
    if any(size < 1 for buffer in extra for size in buffer.shape):
        raise PlanError("a buffer of the launch plan has a size below 1")
    total = sum(math.prod(buffer.shape) * _DTYPES[buffer.dtype].itemsize for buffer in plan.buffers)
    if total > MOST_BYTES:
        raise PlanError(f"the launch plan needs {total} bytes of buffers, and at most {MOST_BYTES} are given")
    elements = {buffer.name: math.prod(buffer.shape) for buffer in plan.buffers}
    for step in plan.steps:
        reason = step.why_not(elements) if isinstance(step, Gemm) else None
        if reason is not None:
            raise PlanError(reason)
    return plan.including(include_dirs) if include_dirs else plan


def _sent(step: Step, arch: str) -> SentStep | Gemm:
    if isinstance(step, Gemm):
        batch, m, n, k, lda, ldc = map(operator.index, (step.batch, step.m, step.n, step.k, step.lda, step.ldc))
        return replace(step, batch=batch, m=m, n=n, k=k, lda=lda, ldc=ldc)
    if step.module is None:
        raise PlanError("a step of the launch plan has no module: make the plan with launch_plan of a kernel")
    code: Module | PtxSource
    if isinstance(step.module, Module):
        code = step.module
    elif isinstance(step.module, TritonModule):
        compiled = build(step.module, arch)
        code = PtxSource(
            compiled.module,
            step.module.source,
            compiled.entry,
            arch,
            compiled.ptx,
            compiled.compiler,
            compiled.command,
            compiled.triton,
        )
    else:
        raise PlanError("a module of the launch plan is a Module or a TritonModule")
    return SentStep(
        grid=_sizes(step.grid),
        block=_sizes(step.block),
        cluster=_sizes(step.cluster),
        dynamic_smem=operator.index(step.dynamic_smem),
        args=tuple(map(_argument, step.args)),
        code=code,
        programmatic=bool(step.programmatic),
    )


def _buffer(buffer: Buffer) -> Buffer:
    fill = None if buffer.fill is None else float(buffer.fill)
    return replace(buffer, shape=tuple(map(operator.index, buffer.shape)), fill=fill)


def _sizes(sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Three sizes as int; a kernel's Python may have computed NumPy integers."""
    if len(sizes) != 3:
        raise TypeError(f"{sizes} are not three sizes")
    x, y, z = map(operator.index, sizes)
    return x, y, z


def _argument(value: Any) -> Any:
    if isinstance(value, (str, TiledMap)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value)
    if not -(1 << 63) <= operator.index(value) < 1 << 64:
        raise TypeError(f"the argument {value} has more than 64 bits")
    return operator.index(value)


def _first(error: Exception) -> str:
    """The first validation error: location and message."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first["loc"] else first["msg"]
