"""Unmodified Python programs, in a separate process with the simulator as Triton's GPU."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from warpsan.errors import MachineError, UserError
from warpsan.gpus import default_gpu
from warpsan.program.options import RunOptions
from warpsan.program.outcome import ProgramOutcome
from warpsan.report.groups import group
from warpsan.report.source_text import Sources

if TYPE_CHECKING:
    from warpsan.program.kernel_launches import KernelLaunches

__all__ = ["run_python"]

_ARCH = "sm_90"
"""Default architecture."""


def run_python(command: Sequence[str], options: RunOptions) -> ProgramOutcome:
    """Run a Python file as the main program, with its Triton kernels on the simulator.

    Parameters
    ----------
    command : sequence of str
        The file and its arguments.
    options : RunOptions

    Raises
    ------
    UserError
        If the file does not exist, the time limit passes, or ``options`` request a capture of launches.
    MachineError
        If Triton is not installed.
    """
    if not Path(command[0]).is_file():
        raise UserError(f"there is no program {command[0]}")
    if options.capture is not None:
        raise UserError("launches of a Python program cannot be captured: capture takes a program that nvcc has linked")
    if find_spec("triton") is None:
        raise MachineError("Triton is not installed: pip install 'warpsan[triton]'")
    gpu = options.gpu or default_gpu(_ARCH)
    options = replace(options, gpu=gpu, arch=options.arch or gpu.arch, report=_ignore, progress=None)
    with tempfile.TemporaryDirectory(prefix="warpsan-run-") as folder:
        given, outcome = Path(folder, "options"), Path(folder, "outcome")
        given.write_bytes(pickle.dumps(options))
        host = [sys.executable, "-m", "warpsan.program.python_host", str(given), str(outcome), *command]
        try:
            code = subprocess.run(host, timeout=options.seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            raise UserError(f"the program did not end within {options.seconds:g} s") from None
        if not outcome.is_file():
            raise UserError(f"{command[0]} ended with {code} and left no report")
        run: KernelLaunches = pickle.loads(outcome.read_bytes())
    folders = [Path.cwd(), Path(command[0]).parent, *run.folders]
    return ProgramOutcome(
        command=tuple(command),
        gpu=f"{gpu.name} ({options.arch})",
        exit_code=code,
        launches=run.launches,
        operations=run.launches,
        hazards=group(run.hazards, Sources(run.texts, folders)),
        problems=(),
        notes=(),
        captured=(),
        left_out=0,
        fatal=run.fatal,
    )


def _ignore(sentence: str) -> None:
    """Discard a sentence; the options of the other process are plain data."""
