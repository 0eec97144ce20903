"""How a program is run."""

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
    """How a program is run.

    Attributes
    ----------
    gpu : Gpu, optional
        The GPU that the program finds. Default: the one that stands for the newest architecture that it has PTX for.
    arch : str
        Its architecture, such as ``sm_90``; empty for the default.
    memory : int
        Bytes of device memory.
    fill : {"poison", "zeros"}
        What memory holds that nobody has written (:class:`warpsan.Device`).
    schedule, async_mode, seed, max_steps
        Of every launch, as for :func:`warpsan.launch`.
    strict : bool
        Also report accesses that leave the buffer of their pointer, and mbarriers for copies without a fence behind
        their initialisation.
    seconds : float, optional
        When the program is ended.
    capture : Path, optional
        The folder in which a launch file is left.
    kernels : tuple of str
        What is captured: kernels with one of these words in their name; empty for all.
    most_launches : int
        Launches that are captured at most.
    report : callable
        Called with a sentence for each call that fails or is not modelled.
    progress : callable, optional
        Called with the label of each launch before it.
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
            "workers": 1,  # they would share the program's memory, which each must have for itself
        }
