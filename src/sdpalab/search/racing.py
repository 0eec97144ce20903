"""The measured cost: configurations of one kernel timed on the GPU at hand, interleaved in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from sdpalab.judge.sandbox.sandboxed import SandboxedKernel
from sdpalab.kernels.kernel import Config, CudaKernel, Kernel
from sdpalab.kernels.triton_kernel import TritonKernel
from sdpalab.problem import Problem
from sdpalab.search.targets import compile_for

__all__ = ["race"]


def race(
    kernel: Kernel, entrants: Mapping[str, Config], problems: Sequence[Problem], *, seconds: float, seed: int
) -> dict[str, Any]:
    """Time the entrants on each problem by graph replay, outputs checked.

    Parameters
    ----------
    kernel : Kernel
    entrants : mapping of str to Config
        Configurations that were judged, by the names that they have here; all others are compared with the first.
    problems : sequence of Problem
    seconds : float
        Most wall clock for one problem.
    seed : int
        Of the inputs and of the rounds that are checked.

    Returns
    -------
    dict
        ``times_us`` by problem label and entrant: the median; ``outcomes`` likewise: the
        :class:`~sdpalab.measure.comparison.ComparisonOutcome` against the first entrant. An entrant without a time has
        a ``reasons`` instead.

    Raises
    ------
    UserError
        If there is no GPU.
    """
    from sdpalab.measure.benchmark import benchmark, cuda_device
    from sdpalab.measure.stopping import StoppingRule
    from sdpalab.run import GpuExecutor

    device = cuda_device()
    executor = GpuExecutor(device.ordinal)
    compile_for(kernel, executor.arch)
    results: dict[str, Any] = {"times_us": {}, "outcomes": {}, "reasons": {}}
    named = [(_renamed(kernel, name), config) for name, config in entrants.items()]
    first, *others = entrants
    for problem in problems:
        rule = StoppingRule(seconds=seconds)
        session = benchmark(problem, [], named, device, rule=rule, executor=executor, seed=seed)
        times = {each.name: each.summary.median_us for each in session.measurements if each.summary}
        results["times_us"][problem.label] = {name: times[name] for name in entrants if name in times}
        results["outcomes"][problem.label] = {
            name: session.compare(name, first).outcome.value for name in others if name in times and first in times
        }
        results["reasons"] |= {
            each.name: each.reason for each in session.measurements if each.name in entrants and each.reason
        }
    return results


def _renamed(kernel: Kernel, name: str) -> Kernel:
    """The kernel under the name of an entrant: subjects of one measurement have different names."""
    if isinstance(kernel, SandboxedKernel):
        renamed = copy(kernel)
        renamed.name = name
        return renamed
    assert isinstance(kernel, (CudaKernel, TritonKernel)), "there are no other kernels that the lab builds"
    return replace(kernel, name=name)
