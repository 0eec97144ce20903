"""Subjects from peers and kernels of the lab: tensors on the device, rotating calls, checked outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.judge.rule.numerics import on_architecture
from sdpalab.judge.tensors import buffer_tensors, from_torch
from sdpalab.kernels.kernel import Numerics
from sdpalab.kernels.plan import Launch, LaunchPlan, Module
from sdpalab.measure.floor import FloorCheck
from sdpalab.measure.outputs import OutputCheck, Outputs
from sdpalab.measure.peers import Peer
from sdpalab.measure.session import Subject
from sdpalab.measure.timing_gate import TimingPermit
from sdpalab.packing import Packing
from sdpalab.run import torch_gpu
from sdpalab.run.torch_launch import TorchLaunch

if TYPE_CHECKING:
    import torch

    from sdpalab.run.gpu import GpuExecutor

__all__ = ["EMPTY", "empty_subject", "failing_subject", "kernel_subject", "peer_subject", "precision_of"]

Array = npt.NDArray[Any]
Floor = Callable[[float], FloorCheck]
Check = Callable[[Mapping[str, Array]], str]
"""Error of a subject's outputs by name; empty if right."""

EMPTY = "empty kernel"
"""Name of the subject without computation: the time of an empty launch."""


class _Rotation:
    """Consecutive launches, each on its own copy of the inputs; stores the last outputs: a tensor, or one for each name
    of ``outputs``."""

    def __init__(self, launches: Sequence[Callable[[], Any]], outputs: Outputs, check: Check) -> None:
        self._next = itertools.cycle(launches).__next__
        self._names = tuple(outputs.problem.outputs)
        self._check = check
        self._last: Any = None

    def call(self) -> None:
        self._last = self._next()()

    @property
    def _outputs(self) -> dict[str, torch.Tensor]:
        last = self._last if isinstance(self._last, tuple) else (self._last,)
        return {} if self._last is None else dict(zip(self._names, last, strict=True))

    def overwrite_output(self) -> None:
        for each in self._outputs.values():
            each.fill_(np.nan)

    def check(self) -> str:
        assert self._last is not None, "nothing was called"
        return self._check({name: from_torch(each.cpu()) for name, each in self._outputs.items()})

    def subject(
        self, name: str, floor: Floor | None, scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> Subject:
        return Subject(name, self.call, self.check, self.overwrite_output, floor, scope)


def peer_subject(
    peer: Peer, outputs: Outputs, device: torch.device, *, copies: int = 1, floor: Floor | None = None
) -> Subject:
    """A peer that rotates through ``copies`` copies of the inputs of ``outputs``; padding in them is 0.

    Raises
    ------
    RuntimeError
        From torch, if the device has too little memory.
    """
    problem, arrays = outputs.problem, ("q", "k", "v", *(["do"] if outputs.problem.backward else ()))
    prepare: Callable[..., Callable[[], Any]] = peer.prepared_gradients if problem.backward else peer.prepared
    launches = [
        prepare(problem, outputs.inputs, *(tensors[name] for name in arrays))
        for tensors in _copies(outputs.inputs.padded(0.0).arrays, device, copies)
    ]
    return _Rotation(launches, outputs, OutputCheck(outputs)).subject(peer.name, floor, peer.scope)


def kernel_subject(
    permit: TimingPermit,
    outputs: Outputs,
    executor: GpuExecutor,
    *,
    copies: int = 1,
    floor: Floor | None = None,
    eager: bool = False,
) -> Subject:
    """A kernel of the lab with a permit, prepared before the measurement; its builds are the judged ones.

    By default the kernel is prepared once for each copy of the inputs, with shared output and workspace. With ``eager``
    each call follows the path of ``sdpalab.scaled_dot_product_attention``: it checks the tensors, allocates output and
    workspace, and launches, as a peer's call does. (The function also looks up the certified kernel, in a dictionary by
    shape. It has no arguments for window, soft cap, lengths, slopes or sinks; here they are passed to the launch
    directly.)

    Raises
    ------
    UserError
        If the permit is for another problem or GPU, or as :meth:`sdpalab.run.gpu.GpuExecutor.prepare`.
    MachineError
        As :meth:`sdpalab.run.gpu.GpuExecutor.prepare`.
    """
    import torch

    if (permit.arch, permit.sms) != (executor.arch, executor.sms):
        raise UserError(
            f"{permit.name} is not timed: it was judged for {permit.arch} with {permit.sms} SMs, and {executor.device} "
            f"is {executor.arch} with {executor.sms}"
        )
    device = torch_gpu.device(executor.gpu.ordinal)
    plan, builds = permit.prepared(outputs.problem)
    packing = Packing(outputs.problem)
    buffers = packing.pack(outputs.inputs.arrays)
    judged = OutputCheck(outputs, on_architecture(permit.kernel.numerics_of(permit.config), executor.arch))

    def check(written: Mapping[str, Array]) -> str:
        return judged(packing.unpack(written))

    results = itemgetter(*outputs.problem.outputs)
    if eager:
        rotated = _copies(buffers, device, copies)
        call = _as_the_op(TorchLaunch(executor, plan, rotated[0], builds), results)
        calls = [partial(call, **tensors) for tensors in rotated]
        return _Rotation(calls, outputs, check).subject(permit.name, floor)
    shared = {
        buffer.name: torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=device)
        for buffer in plan.buffers
        if buffer.role != "in"
    }
    launches = []
    for tensors in _copies(buffers, device, copies):
        prepared = executor.prepare(plan, {**shared, **tensors}, builds=builds)
        launches.append(partial(_launched, prepared, results(shared)))
    return _Rotation(launches, outputs, check).subject(permit.name, floor)


