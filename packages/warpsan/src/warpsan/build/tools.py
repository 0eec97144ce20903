"""NVIDIA's binary tools from pip, for cubins."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import cache

from warpsan.errors import MachineError

__all__ = ["run_tool", "tool_path", "tool_version"]


@cache
def tool_path(tool: str) -> str:
    """Path of a tool: in the wheel from pip, on the path, or in CUDA's usual folder.

    Raises
    ------
    MachineError
        If it is not installed; the message names the pip package.
    """
    wheels = importlib.util.find_spec("nvidia")
    roots = wheels.submodule_search_locations if wheels else None
    folders = [os.path.join(root, "cu13", "bin") for root in roots or ()]
    path = shutil.which(tool, path=os.pathsep.join(folders)) if folders else None
    path = path or shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")
    if path is None:
        raise MachineError(f"{tool} is not installed: pip install nvidia-cuda-{tool}")
    return path


@cache
def tool_version(tool: str) -> str:
    """Version of the tool, on one line."""
    return " ".join(_run([tool_path(tool), "--version"]).split())


def run_tool(tool: str, options: tuple[str, ...], cubin: bytes) -> str:
    """Standard output of ``cuobjdump`` or ``nvdisasm`` on a cubin.

    Raises
    ------
    MachineError
        If the tool is not installed (the message names the pip package), the disk is full, or the tool fails.
    """
    path = tool_path(tool)
    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            return _run([path, *options, file.name])
    except OSError as error:
        raise MachineError(f"{tool} could not be run: {error.strerror}") from None


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        message = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise MachineError(f"{os.path.basename(command[0])} failed with {done.returncode}: {message}")
    return done.stdout
