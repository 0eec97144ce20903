"""Fixtures of the lab's tests: the judge's processes and their confinement."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from sampling import is_full


@pytest.fixture(autouse=True, scope="session")
def _copied_processes(pytestconfig: pytest.Config) -> Iterator[None]:
    """The judge's processes are copies of one process that has imported torch; with --full they are started anew."""
    if is_full(pytestconfig):
        yield
        return
    from sdpalab.judge.sandbox.guarded import fork_server

    with fork_server():
        yield


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip, visibly, where a process cannot have namespaces of its own."""
    with contextlib.suppress(OSError):
        if subprocess.run(["unshare", "-Urmp", "true"], capture_output=True).returncode == 0:
            return
    pytest.skip("this machine's kernel refuses namespaces: a candidate is confined less here (docs/isolation.md)")
