"""From torch tensors on a GPU to a proven kernel and its launch: what the torch functions of the lab share."""

from __future__ import annotations

import threading
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch

from sdpalab.problem import Problem, ProblemError
from sdpalab.run import torch_gpu
from sdpalab.run.torch_launch import TorchLaunch

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
    return _proven_for(q.shape, k.shape, q.dtype, _ordinal(q), is_causal, scale, lse)


@lru_cache(maxsize=4096)
def _proven_for(
    q: torch.Size,
    k: torch.Size,
    dtype: torch.dtype,
    ordinal: int,
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
    gpu = torch_gpu.properties(ordinal)
    return proven_kernel(problem, gpu.name, lse=lse, sms=gpu.sm_count)


def launch(found: ProvenKernel, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Launch the kernel on torch's current stream of the tensors' GPU, and return its outputs; does not wait for it.

    It is prepared once for each thread (:class:`~sdpalab.run.torch_launch.TorchLaunch`).
    """
    ordinal = _ordinal(q)
    key = ordinal, id(found)
    ready = _ready.plans.get(key)
    if ready is None:
        made = TorchLaunch(_executor(ordinal, found.proof.arch), found.plan, q, k, v, found.builds)
        ready = _ready.plans[key] = found, made  # the first is kept so that its id stays its own
    return ready[1](q, k, v)


class _Local(threading.local):
    """What this thread has ready: a plan that is launched takes its addresses from one place in memory."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int], tuple[ProvenKernel, TorchLaunch]] = {}


_ready = _Local()


def _ordinal(tensor: Tensor) -> int:
    ordinal = torch_gpu.ordinal_of(tensor)
    assert ordinal is not None, "the caller checked that the tensors are on a GPU"
    return ordinal


@cache
def _executor(ordinal: int, arch: str) -> GpuExecutor:
    from sdpalab.run import GpuExecutor

    return GpuExecutor(ordinal, arch)
