"""Pre-flight: what the lab needs from this machine, whether it is there, and what to do where it is not.

Each check does the thing itself where that is cheap: it compiles, disassembles, writes and locks.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from sdpalab.errors import MachineError, UserError

__all__ = ["Check", "Health", "examine"]

TORCH_OF_RECORD = "2.13.0"
NVRTC_OF_RECORD = (13, 0)
LEAST_DISK, LITTLE_DISK = 200 << 20, 2 << 30
"""Bytes: the job writes some tens of MiB; below the first it is not worth starting."""


class Health(str, Enum):
    """What a check found: ``fail`` means that the main job cannot run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of the pre-flight: what was looked at, what was found, and what to do (empty if nothing)."""

    name: str
    health: Health
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "health": self.health.value}


def examine() -> tuple[Check, ...]:
    """All checks, in the order in which the job meets what they look at. None of them raises."""
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        _torch,
        _packages,
        _nvrtc,
        _headers,
        _compile,
        _disassemblers,
        _gpu,
        _cache,
        _disk,
    )
    return tuple(check() for check in checks)


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if sys.version_info < (3, 10):
        return Check("Python", Health.FAIL, found, "install Python 3.10 or newer")
    if platform.system() != "Linux":
        return Check("Python", Health.WARN, found, "the lab is tested on Linux only")
    return Check("Python", Health.OK, found)


def _torch() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch", Health.FAIL, f"does not import: {error}", "pip install torch==2.13.0")
    version = str(torch.__version__)
    release = tuple(int(part) if part.isdigit() else 0 for part in version.split("+")[0].split(".")[:2])
    if release < (2, 6):
        return Check("torch", Health.FAIL, version, "the lab needs torch 2.6 or newer: pip install torch==2.13.0")
    if version.split("+")[0] != TORCH_OF_RECORD:
        return Check(
            "torch", Health.WARN, version, f"another yardstick than the constrained {TORCH_OF_RECORD}; records name it"
        )
    return Check("torch", Health.OK, version)


def _packages() -> Check:
    needed = ("numpy", "ml_dtypes", "cloudpickle", "pydantic", "PyYAML", "filelock", "platformdirs", "jinja2", "matplotlib")
    versions, missing = [], []
    for name in needed:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", Health.FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("packages", Health.OK, ", ".join(versions))


def _nvrtc() -> Check:
    from sdpalab.build import nvrtc_version

    try:
        version = nvrtc_version()
    except MachineError as error:
        return Check("NVRTC", Health.FAIL, str(error), "pip install nvidia-cuda-nvrtc==13.0.88 cuda-bindings==13.0.3")
    found = ".".join(map(str, version))
    if version[:2] != NVRTC_OF_RECORD:
        return Check("NVRTC", Health.WARN, found, "a 580 driver refuses the PTX of a newer NVRTC than 13.0: pin 13.0")
    return Check("NVRTC", Health.OK, found)


def _headers() -> Check:
    from sdpalab.build import cuda_include_dirs

    try:
        folders = cuda_include_dirs()
    except MachineError as error:
        return Check("CUDA headers", Health.FAIL, "not found", str(error))
    return Check("CUDA headers", Health.OK, str(folders[0]))
