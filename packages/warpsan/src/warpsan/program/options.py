"""Options of a program's run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpsan import thorough_checks
from warpsan.gpus import Gpu

__all__ = ["RunOptions"]


@dataclass(frozen=True)
class RunOptions:
    """Options of a program's run.

    Attributes
    ----------
    gpu : Gpu, optional
        The GPU that the program sees. Default: the GPU of the newest architecture in the program's PTX.
    arch : str
        Architecture of the GPU, such as ``sm_90``; empty for the default.
    memory : int
        Size of device memory in bytes.
    fill : {"poison", "zeros"}
        Content of unwritten memory (:class:`warpsan.Device`).
    schedule, async_mode, seed, max_steps
        Options of every launch, as for :func:`warpsan.launch`.
    strict : bool
        Also report accesses that leave the buffer of their pointer, and mbarriers for copies without a fence after
        initialization.
    seconds : float, optional
        Time limit.
    capture : Path, optional
        Folder for a launch file of the run.
    kernels : tuple of str
        Captured kernels: names that contain one of these words; empty for all.
    most_launches : int
        Maximum number of captured launches.
    report : callable
        Called with a sentence for each call that fails or has no model.
    progress : callable, optional
        Called with the label of each launch before it starts.
    """

    gpu: Gpu | None = None
    arch: str = ""
    memory: int = 16 * 2**30
    fill: str = "poison"
    schedule: str = "lockstep"
    async_mode: str = "late"
    seed: int = 0
    max_steps: int | None = None
    strict: bool = False
    seconds: float | None = None
    capture: Path | None = None
    kernels: tuple[str, ...] = ()
    most_launches: int = 100
    report: Callable[[str], None] = field(default=lambda sentence: None, compare=False)
    progress: Callable[[str], None] | None = field(default=None, compare=False)

    @property
    def of_launch(self) -> dict[str, Any]:
        """The options of a launch."""
        return {
            "schedule": self.schedule,
            "async_mode": self.async_mode,
            "seed": self.seed,
            "max_steps": self.max_steps,
            "checks": thorough_checks(strict=self.strict),
            "workers": 1,  # parallel workers would share the program's memory
        }
