"""``on_simulator``: the lab's torch functions run kernels on the simulator, for tensors on a CPU.

Without a GPU it shows that the kernels of both passes compute a model's attention: the plans, the buffers and the
custom ops are those of a GPU, and only the executor differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.store.certificate import Certificate, CertifiedKernel
from sdpalab.judge.tensors import from_torch, to_torch
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.registry import get
from sdpalab.problem import Problem
from sdpalab.run.simulated import SimulatedExecutor
from sdpalab.run.torch_launch import fitted
from sdpalab.torch_api import kernels

__all__ = ["SimulatedKernels", "on_simulator"]

Tensor = torch.Tensor


@dataclass(eq=False)
class SimulatedKernels:
    """Kernels on the simulator.

    Attributes
    ----------
    kernels : tuple of Kernel
        The first that computes a problem runs.
    executor : SimulatedExecutor
    launches : list of (str, Problem)
        The kernel and the problem of each launch.
    """

    kernels: tuple[Kernel, ...]
    executor: SimulatedExecutor
    launches: list[tuple[str, Problem]] = field(default_factory=list)

    _known: dict[tuple[Problem, bool, bool], tuple[CertifiedKernel | None, str]] = field(default_factory=dict)

    def chosen(self, problem: Problem, lse: bool, deterministic: bool) -> tuple[CertifiedKernel | None, str]:
        """The kernel for a problem, as :func:`sdpalab.torch_api.kernels.certified`."""
        key = problem, lse, deterministic
        if key not in self._known:
            self._known[key] = self._chosen(*key)
        return self._known[key]

    def _chosen(self, problem: Problem, lse: bool, deterministic: bool) -> tuple[CertifiedKernel | None, str]:
        reasons = []
        for kernel in self.kernels:
            reason = kernel.why_not(problem)
            if reason is None and lse and not kernel.lse:
                reason = f"kernel {kernel.name} does not write the log-sum-exp"
            if reason is None and deterministic and kernel.numerics_of().unordered:
                reason = f"kernel {kernel.name} adds in any order"
            if reason is None:
                plan = kernel.launch_plan(problem, lse=lse)
                builds = tuple(self.executor.builds_of(plan))
                record = Certificate(
                    *(kernel.name, str(kernel.default_config), self.executor.device, self.executor.arch),
                    *(frozenset(), frozenset({problem}), "the simulator"),
                )
                return CertifiedKernel(record, plan, builds), f"{kernel.name} runs on the {self.executor.device}"
            reasons.append(reason)
        return None, "; ".join(reasons)

    def launch(self, kernel: CertifiedKernel, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the plan, and return its outputs.

        Raises
        ------
        MachineError
            If the simulator reports a hazard, such as a race.
        """
        arrays = {name: _array(each) for name, each in buffers.items()}
        names = {buffer.name for buffer in kernel.plan.buffers}
        inputs = {name: array for name, array in arrays.items() if name in names}
        result = self.executor.run(fitted(kernel.plan, buffers), inputs, builds=kernel.builds)
        self.launches.extend((kernel.certificate.kernel, problem) for problem in kernel.certificate.problems)
        if result.hazards:
            raise MachineError(f"{kernel.certificate.kernel} on the {result.device}: {result.hazards[0]}")
        return {name: to_torch(array) for name, array in result.outputs.items()}


@contextmanager
def on_simulator(*names: str, arch: str = "sm_89", **options: Any) -> Iterator[SimulatedKernels]:
    """Context in which the lab's torch functions run kernels on the simulator, for tensors on a CPU.

    Calls that no kernel computes run torch, and raise UserError within :func:`sdpalab.no_fallback`.

    Parameters
    ----------
    *names : str
        Shipped kernels; those of gradients run where the first of another kind computes the forward pass.
    arch : str
        Architecture to build for.
    **options
        Options of :func:`warpsan.launch`, such as ``checks``.

    Raises
    ------
    UserError
        If there is no such kernel, or a simulation runs already.
    """
    if kernels.simulation() is not None:
        raise UserError("on_simulator is active already")
    simulation = SimulatedKernels(tuple(map(get, names)), SimulatedExecutor(arch, **options))
    kernels.simulate(simulation)
    try:
        yield simulation
    finally:
        kernels.simulate(None)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy() if tensor.dtype == torch.int32 else from_torch(tensor)
