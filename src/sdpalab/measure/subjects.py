"""From a peer or a kernel of the lab to a subject: tensors on the device, calls that rotate them, outputs checked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs import Inputs
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, Kernel, Numerics
from sdpalab.kernels.plan import Launch, LaunchPlan, Module
from sdpalab.measure.floor import FloorCheck
from sdpalab.measure.peers import Peer
from sdpalab.measure.session import Subject
from sdpalab.problem import Problem

if TYPE_CHECKING:
    import torch

    from sdpalab.run.gpu import GpuExecutor

__all__ = ["EMPTY", "OutputCheck", "empty_subject", "kernel_subject", "peer_subject", "precision_of"]

Array = npt.NDArray[Any]
Floor = Callable[[float], FloorCheck]

EMPTY = "empty kernel"
"""Name of the subject that computes nothing: what is left of a time when a kernel has nothing to do."""


class OutputCheck:
    """The judge's rule for one problem and its inputs, remembering what has passed.

    Parameters
    ----------
    problem, inputs
        What is computed, over and over.
    numerics : Numerics, optional
        What the subject declares; None for a peer, which may divide by the sum before or after it rounds.
    """

    def __init__(self, problem: Problem, inputs: Inputs, numerics: Numerics | None = None) -> None:
        self._problem, self._inputs = problem, inputs
        self._numerics = numerics or UNDECLARED
        self._passed: bytes | None = None

    def __call__(self, out: Array) -> str:
        """What is wrong with ``out``; empty if nothing. The float64 reference is computed only for an output with other
        bits than the last that passed."""
        if out.shape != self._problem.q_shape or out.dtype != self._inputs.q.dtype:
            return f"it is {out.dtype} {out.shape}, not {self._problem.dtype} {self._problem.q_shape}"
        content = out.tobytes()
        if content == self._passed:
            return ""
        judged = judge_output(self._problem, self._inputs, out, self._numerics)
        if judged.status is not Status.PASSED:
            return f"{judged.status.value}: {judged.reason}"
        self._passed = content
        return ""


class _Rotation:
    """Calls one launch after another, each on its own copy of the inputs, and keeps the last output."""

    def __init__(self, launches: Sequence[Callable[[], torch.Tensor]], check: Callable[[Array], str]) -> None:
        self._next = itertools.cycle(launches).__next__
        self._check = check
        self._out: torch.Tensor | None = None

    def call(self) -> None:
        self._out = self._next()()

    def overwrite_output(self) -> None:
        if self._out is not None:
            self._out.fill_(np.nan)

    def check(self) -> str:
        assert self._out is not None, "nothing was called"
        return self._check(from_torch(self._out.cpu()))

    def subject(
        self, name: str, floor: Floor | None, scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> Subject:
        return Subject(name, self.call, self.check, self.overwrite_output, floor, scope)


def peer_subject(
    peer: Peer, problem: Problem, inputs: Inputs, device: torch.device, *, copies: int = 1, floor: Floor | None = None
) -> Subject:
    """A peer on ``copies`` copies of the inputs, which it takes in turn.

    Raises
    ------
    RuntimeError
        Of torch, if the device has no memory for them.
    """
    launches = [
        partial(peer.run, *tensors, scale=problem.scale, causal=problem.causal)
        for tensors in _copies(inputs, device, copies)
    ]
    return _Rotation(launches, OutputCheck(problem, inputs)).subject(peer.name, floor, peer.scope)


def kernel_subject(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    inputs: Inputs,
    executor: GpuExecutor,
    *,
    copies: int = 1,
    floor: Floor | None = None,
) -> Subject:
    """A kernel of the lab, built and prepared once for each copy of the inputs; output and workspace are shared.

    Raises
    ------
    UserError, MachineError
        As :meth:`sdpalab.run.gpu.GpuExecutor.prepare`.
    """
    import torch

    device = torch.device("cuda", executor.gpu.ordinal)
    plan = kernel.launch_plan(problem, config)
    shared = {
        buffer.name: torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device)
        for buffer in plan.buffers
        if buffer.role != "in"
    }
    launches = []
    for tensors in _copies(inputs, device, copies):
        prepared = executor.prepare(plan, {**shared, **dict(zip("qkv", tensors, strict=True))})
        launches.append(partial(_launched, prepared, shared["o"]))
    return _Rotation(launches, OutputCheck(problem, inputs, kernel.numerics_of(config))).subject(kernel.name, floor)


def empty_subject(executor: GpuExecutor) -> Subject:
    """A kernel of one warp that does nothing, launched as the lab's kernels are."""
    module = Module("empty.cu", 'extern "C" __global__ void empty() {}', "empty")
    step = Launch(grid=(1, 1, 1), block=(32, 1, 1), args=(), module=module)
    prepared = executor.prepare(LaunchPlan((), (step,)), {})
    return Subject(EMPTY, partial(_launched, prepared, None), check=str, overwrite_output=_nothing)


def precision_of(numerics: Numerics) -> str:
    """The fastest arithmetic that a kernel declares, ``fp16`` or ``fp8``: which floor it cannot be below."""
    narrow = numerics.quantised is not None or numerics.probabilities.startswith("float8")
    return "fp8" if narrow else "fp16"


def _launched(prepared: Any, out: torch.Tensor | None) -> Any:
    """Launch on the stream that is current now: a graph captures on one of its own."""
    import torch

    prepared.launch(torch.cuda.current_stream().cuda_stream)
    return out


def _copies(inputs: Inputs, device: torch.device, copies: int) -> list[tuple[torch.Tensor, ...]]:
    arrays = (inputs.q, inputs.k, inputs.v)
    return [tuple(to_torch(array).to(device, copy=True) for array in arrays) for _ in range(copies)]


def _nothing() -> None:
    """There is no output to overwrite."""
