"""Results of the launches of a Python program: Triton functions, and kernels of extensions of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpsan import Report
from warpsan.program.options import RunOptions
from warpsan.report.groups import SanitizedHazard

__all__ = ["KernelLaunches"]


@dataclass
class KernelLaunches:
    """Results of a program's launches.

    Attributes
    ----------
    options : RunOptions
    launches : int
    hazards : list of SanitizedHazard
    texts : dict
        PTX of each kernel, by its name and ``.ptx``.
    folders : dict
        Folders of the sources, in order.
    fatal : str
        Simulator limit that ended the program; empty otherwise.
    refused : str
        Reason of the last launch that returned an error of CUDA; empty otherwise.
    observe : callable, optional
        Called after each launch with the kernel's name and PTX, the bytes that it changed in each storage (a mask, by
        the storage's address), and the launch's report.
    """

    options: RunOptions
    launches: int = 0
    hazards: list[SanitizedHazard] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    folders: dict[Path, None] = field(default_factory=dict)
    fatal: str = ""
    refused: str = ""
    observe: Callable[[str, str, dict[int, Any], Report], None] | None = None
