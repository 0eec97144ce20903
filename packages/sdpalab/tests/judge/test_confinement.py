"""Confinement of a process: which namespaces this kernel gives, with and without the right to user namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpalab.doctor import examine
from sdpalab.judge.sandbox import guard, guarded
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

START = """
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe
process = GuardedProcess("sdpalab.judge.sandbox.candidate_server", Quota(cpu_seconds=60), untrusted=True)
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
    process = GuardedProcess("sdpalab.judge.sandbox.candidate_server", Quota(cpu_seconds=60), untrusted=True)
    try:
        process.await_ready()
        assert process.confinement == "processes"
        words = describe(process.confinement, process.confined_by)
    finally:
        process.close()
    assert "NOT CONFINED: processes without namespaces (Operation not permitted)" in words
    assert "no build is reused" in words


@pytest.mark.usefixtures("unconfined")
def test_a_verdict_says_in_plain_sight_that_nothing_was_confined(cli_here: Runner, root: Path, tmp_path: Path) -> None:
    options = ("--shape", "1,1,16,64", "--only", "seed 0", "--json", tmp_path / "verdict.json", "--bundle", tmp_path)
    done = cli_here("judge", root / "examples" / "my_callable.py", *options)
    assert done.returncode == 0, done.stderr
    before_the_last = done.stdout[: done.stdout.index("PASSED: ")].splitlines()[-1]
    assert before_the_last.startswith("confinement: NOT CONFINED")
    document = json.loads((tmp_path / "verdict.json").read_text())
    assert document["confinement"] == "processes"
    assert "not confined" in Path(document["report"]).read_text()
    with tarfile.open(document["bundle"]) as bundle:
        records = [each for each in bundle.getmembers() if "/records/" in each.name and each.name.endswith(".json")]
        texts = [bundle.extractfile(each).read() for each in records]  # type: ignore[union-attr]
    stated = [json.loads(text).get("verdict", {}).get("confinement") for text in texts]
    assert "processes" in stated


@pytest.mark.parametrize(
    "command",
    [
        ("judge", "--shape", "1,1,16,64"),
        ("build",),
        ("sanitize", "--shape", "1,1,16,64"),
        ("profile", "--device", "sim", "--shape", "1,1,16,64"),
        ("tune", "--shape", "1,1,16,64", "--budget", "1"),
        ("repro",),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.usefixtures("unconfined")
def test_a_command_that_requires_confinement_runs_nothing_without_it(
    cli_here: Runner, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file, ran = tmp_path / "kernel.py", tmp_path / "ran"
    file.write_text(f"open({str(ran)!r}, 'w').close()\ndef f(q, k, v, *, scale, causal):\n    return q\n")
    name, *options = command
    done = cli_here(name, file, *options, "--require-confinement", "--json", tmp_path / "out.json", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    sentences = [line for line in done.stderr.splitlines() if "--require-confinement" in line]
    assert len(sentences) == 1
    assert "this machine does not confine a kernel's processes (Operation not permitted)" in sentences[0]
    assert not ran.exists()
    assert json.loads((tmp_path / "out.json").read_text())["status"] == "MACHINE_FAILED"
    assert guarded.REQUIRED not in os.environ


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
"""


@pytest.mark.parametrize("command", [("sanitize",), ("profile", "--device", "sim")], ids=lambda command: command[0])
@pytest.mark.usefixtures("unconfined")
def test_a_launch_file_is_not_run_either(cli_here: Runner, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "nothing.ptx").write_text(PTX)
    (tmp_path / "nothing.json").write_text('{"entry": "nothing", "grid": [1], "block": [32], "args": []}')
    name, *options = command
    done = cli_here(name, tmp_path / "nothing.ptx", *options, "--require-confinement", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.count("--require-confinement") == 1


@pytest.mark.usefixtures("namespaces")
def test_a_command_that_requires_confinement_runs_with_it(cli_here: Runner, root: Path) -> None:
    options = ("--shape", "1,1,16,64", "--only", "seed 0", "--require-confinement")
    done = cli_here("judge", root / "examples" / "my_callable.py", *options)
    assert done.returncode == 0, done.stderr
    assert "confinement: namespaces (" in done.stdout


def test_other_machines_cannot_be_required_to_confine(cli_here: Runner) -> None:
    done = cli_here("judge", "scalar", "--require-confinement", "--executor", "ray")
    assert done.returncode == 2
    assert "--require-confinement is for processes of this machine" in done.stderr


def test_a_cgroup_has_the_limits_where_one_may_be_made(tmp_path: Path) -> None:
    """In the form of the kernel's files: no machine of the tests lets them make one."""
    own = tmp_path / "user.slice" / "app.scope"
    own.mkdir(parents=True)
    (tmp_path / "membership").write_text("4:memory:/other\n0::/user.slice/app.scope\n")
    granted = own.parent / "cgroup.subtree_control"
    order = {"memory_bytes": 1 << 30, "processes": 64}

    def limits() -> dict[str, str]:
        with guard._cgroup(order, str(tmp_path), str(tmp_path / "membership")) as descriptors:
            assert not descriptors  # of the file to join, which only the kernel makes
            return {each.name: each.read_text() for each in own.parent.glob("sdpalab-*/*")}

    granted.write_text("cpu\n")
    assert limits() == {}
    granted.write_text("cpu memory pids\n")
    expected = {"memory.max": str(1 << 30), "pids.max": "64", "memory.oom.group": "1", "memory.swap.max": "0"}
    assert limits() == expected


@pytest.mark.usefixtures("unconfined")
def test_doctor_has_a_line_for_it() -> None:
    assert guarded._GUARD.name == "guard.py"
    (line,) = [check for check in examine() if check.name == "confinement"]
    assert line.health.value == "warn"
    assert "Operation not permitted" in line.detail


@pytest.mark.usefixtures("unconfined")
def test_sockets_and_other_processes_are_refused_without_namespaces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    process = GuardedProcess("escapes", Quota(cpu_seconds=60), untrusted=True)
    try:
        process.await_ready()
        assert process.confinement == "processes"
        for name in ("opens_sockets", "makes_datagram_pairs", "calls_by_another_number", "rings", "hides_memory"):
            reply, _ = process.exchange({"try": name, "on": ""}, {}, 0, time.monotonic() + 60)
            assert reply["got"] == "", name
        reply, _ = process.exchange({"try": "traces", "on": str(os.getpid())}, {}, 0, time.monotonic() + 60)
        assert reply["got"] == ""
    finally:
        process.close()
