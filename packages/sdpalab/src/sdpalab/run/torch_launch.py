"""A launch plan called on torch tensors, for the lab's torch functions: allocate, place, launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sdpalab.compile import Build
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.run import torch_gpu
from sdpalab.run.gpu import GpuExecutor
from sdpalab.run.semaphores import SemaphorePool

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TorchLaunch", "fitted"]

_ROWS = ("q", "k", "v", "do", "o")
"""Inputs whose first axis is one of packed rows, or of pages."""


class TorchLaunch:
    """A plan prepared on one GPU for one thread: all calls share the memory of its addresses.

    Parts that do not depend on the call are prepared here. A call allocates, writes addresses, and launches only the
    plan's kernels: semaphores are already zero (:mod:`sdpalab.run.semaphores`).

    Parameters
    ----------
    executor : GpuExecutor
        Executor of the tensors' GPU.
    plan : LaunchPlan
    inputs : mapping of str to Tensor
        The plan's inputs as for :meth:`__call__`. Their values are not read. Packed rows and pages of a cache may be
        other numbers than the plan's, whose code does not depend on them.
    builds : sequence of Build, optional
        One build for each launch. Default: built here.

    Raises
    ------
    UserError, MachineError
        As :meth:`sdpalab.run.gpu.GpuExecutor.prepare`.
    """

    def __init__(
        self,
        executor: GpuExecutor,
        plan: LaunchPlan,
        inputs: Mapping[str, Tensor],
        builds: Sequence[Build] | None = None,
    ) -> None:
        import torch

        self._device, self._ordinal = next(iter(inputs.values())).device, executor.gpu.ordinal
        self._allocations = [
            (buffer.name, buffer.role, buffer.shape, getattr(torch, buffer.dtype))
            for buffer in plan.buffers
            if buffer.role != "in"
        ]
        self._outputs = [buffer.name for buffer in plan.buffers if buffer.role == "out"]
        self._semaphores = SemaphorePool(executor.gpu, plan.buffers)
        released = self._semaphores.take(torch_gpu.stream(self._ordinal)) if self._semaphores else {}
        plan = fitted(plan, inputs)
        buffers = {**inputs, **self._allocated(released), **(released or {})}
        self._prepared = executor.prepare(plan, buffers, builds=builds)

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Launch on torch's current stream of the GPU, and return the outputs by name, without waiting for them.

        Parameters
        ----------
        **inputs : Tensor
            Contiguous tensors on the GPU by the names of the plan's inputs, with their dtypes, aligned to 16 bytes. Not
            checked.
        """
        stream = torch_gpu.stream(self._ordinal)
        released = self._semaphores.take(stream) if self._semaphores else {}
        allocated = self._allocated(released)
        addresses = {name: torch_gpu.address(tensor) for name, tensor in (*inputs.items(), *allocated.items())}
        self._prepared.place({**addresses, **released} if released else addresses)
        try:
            self._prepared.launch(stream)
        except BaseException:
            self._semaphores.discard(stream)
            raise
        return {name: allocated[name] for name in self._outputs}

    def _allocated(self, released: Mapping[str, int] | None) -> dict[str, Tensor]:
        """Outputs and workspace of one call; not reused, because calls may overlap on several streams.

        Semaphores are also allocated if the pool has none (``released`` is None); the captured graph fills them with
        zeros.
        """
        import torch

        return {
            name: (torch.zeros if role == "semaphore" else torch.empty)(shape, dtype=dtype, device=self._device)
            for name, role, shape, dtype in self._allocations
            if role != "semaphore" or released is None
        }


def fitted(plan: LaunchPlan, inputs: Mapping[str, Tensor]) -> LaunchPlan:
    """The plan with the numbers of packed rows or pages that the inputs of a call have."""
    return replace(
        plan,
        buffers=tuple(
            replace(buffer, shape=(inputs[buffer.name].shape[0], *buffer.shape[1:]))
            if buffer.role == "in" and buffer.name in _ROWS and buffer.name in inputs
            else buffer
            for buffer in plan.buffers
        ),
    )
