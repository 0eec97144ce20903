"""Fixtures of the judge's tests: the two ways in which a machine lets a candidate be confined."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from sdpalab.judge.sandbox import guarded

UNCONFINED = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("guard", {guard!r})
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
guard._enter_namespaces = lambda: ("", "Operation not permitted")
guard.main(json.loads(sys.argv[1]))
"""


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip, visibly, where a process cannot have namespaces of its own."""
    with contextlib.suppress(OSError):
        if subprocess.run(["unshare", "-Urmp", "true"], capture_output=True).returncode == 0:
            return
    pytest.skip("this machine's kernel refuses namespaces: a candidate is confined less here (docs/isolation.md)")


@pytest.fixture
def unconfined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose kernel refuses namespaces, and no fork server, which would have the guard that is replaced."""
    script = tmp_path / "guard.py"
    script.write_text(UNCONFINED.format(guard=str(guarded._GUARD)))
    monkeypatch.setattr(guarded, "_GUARD", script)
    monkeypatch.setattr(guarded, "_server", None)
