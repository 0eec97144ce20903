"""Simulator counts for the figures of a measured profile: the same launches, counted instead of run."""

from __future__ import annotations

from collections.abc import Mapping

from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.model.counted import count
from sdpalab.problem import Problem
from warpsan.profile import Counters

__all__ = ["simulated_counts"]


def simulated_counts(
    kernel: Kernel, problem: Problem, config: Config, arch: str, *, sms: int | None = None
) -> tuple[tuple[str, Mapping[str, float]], ...]:
    """Entry and counts of each launch of the plan, by :attr:`sdpalab.profile.metrics.Metric.counter`.

    The simulator counts PTX instructions, a GPU executes SASS instructions; their ratio is a figure of its own.

    Raises
    ------
    UserError, MachineError
        As :func:`sdpalab.model.counted.count`.
    """
    launches = count(kernel, problem, arch, config, sms=sms).launches
    return tuple((launch.build.entry, _counts(launch.counters)) for launch in launches)


def _counts(counters: Counters) -> Mapping[str, float]:
    return {
        "warp_instructions": counters.total("warps"),
        "wavefronts": counters.total("wavefronts"),
        "conflicts": counters.total("wavefronts") - counters.total("ideal_wavefronts"),
        "read_bytes": counters.compulsory_read_bytes,
        "write_bytes": counters.compulsory_write_bytes,
        "local": counters.total("warps", "local"),
    }
