"""Profiling of one run of a launch plan with Nsight Compute; clocks and, by default, caches are left unchanged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sdpalab.errors import MachineError
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.problem import Problem
from sdpalab.profile.metrics import WGMMA_METRICS

__all__ = ["NCU_OPTIONS", "profile_command", "run_ncu"]

NCU_OPTIONS = (
    "--set=full",
    "--clock-control=none",
    "--profile-from-start=off",  # the target sets the range: between cuProfilerStart and cuProfilerStop
    "--target-processes=application-only",
    "--force-overwrite",
)
"""Options of every run; ``--cache-control`` is ``none`` (inputs stay in L2) or ``all`` (each replay begins cold)."""

_METRICS = "--metrics="
_UNKNOWN_METRIC = re.compile(r"\bmetrics?\b", re.IGNORECASE)
"""Pattern of ncu's message for an unknown metric, in all known versions."""

SECONDS = 300.0
_PLACES = "/usr/local/cuda/bin"


def profile_command(
    kernel: str,
    problem: Problem,
    settings: Mapping[str, str],
    report: Path,
    *,
    cold: bool = False,
    arch: str = "",
    include_dirs: Sequence[Path] = (),
) -> list[str]:
    """The command that profiles one run of a kernel's plan into ``report`` (``.ncu-rep``).

    Parameters
    ----------
    kernel : str
        A registry name, or ``FILE.py[:NAME]``.
    problem : Problem
    settings : mapping of str to str
        Knobs that differ from the default configuration.
    report : Path
    cold : bool
        Empty the caches before each of ncu's replays.
    arch : str
        Architecture of the GPU, such as ``sm_90a``; on sm_90 the metrics of wgmma are collected, too.
    include_dirs : sequence of Path
        Folders for ``#include`` besides those of a user's kernel.

    Raises
    ------
    MachineError
        Without ``ncu``.
    """
    folders = [str(folder) for folder in include_dirs]
    order = json.dumps(
        {"kernel": kernel, "problem": problem.to_dict(), "settings": dict(settings), "include_dirs": folders}
    )
    cache = f"--cache-control={'all' if cold else 'none'}"
    target = [sys.executable, "-m", "sdpalab.profile.target", order]
    more = [f"{_METRICS}{','.join(WGMMA_METRICS)}"] if arch.startswith("sm_90") else []
    return [_ncu(), *NCU_OPTIONS, cache, *more, f"--export={report}", *target]


def run_ncu(command: Sequence[str], report: Path) -> str:
    """Profile, and return the raw page of the report as CSV.

    Metrics besides those of the set require an ncu that has them: if ncu fails with them, it runs again without.

    Raises
    ------
    MachineError
        If ncu lacks permission for the counters, fails, or profiles nothing; with ncu's message.
    """
    plain = [word for word in command if not word.startswith(_METRICS)]
    try:
        output = _run(command)
    except MachineError as error:
        if plain == list(command) or not _UNKNOWN_METRIC.search(str(error)):
            raise
        output = _run(plain)
    if not report.is_file():
        raise MachineError(f"ncu wrote no report: {_last(output)}")
    return _run([command[0], "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"])


def _ncu() -> str:
    path = shutil.which("ncu") or shutil.which("ncu", path=_PLACES)
    if path is None:
        raise MachineError(
            "ncu (Nsight Compute) is not installed: it comes with the CUDA toolkit; without it 'sdpalab bench' still "
            "times kernels, and the simulator still counts their instructions"
        )
    return path


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SECONDS,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"ncu did not end within {SECONDS:.0f} s") from None
    except OSError as error:
        raise MachineError(f"ncu cannot be run: {error.strerror}") from None
    output = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in output:
        raise MachineError(
            "ncu may not read the GPU's performance counters (ERR_NVGPUCTRPERM): run as root, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    if done.returncode or "No kernels were profiled" in output:
        raise MachineError(f"ncu failed with exit code {done.returncode}: {_last(output)}")
    return done.stdout


def _environment() -> dict[str, str]:
    """The environment of this process, with the lab on the Python path of the target."""
    path = os.pathsep.join(filter(None, (*IMPORT_FOLDERS, os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": path}


def _last(output: str) -> str:
    """The last error message of ncu, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("==ERROR==")]
    return (errors or lines or ["it said nothing"])[-1]
