"""Modelled times on the inputs for timing kernels (:data:`sdpalab.inputs.TIMED_KINDS`), and the worst of them.

A kernel that branches on scores executes different instructions on different inputs. The counts of each kind come from
a run on such inputs, and each kind has an issue schedule of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sdpalab.inputs import TIMED_KINDS
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.model.counted import count
from sdpalab.model.modelled import ModelledTime
from sdpalab.problem import Problem
from warpsan.gpus import Gpu

__all__ = ["TimesByInputs", "times_by_inputs"]


@dataclass(frozen=True)
class TimesByInputs:
    """Microseconds by kind of inputs; None if the counts fit no path although those of normal inputs do."""

    times_us: Mapping[str, float | None]

    @property
    def inputs(self) -> str:
        """The kind of inputs with the longest time."""
        return max(self.times_us, key=lambda kind: self.times_us[kind] or 0.0)

    @property
    def worst_us(self) -> float | None:
        """The longest time; None if a kind has none, since its time may be longer."""
        return None if None in self.times_us.values() else self.times_us[self.inputs]

    @property
    def ratio(self) -> float | None:
        """The longest time over that for normal inputs."""
        worst, normal = self.worst_us, self.times_us[TIMED_KINDS[0]]
        return worst / normal if worst and normal else None

    @property
    def sentence(self) -> str:
        """The worst kind in one sentence."""
        if self.worst_us is None or self.ratio is None:
            missing = ", ".join(kind for kind, us in self.times_us.items() if us is None)
            return f"no worst time: no issue schedule on {missing} inputs"
        return f"worst {self.worst_us:.2f} us, on {self.inputs} inputs ({self.ratio:.2f}x normal)"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "times_us": dict(self.times_us),
            "inputs": self.inputs,
            "worst_us": self.worst_us,
            "ratio": self.ratio,
        }


def times_by_inputs(
    normal: ModelledTime,
    kernel: Kernel,
    problem: Problem,
    gpu: Gpu,
    arch: str,
    config: Config | None = None,
) -> TimesByInputs:
    """The modelled times of a kernel on all kinds of inputs.

    Parameters
    ----------
    normal : ModelledTime
        Time for normal inputs; the others are for the same location of the inputs, L2 or DRAM.
    kernel, problem, config
        As in :func:`sdpalab.model.counted.count`.
    gpu : Gpu
    arch : str
        Architecture of the kernel's build on the GPU.

    Raises
    ------
    UserError, MachineError
        As :func:`sdpalab.model.counted.count`.
    """
    times: dict[str, float | None] = {TIMED_KINDS[0]: float(normal.microseconds)}
    for kind in TIMED_KINDS[1:]:
        counted = count(kernel, problem, arch, config, sms=gpu.sms, kind=kind)
        time = counted.modelled(gpu, cold=normal.cold)
        # A floor by counts is shorter than a schedule, since it omits more.
        lost = any(
            mine.schedule_us is None and its.schedule_us is not None
            for mine, its in zip(time.steps, normal.steps, strict=True)
        )
        times[kind] = None if lost else float(time.microseconds)
    return TimesByInputs(times)
