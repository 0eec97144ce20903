"""Selection and launch of a certified kernel for torch tensors on a GPU; shared by the torch functions of the lab."""

from __future__ import annotations

import threading
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch

from sdpalab.errors import MachineError, UserError
from sdpalab.problem import Problem, ProblemError
from sdpalab.run import torch_gpu
from sdpalab.run.torch_launch import TorchLaunch

if TYPE_CHECKING:
    from sdpalab.evidence.store.certificate import CertifiedKernel
    from sdpalab.evidence.store.choice import GpuPlatform
    from sdpalab.run import GpuExecutor

__all__ = ["certified", "certified_on", "copied", "launch", "make_ready", "reload_proofs"]

Tensor = torch.Tensor

_ALIGNMENT = 16
"""Alignment of tensors in bytes; the kernels copy in chunks of this size."""


def certified(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, *, lse: bool = False
) -> tuple[CertifiedKernel | None, str]:
    """The certified kernel that computes this on its GPU, or None; with the reason.

    Parameters
    ----------
    q, k, v : Tensor
        [B, H, Sq, D] and [B, Hkv, Skv, D] on a GPU; :func:`launch` copies tensors that are not contiguous.
    is_causal, scale
        As in torch.
    lse : bool
        Whether the kernel must also write the log-sum-exp.
    """
    if any(given.data_ptr() % _ALIGNMENT and given.is_contiguous() for given in (q, k, v)):
        return None, f"a tensor does not begin at a multiple of {_ALIGNMENT} bytes"
    return _certified_for(q.shape, k.shape, q.dtype, _ordinal(q), is_causal, scale, lse)


@lru_cache(maxsize=4096)
def _certified_for(
    q: torch.Size,
    k: torch.Size,
    dtype: torch.dtype,
    ordinal: int,
    is_causal: bool,
    scale: float | None,
    lse: bool,
) -> tuple[CertifiedKernel | None, str]:
    """:func:`certified` by shapes; cached for all calls until :func:`reload_proofs`."""
    from sdpalab.evidence.store.choice import GpuPlatform
    from sdpalab.run.driver_version import driver_version

    try:
        driver = driver_version()
    except MachineError as error:
        return None, str(error)
    gpu = torch_gpu.properties(ordinal)
    machine = GpuPlatform(gpu.name, driver, torch.__version__, gpu.sm_count)
    return _chosen(machine, q, k, dtype, is_causal, scale, lse)


def _chosen(
    machine: GpuPlatform,
    q: torch.Size,
    k: torch.Size,
    dtype: torch.dtype,
    is_causal: bool,
    scale: float | None,
    lse: bool,
) -> tuple[CertifiedKernel | None, str]:
    from sdpalab.evidence.store.choice import choose

    name = str(dtype).removeprefix("torch.")
    sizes: dict[str, Any] = {"kv_heads": k[1], "seq_kv": k[2]}
    try:
        problem = Problem(*q, **sizes, dtype=name, causal=is_causal, scale=scale)
    except ProblemError as error:
        return None, str(error)
    choice = choose(problem, machine, lse=lse)
    return choice.kernel, choice.reason


def certified_on(
    gpu: str, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None, *, lse: bool = False
) -> tuple[CertifiedKernel | None, str]:
    """:func:`certified` for tensors of these shapes on a GPU, present or not, by that GPU's records.

    Raises
    ------
    UserError
        If the lab has no data on a GPU of that name.
    """
    from sdpalab.evidence.store.choice import platform_of

    return _chosen(platform_of(gpu), q.shape, k.shape, q.dtype, is_causal, scale, lse)


def copied(q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    """Tensors that :func:`launch` copies, and the bytes of each.

    A launch plan's buffers are contiguous: tensor maps, quantisation and all records of verdicts and times apply to
    that layout. One copy, which reads and writes each element once, costs less than products that read a layout without
    a tuned or a certified kernel.
    """
    return {
        name: given.numel() * given.element_size()
        for name, given in (("query", q), ("key", k), ("value", v))
        if not given.is_contiguous()
    }


def reload_proofs() -> None:
    """Reload the records of verdicts and times, for example after ``sdpalab prove``.

    A process reads the records once, at the first call with a shape on a GPU, and caches its choice for each shape.
    Concurrent launches on other threads may still use the old choice.
    """
    from sdpalab.evidence.store.lookup import forget

    forget()
    _certified_for.cache_clear()
    _ready.plans.clear()


def launch(kernel: CertifiedKernel, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Launch the kernel on torch's current stream of the tensors' GPU, and return its outputs; does not wait for it.

    Tensors that are not contiguous are copied first, on the same stream.

    Raises
    ------
    UserError
        As :func:`make_ready`.
    """
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # no copy if already contiguous
    return make_ready(kernel, q, k, v)(q=q, k=k, v=v)


def make_ready(kernel: CertifiedKernel, q: Tensor, k: Tensor, v: Tensor) -> TorchLaunch:
    """The kernel, prepared once per thread: loads its module and synchronises with the GPU.

    Raises
    ------
    UserError
        If torch's current stream is being captured into a CUDA graph, which allows neither operation.
    """
    ordinal = _ordinal(q)
    key = ordinal, id(kernel)
    ready = _ready.plans.get(key)
    if ready is None:
        if torch_gpu.capturing():
            raise UserError(
                f"the first call with these shapes prepares {kernel.certificate.kernel}, which cannot be done while a "
                "CUDA graph is captured: call it once before, on this thread, or sdpalab.prepare(q, k, v, ...)"
            )
        tensors = {"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}
        prepared = TorchLaunch(_executor(ordinal, kernel.certificate.arch), kernel.plan, tensors, kernel.builds)
        ready = _ready.plans[key] = kernel, prepared  # the cached kernel object keeps its id unique
    return ready[1]


class _Local(threading.local):
    """Prepared plans of this thread; a launch reads its addresses from one buffer per plan."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int], tuple[CertifiedKernel, TorchLaunch]] = {}


_ready = _Local()


def _ordinal(tensor: Tensor) -> int:
    ordinal = torch_gpu.ordinal_of(tensor)
    assert ordinal is not None, "the caller checked that the tensors are on a GPU"
    return ordinal


@cache
def _executor(ordinal: int, arch: str) -> GpuExecutor:
    from sdpalab.run import GpuExecutor

    return GpuExecutor(ordinal, arch)
