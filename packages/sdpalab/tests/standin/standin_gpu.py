"""A GPU for processes that a test starts: the stand-in driver, compiled, in a folder with its settings and its log."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from standin_faults import read_log

__all__ = ["StandIn", "compile_library", "complaints", "prepended"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
COMPILERS = ("cc", "gcc", "clang")


def compile_library(folder: Path) -> str:
    """Compile ``libcuda.so.1`` into ``folder``; why there is none, in one sentence, or nothing."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return f"the stand-in driver needs a C compiler, and there is none of {', '.join(COMPILERS)}"
    if sys.platform != "linux":
        return "the stand-in driver is a Linux library"
    options = ["-O1", "-shared", "-fPIC", f'-DSTANDIN_PYTHON="{HERE}"', "-o", str(folder / "libcuda.so.1")]
    command = [compiler, *options, str(HERE / "libcuda.c"), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ""


def complaints(stderr: str) -> list[str]:
    """The lines that a command wrote to stderr, without those by which a slow one shows that it goes on."""
    return [line for line in stderr.splitlines() if not line.startswith("judging ")]


def prepended(name: str, *folders: Path) -> str:
    """An environment variable that holds a path, with folders before what it has."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(name)])])


class StandIn:
    """One GPU, in a folder that ``library`` is copied to.

    Parameters
    ----------
    library : Path
    folder : Path
        Empty.
    **settings
        Of :mod:`standin_driver`.
    """

    def __init__(self, library: Path, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self._log = folder / "calls.jsonl"
        shutil.copy(library, folder / "libcuda.so.1")
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        """Settings of processes that start from now on, in place of those before."""
        text = json.dumps({"log": str(self._log), **settings})
        (self.folder / "standin.json").write_text(text)

    def fail(self, *faults: Mapping[str, Any], **settings: Any) -> None:
        """Have these faults (:class:`standin_faults.Fault`) in processes that start from now on."""
        self.configure(faults=[dict(fault) for fault in faults], **settings)

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a process that has this GPU, on torch too."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": prepended("LD_LIBRARY_PATH", self.folder),
            "PYTHONPATH": prepended(
                "PYTHONPATH", HERE, *(ROOT / "packages" / each / "src" for each in ("sdpalab", "warpsan"))
            ),
            "NO_COLOR": "1",
            **more,
        }

    def run(self, code: str, *, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in a process that has this GPU."""
        return self.process(sys.executable, "-c", code, timeout=timeout, **env)

    def cli(self, *arguments: str | Path, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``sdpalab ARGUMENTS`` in a process that has this GPU."""
        return self.process(sys.executable, "-m", "sdpalab", *map(str, arguments), timeout=timeout, **env)

    def process(self, *command: str, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a process that has this GPU."""
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.env(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *arguments: str | Path, **env: str) -> subprocess.Popen[str]:
        """``sdpalab ARGUMENTS``, going on in a session of its own. An interrupt ends it even if the tests are a shell's
        background job, which ignores interrupts with all that it starts."""
        command = [sys.executable, "-m", "sdpalab", *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            return subprocess.Popen(command, cwd=ROOT, env=self.env(**env), text=True, start_new_session=True, **pipes)
        finally:
            signal.signal(signal.SIGINT, before)

    def log(self) -> list[dict[str, Any]]:
        """Actions of all processes on this GPU, in order."""
        return read_log(self._log)

    def clear_log(self) -> None:
        """Forget that."""
        self._log.unlink(missing_ok=True)

    def calls(self, name: str = "") -> list[dict[str, Any]]:
        """The calls of that function, or all."""
        return [entry for entry in self.log() if "call" in entry and name in ("", entry["call"])]

    def launches(self, name: str = "") -> list[dict[str, Any]]:
        """The launches of that entry, or all."""
        return [entry for entry in self.log() if "launch" in entry and name in ("", entry["launch"])]
