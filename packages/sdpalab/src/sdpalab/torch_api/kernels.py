"""Selection and launch of a certified kernel for torch tensors on a GPU; shared by the torch functions of the lab."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Protocol

import torch

from sdpalab.errors import MachineError, UserError
from sdpalab.problem import Problem, ProblemError
from sdpalab.run import torch_gpu
from sdpalab.run.torch_launch import TorchLaunch
from sdpalab.torch_api.calls import AttentionCall

if TYPE_CHECKING:
    from sdpalab.evidence.store.certificate import CertifiedKernel
    from sdpalab.run import GpuExecutor

__all__ = ["Simulation", "certified", "certified_on", "launch", "make_ready", "reload_proofs", "simulate", "simulation"]

Tensor = torch.Tensor


def certified(
    call: AttentionCall, *, lse: bool = False, gradients: bool = False, deterministic: bool = False
) -> tuple[CertifiedKernel | None, str]:
    """The certified kernel that computes this on its GPU, or None; with the reason.

    Parameters
    ----------
    call : AttentionCall
        On a GPU; :meth:`AttentionCall.buffers` copies tensors that are not contiguous.
    lse : bool
        Whether the kernel must also write the log-sum-exp.
    gradients : bool
        The kernel of the backward pass.
    deterministic : bool
        Whether its outputs must have equal bits from run to run.
    """
    ordinal = torch_gpu.ordinal_of(call.q)
    if ordinal is None and _simulation is None:
        return None, "the tensors are not on a CUDA GPU"
    if any(type(given) not in (Tensor, torch.nn.Parameter) for given in (call.q, call.k, call.v)):
        return None, "tensor subclasses stay with torch"
    reason = call.why_not()
    if reason is not None:
        return None, reason
    try:
        problem = call.problem("backward" if gradients else "forward")
    except ProblemError as error:
        return None, str(error)
    if ordinal is None:
        assert _simulation is not None, "tensors are on a GPU or on the simulator"
        return _simulation.chosen(problem, lse, deterministic)
    return _certified_for(problem, ordinal, lse, deterministic)


@lru_cache(maxsize=4096)
def _certified_for(
    problem: Problem, ordinal: int, lse: bool, deterministic: bool
) -> tuple[CertifiedKernel | None, str]:
    """:func:`certified` by problem; cached for all calls until :func:`reload_proofs`."""
    from sdpalab.evidence.store.choice import GpuPlatform, choose
    from sdpalab.run.driver_version import driver_version

    try:
        driver = driver_version()
    except MachineError as error:
        return None, str(error)
    gpu = torch_gpu.properties(ordinal)
    machine = GpuPlatform(gpu.name, driver, torch.__version__, gpu.sm_count)
    choice = choose(problem, machine, lse=lse, deterministic=deterministic)
    return choice.kernel, choice.reason


def certified_on(
    gpu: str, call: AttentionCall, *, lse: bool = False, gradients: bool = False, deterministic: bool = False
) -> tuple[CertifiedKernel | None, str]:
    """:func:`certified` for tensors of these shapes on a GPU, present or not, by that GPU's records.

    Raises
    ------
    UserError
        If the lab has no data on a GPU of that name.
    """
    from sdpalab.evidence.store.choice import choose, platform_of

    machine = platform_of(gpu)
    try:
        problem = call.problem("backward" if gradients else "forward")
    except ProblemError as error:
        return None, str(error)
    choice = choose(problem, machine, lse=lse, deterministic=deterministic)
    return choice.kernel, choice.reason


def reload_proofs() -> None:
    """Reload the records of verdicts and times, for example after ``sdpalab prove``.

    A process reads the records once, at the first call with a shape on a GPU, and caches its choice for each shape.
    Concurrent launches on other threads may still use the old choice. A training step must not have it between its
    forward and its backward pass, which choose separately.
    """
    from sdpalab.evidence.store.lookup import forget

    forget()
    _certified_for.cache_clear()
    _ready.plans.clear()


def launch(kernel: CertifiedKernel, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Launch the kernel on torch's current stream of the tensors' GPU, and return its outputs; does not wait for it.

    Parameters
    ----------
    kernel : CertifiedKernel
    buffers : mapping of str to Tensor
        :meth:`AttentionCall.buffers`.

    Raises
    ------
    UserError
        As :func:`make_ready`.
    """
    if torch_gpu.ordinal_of(buffers["q"]) is None and _simulation is not None:
        return _simulation.launch(kernel, buffers)
    return make_ready(kernel, buffers)(**buffers)


def make_ready(kernel: CertifiedKernel, buffers: Mapping[str, Tensor]) -> TorchLaunch:
    """The kernel, prepared once per thread: loads its module and synchronises with the GPU.

    Raises
    ------
    UserError
        If torch's current stream is being captured into a CUDA graph, which allows neither operation.
    """
    ordinal = torch_gpu.ordinal_of(buffers["q"])
    assert ordinal is not None, "the caller checked that the tensors are on a GPU"
    key = ordinal, id(kernel)
    ready = _ready.plans.get(key)
    if ready is None:
        if torch_gpu.capturing():
            raise UserError(
                f"the first call with these shapes prepares {kernel.certificate.kernel}, which cannot be done while a "
                "CUDA graph is captured: call it once before, on this thread, or sdpalab.prepare(q, k, v, ...)"
            )
        prepared = TorchLaunch(_executor(ordinal, kernel.certificate.arch), kernel.plan, buffers, kernel.builds)
        ready = _ready.plans[key] = kernel, prepared  # the cached kernel object keeps its id unique
    return ready[1]


class Simulation(Protocol):
    """Kernels on the simulator (:class:`sdpalab.torch_api.simulating.SimulatedKernels`)."""

    def chosen(self, problem: Problem, lse: bool, deterministic: bool) -> tuple[CertifiedKernel | None, str]:
        """The kernel of a problem, or None; with the reason."""
        ...

    def launch(self, kernel: CertifiedKernel, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """:func:`launch` on the simulator."""
        ...


_simulation: Simulation | None = None
"""Runs kernels for tensors on a CPU (:mod:`sdpalab.torch_api.simulating`)."""


def simulation() -> Simulation | None:
    """The simulation that runs kernels for tensors on a CPU, if there is one."""
    return _simulation


def simulate(given: Simulation | None) -> None:
    """Have a simulation run kernels for tensors on a CPU, or none."""
    global _simulation
    _simulation = given


class _Local(threading.local):
    """Prepared plans of this thread; a launch reads its addresses from one buffer per plan."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int], tuple[CertifiedKernel, TorchLaunch]] = {}


_ready = _Local()


@cache
def _executor(ordinal: int, arch: str) -> GpuExecutor:
    from sdpalab.run import GpuExecutor

    return GpuExecutor(ordinal, arch)
