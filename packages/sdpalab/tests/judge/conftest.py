"""Fixtures of the judge's tests: the two ways in which a machine lets a candidate be confined."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from refusing import refusing_guard

from sdpalab.judge.sandbox import confinement, guarded


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip, visibly, where a process cannot have namespaces of its own."""
    with contextlib.suppress(OSError):
        if subprocess.run(["unshare", "-Urmp", "true"], capture_output=True).returncode == 0:
            return
    pytest.skip("this machine's kernel refuses namespaces: a candidate is confined less here (docs/isolation.md)")


@pytest.fixture
def unconfined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose kernel refuses namespaces, without bubblewrap, and no fork server, which would have the guard
    that is replaced."""
    monkeypatch.setattr(guarded, "_GUARD", refusing_guard(tmp_path))
    monkeypatch.setattr(guarded, "_server", None)
    monkeypatch.setattr(confinement, "_bubblewrap", lambda: None)
