"""What the simulator counts of the figures that a profile measures: the same launches, counted instead of run."""

from __future__ import annotations

from collections.abc import Mapping

from sdpalab.build import Build, Cache
from sdpalab.inputs import make_inputs
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.sim import Report
from sdpalab.sim.counters import Counters

__all__ = ["counts_of", "simulated_counts"]


def simulated_counts(
    kernel: Kernel, problem: Problem, config: Config, arch: str, *, cache: Cache | None = None
) -> tuple[tuple[str, Mapping[str, float]], ...]:
    """For each launch of the plan its entry and its counts, by :attr:`sdpalab.profile.metrics.Figure.counter`.

    PTX instructions are counted, and a GPU executes SASS: one is not the other, and their ratio is a figure of its own.

    Raises
    ------
    UserError, MachineError, sdpalab.sim.SimError
        As :meth:`sdpalab.run.SimulatedExecutor.run`.
    """
    found: list[tuple[str, Mapping[str, float]]] = []

    def launched(build: Build, report: Report) -> None:
        assert report.counters is not None
        found.append((build.entry, counts_of(report.counters)))

    inputs = make_inputs(problem)
    executor = SimulatedExecutor(arch, cache, checks=(), counters=True, on_launch=launched)
    executor.run(kernel.launch_plan(problem, config), {"q": inputs.q, "k": inputs.k, "v": inputs.v})
    return tuple(found)


def counts_of(counters: Counters) -> Mapping[str, float]:
    """The counts of one launch."""
    return {
        "warp_instructions": counters.total("warps"),
        "wavefronts": counters.total("wavefronts"),
        "conflicts": counters.total("wavefronts") - counters.total("ideal_wavefronts"),
        "read_bytes": counters.compulsory_read_bytes,
        "write_bytes": counters.compulsory_write_bytes,
        "local": counters.total("warps", "local"),
    }