def empty_subject(executor: GpuExecutor) -> Subject:
    """An empty kernel of one warp, launched like the lab's kernels."""
    module = Module("empty.cu", 'extern "C" __global__ void empty() {}', "empty")
    step = Launch(grid=(1, 1, 1), block=(32, 1, 1), args=(), module=module)
    prepared = executor.prepare(LaunchPlan((), (step,)), {})
    return Subject(EMPTY, partial(_launched, prepared, None), check=str, overwrite_output=_nothing)


def failing_subject(name: str, error: Exception) -> Subject:
    """A subject whose creation failed: its first call raises ``error``."""

    def call() -> None:
        raise error

    return Subject(name, call, check=str, overwrite_output=_nothing)


def precision_of(numerics: Numerics) -> str:
    """The fastest declared arithmetic of a kernel, ``fp16`` or ``fp8``, which selects its floor."""
    narrow = numerics.quantised is not None or numerics.probabilities.startswith("float8")
    return "fp8" if narrow else "fp16"


def _launched(prepared: Any, out: Any) -> Any:
    """Launch on the current stream: a graph captures on its own stream."""
    prepared.launch(torch_gpu.stream())
    return out


def _as_the_op(launch: TorchLaunch, results: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[..., Any]:
    """A call on the path of the function with torch's signature, from its checks to its launch; with further buffers,
    the launch alone.

    It raises RuntimeError if that function falls back to torch.
    """
    from sdpalab.torch_inputs import check_together, why_not_tensors

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **further: torch.Tensor) -> Any:
        if further:
            return results(launch(q=q, k=k, v=v, **further))
        grouped = q.shape[1] != k.shape[1]
        check_together(q, k, v, grouped)
        reason = why_not_tensors(q, k, v, None, 0.0, grouped)
        if reason is not None:
            raise RuntimeError(f"sdpalab.scaled_dot_product_attention falls back to torch: {reason}")
        return results(launch(q=q, k=k, v=v))

    return call


def _copies(arrays: Mapping[str, Array], device: torch.device, copies: int) -> list[dict[str, torch.Tensor]]:
    """Copies of arrays on the device, by name."""
    tensors = buffer_tensors(arrays)
    return [{name: each.to(device, copy=True) for name, each in tensors.items()} for _ in range(copies)]


def _nothing() -> None:
    """No-op: there is no output to overwrite."""
