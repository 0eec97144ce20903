"""What a process is confined by: which namespaces this kernel gives, with and without the right to user namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from sdpalab.doctor import examine
from sdpalab.judge.sandbox import guarded
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe

START = """
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe
process = GuardedProcess("sdpalab.judge.sandbox.worker", Quota(cpu_seconds=60), untrusted=True)
try:
    process.await_ready()
    print(describe(process.confinement, process.confined_by))
finally:
    process.close()
"""


def started(*prefix: str) -> str:
    """The confinement of a process that a judge starts, which is itself started by a command."""
    path = os.pathsep.join([*filter(None, sys.path)])
    command = [*prefix, sys.executable, "-c", START]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.usefixtures("namespaces")
def test_a_process_says_which_namespaces_it_has() -> None:
    assert started() == "namespaces (user, pid, mount, ipc, net)"


@pytest.mark.usefixtures("namespaces")
def test_root_has_namespaces_where_user_namespaces_are_refused() -> None:
    """Root of a user namespace in which no further ones are allowed is as root in many containers."""
    if shutil.which("unshare") is None:
        pytest.skip("needs the program unshare")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    confinement = started("unshare", "-Ur", "sh", "-c", forbid, "sh")
    assert confinement == "namespaces (pid, mount, ipc, net)"


@pytest.mark.usefixtures("unconfined")
def test_without_namespaces_it_says_why_and_that_builds_are_cold() -> None:
    process = GuardedProcess("sdpalab.judge.sandbox.worker", Quota(cpu_seconds=60), untrusted=True)
    try:
        process.await_ready()
        assert process.confinement == "processes"
        words = describe(process.confinement, process.confined_by)
    finally:
        process.close()
    assert "without namespaces (Operation not permitted)" in words
    assert "no build is reused" in words


@pytest.mark.usefixtures("unconfined")
def test_doctor_has_a_line_for_it() -> None:
    assert guarded._GUARD.name == "guard.py"
    (line,) = [check for check in examine() if check.name == "confinement"]
    assert line.health.value == "warn"
    assert "Operation not permitted" in line.detail
