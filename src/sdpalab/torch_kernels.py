"""From torch tensors on a GPU to a proven kernel and its launch: what the torch functions of the lab share."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

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
    from sdpalab.evidence.proven import proven_kernel

    if any(given.data_ptr() % _ALIGNMENT for given in (q, k, v)):
        return None, f"a tensor does not begin at a multiple of {_ALIGNMENT} bytes"
    batch, heads, seq_q, head_dim = q.shape
    dtype = str(q.dtype).removeprefix("torch.")
    sizes = {"kv_heads": k.shape[1], "seq_kv": k.shape[2]}
    try:
        problem = Problem(batch, heads, seq_q, head_dim, **sizes, dtype=dtype, causal=is_causal, scale=scale)
    except ProblemError as error:
        return None, str(error)
    return proven_kernel(problem, torch.cuda.get_device_name(q.device), lse=lse)


def launch(found: ProvenKernel, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Launch the kernel on torch's current stream of the tensors' GPU, and return its outputs; does not wait for it."""
    buffers: dict[str, Any] = {"q": q, "k": k, "v": v}
    for buffer in found.plan.buffers:
        if buffer.name not in buffers:
            make = torch.zeros if buffer.role == "semaphore" else torch.empty
            buffers[buffer.name] = make(buffer.shape, dtype=getattr(torch, buffer.dtype), device=q.device)
    executor = _executor(q.device.index, found.proof.arch)
    prepared = executor.prepare(found.plan, buffers, builds=found.builds)
    prepared.launch(torch.cuda.current_stream(q.device).cuda_stream)
    return {buffer.name: buffers[buffer.name] for buffer in found.plan.buffers if buffer.role == "out"}


@cache
def _executor(ordinal: int, arch: str) -> GpuExecutor:
    from sdpalab.run import GpuExecutor

    return GpuExecutor(ordinal, arch)
