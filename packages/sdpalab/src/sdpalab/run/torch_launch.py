"""A launch plan called on torch tensors, as the torch functions of the lab call it: allocate, place, launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sdpalab.compile import Build
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.run import torch_gpu
from sdpalab.run.gpu import GpuExecutor
from sdpalab.run.semaphores import SemaphorePool

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TorchLaunch"]


class TorchLaunch:
    """A plan that is prepared on one GPU, by and for one thread: a call takes its addresses from one place in memory.

    All that does not depend on the call is prepared here; a call allocates, writes addresses, and launches the plan's
    kernels and no other: semaphores hold zeros already (:mod:`sdpalab.run.semaphores`).

    Parameters
    ----------
    executor : GpuExecutor
        On the GPU of the tensors.
    plan : LaunchPlan
    q, k, v : Tensor
        As :meth:`__call__` takes them. Their values are not read.
    builds : sequence of Build, optional
        One for each launch. Default: they are built.
    further : mapping of str to Tensor, optional
        The other inputs of the plan, as :meth:`__call__` takes them.

    Raises
    ------
    UserError, MachineError
        As :meth:`sdpalab.run.gpu.GpuExecutor.prepare`.
    """

    def __init__(
        self,
        executor: GpuExecutor,
        plan: LaunchPlan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        builds: Sequence[Build] | None = None,
        further: Mapping[str, Tensor] | None = None,
    ) -> None:
        import torch

        self._device, self._ordinal = q.device, executor.gpu.ordinal
        self._allocations = [
            (buffer.name, buffer.role, buffer.shape, getattr(torch, buffer.dtype))
            for buffer in plan.buffers
            if buffer.role != "in"
        ]
        self._outputs = [buffer.name for buffer in plan.buffers if buffer.role == "out"]
        self._semaphores = SemaphorePool(executor.gpu, plan.buffers)
        released = self._semaphores.take(torch_gpu.stream(self._ordinal)) if self._semaphores else {}
        buffers = {"q": q, "k": k, "v": v, **(further or {}), **self._allocated(released), **(released or {})}
        self._prepared = executor.prepare(plan, buffers, builds=builds)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **further: Tensor) -> dict[str, Tensor]:
        """Launch on torch's current stream of the GPU, and return the outputs by name; does not wait for them.

        Parameters
        ----------
        q, k, v : Tensor
            Contiguous, of the plan's shapes and dtype, on the GPU, each at a multiple of 16 bytes. Not checked.
        **further : Tensor
            Likewise, the other inputs of the plan (:attr:`sdpalab.problem.Problem.array_shapes`) by their names.
        """
        stream = torch_gpu.stream(self._ordinal)
        released = self._semaphores.take(stream) if self._semaphores else {}
        allocated = self._allocated(released)
        addresses = {name: torch_gpu.address(tensor) for name, tensor in (("q", q), ("k", k), ("v", v))}
        for name, tensor in (*further.items(), *allocated.items()):
            addresses[name] = torch_gpu.address(tensor)
        self._prepared.place({**addresses, **released} if released else addresses)
        try:
            self._prepared.launch(stream)
        except BaseException:
            self._semaphores.discard(stream)
            raise
        return {name: allocated[name] for name in self._outputs}

    def _allocated(self, released: Mapping[str, int] | None) -> dict[str, Tensor]:
        """Outputs and workspace of one call alone, because calls may overlap on several streams.

        So are semaphores where the pool has none (``released`` is None): zeros, which the captured graph fills in.
        """
        import torch

        return {
            name: (torch.zeros if role == "semaphore" else torch.empty)(shape, dtype=dtype, device=self._device)
            for name, role, shape, dtype in self._allocations
            if role != "semaphore" or released is None
        }
