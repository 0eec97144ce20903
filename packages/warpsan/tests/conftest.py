"""Common setup of warpsan's tests: the helper modules beside them, and the command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(Path(__file__).resolve().parent))

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def warpsan_cli() -> Runner:
    """Run ``warpsan ARGUMENTS`` in a new process; ``cwd``, ``env`` and ``timeout`` as in subprocess.run."""

    def run(
        *arguments: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(ROOT / "packages/warpsan/src"), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-m", "warpsan", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    return run
