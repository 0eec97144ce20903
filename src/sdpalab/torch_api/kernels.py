"""From torch tensors on a GPU to a proven kernel and its launch: what the torch functions of the lab share."""

from __future__ import annotations

import threading
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch

from sdpalab.problem import Problem, ProblemError

if TYPE_CHECKING:
    from sdpalab.evidence.proven import ProvenKernel
    from sdpalab.run import GpuExecutor

__all__ = ["launch", "proven"]

Tensor = torch.Tensor

_ALIGNMENT = 16
"""Bytes: the kernels copy in chunks of so many, so a tensor must begin at a multiple of it."""


def proven(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, *, lse: bool = False
) -> tuple[ProvenKernel | None, str]:
    """The proven kernel that computes this on its GPU, or None; and why.

    Parameters
    ----------
    q, k, v : Tensor
        Contiguous [B, H, Sq, D] and [B, Hkv, Skv, D] on a GPU.
    is_causal, scale
        As torch has them.
    lse : bool
        Whether it is to write the log-sum-exp too.
    """
    if any(given.data_ptr() % _ALIGNMENT for given in (q, k, v)):
        return None, f"a tensor does not begin at a multiple of {_ALIGNMENT} bytes"
    return _proven_for(q.shape, k.shape, q.dtype, q.device, is_causal, scale, lse)


@lru_cache(maxsize=4096)
def _proven_for(
    q: torch.Size,
    k: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    is_causal: bool,
    scale: float | None,
    lse: bool,
) -> tuple[ProvenKernel | None, str]:
    """The same by shapes: every call asks, and what is committed does not change while a process runs."""
    from sdpalab.evidence.proven import proven_kernel

    name = str(dtype).removeprefix("torch.")
    sizes = {"kv_heads": k[1], "seq_kv": k[2]}
    try:
        problem = Problem(*q, **sizes, dtype=name, causal=is_causal, scale=scale)
    except ProblemError as error:
        return None, str(error)
    return proven_kernel(problem, torch.cuda.get_device_name(device), lse=lse)


def launch(found: ProvenKernel, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Launch the kernel on torch's current stream of the tensors' GPU, and return its outputs; does not wait for it.

    What can be known before is found out once for each thread: a call then allocates, writes addresses, and launches.
    """
    key = q.device.index, id(found)
    ready = _ready.plans.get(key)
    if ready is None:
        ready = _ready.plans[key] = _Ready(found, q, k, v)
    return ready.run(q, k, v)


class _Ready:
    """A plan that is prepared on one GPU, by and for one thread."""

    def __init__(self, found: ProvenKernel, q: Tensor, k: Tensor, v: Tensor) -> None:
        self._found = found  # kept, so that its id stays its own
        self._device = q.device
        self._made = [
            (buffer.name, buffer.shape, getattr(torch, buffer.dtype), buffer.role)
            for buffer in found.plan.buffers
            if buffer.role != "in"
        ]
        tensors = {"q": q, "k": k, "v": v, **self._allocated()}
        executor = _executor(q.device.index, found.proof.arch)
        self._prepared = executor.prepare(found.plan, tensors, builds=found.builds)

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        made = self._allocated()
        addresses = {"q": q.data_ptr(), "k": k.data_ptr(), "v": v.data_ptr()}
        for name, tensor in made.items():
            addresses[name] = tensor.data_ptr()
        self._prepared.place(addresses)
        self._prepared.launch(torch.cuda.current_stream(self._device).cuda_stream)
        return {name: made[name] for name, _, _, role in self._made if role == "out"}

    def _allocated(self) -> dict[str, Tensor]:
        """Outputs and what else the plan needs, of this call alone: its calls may overlap on several streams."""
        return {
            name: (torch.zeros if role == "semaphore" else torch.empty)(shape, dtype=dtype, device=self._device)
            for name, shape, dtype, role in self._made
        }


class _Local(threading.local):
    """What this thread has ready: a plan that is launched takes its addresses from one place in memory."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int], _Ready] = {}


_ready = _Local()


@cache
def _executor(ordinal: int, arch: str) -> GpuExecutor:
    from sdpalab.run import GpuExecutor

    return GpuExecutor(ordinal, arch)
