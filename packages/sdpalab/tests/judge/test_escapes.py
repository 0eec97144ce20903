"""Attempts of confined processes to get out, with the rights of a candidate and of the plan server; started as
a program, as a copy of the fork server, and by bubblewrap."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from refusing import refusing_guard

from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.options import JudgeOptions
from sdpalab.judge.sandbox import confinement, guarded
from sdpalab.judge.sandbox.candidate import prepare
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, fork_server
from sdpalab.judge.sandbox.isolation import CandidateProcesses
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

HERE = Path(__file__).parent
WAYS = ("program", "copy", "bubblewrap")

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="no filter of system calls for this processor"
)


class Confined:
    """A confined process that tries what it is told to."""

    def __init__(self, cache: Path | None, read: tuple[Path, ...] = ()) -> None:
        self._process = GuardedProcess("escapes", Quota(cpu_seconds=120), untrusted=True, write=cache, read=read)
        self._process.await_ready()
        self.confined_by = self._process.confined_by
        assert self._process.confinement == "namespaces"

    def attempt(self, name: str, on: object = "") -> str:
        reply, _ = self._process.exchange({"try": name, "on": str(on)}, {}, 0, time.monotonic() + 60)
        return str(reply["got"])

    def close(self) -> None:
        self._process.close()


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, namespaces: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """How processes are confined here."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setattr(guarded, "_server", None)
        if request.param == "copy":
            stack.enter_context(fork_server(torch=False))
        if request.param == "bubblewrap":
            if shutil.which("bwrap") is None:
                pytest.skip("bubblewrap is not installed (bwrap)")
            patch.setattr(guarded, "_GUARD", refusing_guard(tmp_path_factory.mktemp("guard")))
        yield request.param


@pytest.fixture(scope="module", params=["candidate", "plan server"])
def confined(
    request: pytest.FixtureRequest, way: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Confined, Path | None]]:
    """A process with the rights of each of the two, and its cache."""
    cache = tmp_path_factory.mktemp("cache") if request.param == "plan server" else None
    process = Confined(cache)
    yield process, cache
    process.close()


def test_it_says_how_it_is_confined(way: str, confined: tuple[Confined, Path | None]) -> None:
    by_bubblewrap = confined[0].confined_by == "bubblewrap"
    assert by_bubblewrap == (way == "bubblewrap")


@pytest.mark.parametrize(
    "name",
    [
        *("opens_sockets", "makes_datagram_pairs", "calls_by_another_number", "rings"),
        *("makes_namespaces", "hides_memory", "maps_memory"),
    ],
)
def test_it_gets_nothing(confined: tuple[Confined, Path | None], name: str) -> None:
    assert confined[0].attempt(name) == ""


@pytest.mark.parametrize("folder", ["/tmp", "/run", "/var/tmp", "/dev/shm"])
def test_it_connects_to_no_service_of_the_machine(confined: tuple[Confined, Path | None], folder: str) -> None:
    if not os.access(folder, os.W_OK):
        pytest.skip(f"this user may not make a socket in {folder}")
    path = Path(folder, f"sdpalab-test-{secrets.token_hex(4)}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))  # the test itself can
            assert confined[0].attempt("connects", path) == ""
            assert path.name not in confined[0].attempt("lists", folder)
        finally:
            path.unlink()


def test_it_reads_no_secret(confined: tuple[Confined, Path | None], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    held = [secret, Path.home() / f".sdpalab-test-{secrets.token_hex(4)}", Path("/etc/hostname"), Path("/etc/shadow")]
    with contextlib.suppress(OSError):
        held[1].write_text("secret")
    try:
        assert [str(path) for path in held if confined[0].attempt("reads", path)] == []
    finally:
        held[1].unlink(missing_ok=True)


def test_it_sees_no_other_process(confined: tuple[Confined, Path | None]) -> None:
    process, _ = confined
    assert process.attempt("sees_processes") == ""
    assert process.attempt("traces", os.getpid()) == ""
    assert "GLIBC_TUNABLES" not in process.attempt("reads", f"/proc/{os.getpid()}/environ")


def test_it_writes_to_its_own_folders_alone(confined: tuple[Confined, Path | None], tmp_path: Path) -> None:
    process, cache = confined
    assert process.attempt("works", cache or "") == "works"
    outside = [tmp_path / "made", HERE / "made", Path("/etc/passwd"), Path("/usr/made"), Path("/made")]
    outside += [cache.parent / "made"] if cache else []
    for path in outside:
        process.attempt("writes", path)
    assert [path for path in outside if path.exists() and path.read_bytes() == b"changed"] == []
    if cache:
        assert (cache / "kept").read_text() == "kept"
    assert process.attempt("writes", "/tmp/made") == "wrote /tmp/made"
    assert not Path("/tmp/made").exists()


def test_a_kernel_is_judged_so(way: str, root: Path) -> None:
    spec = CaseSpec("one", Problem(1, 1, 64, 64), "normal", 0)
    (case,) = judge_candidate(str(root / "examples" / "my_kernel.py"), [spec], algebra=False).cases
    assert case.status is Status.PASSED, case.reason
    assert case.run["confinement"] == "namespaces"
    assert (case.run["confined_by"] == "bubblewrap") == (way == "bubblewrap")


@pytest.mark.usefixtures("namespaces")
def test_the_kernel_limits_the_processes_of_an_ordinary_user(tmp_path: Path) -> None:
    """Root is above that limit: its processes are counted."""
    if os.getuid() == 0:
        pytest.skip("root is above RLIMIT_NPROC")
    process = Confined(None, (HERE,))
    try:
        assert process.attempt("forks", 40) == "40"
        assert process.attempt("forks", 2000) == ""
    finally:
        process.close()


@pytest.mark.usefixtures("namespaces")
def test_the_plan_server_of_a_judgement_is_confined_and_writes_to_a_cache_of_its_source_alone(
    root: Path, fresh_cache: Path
) -> None:
    file, problem = root / "examples" / "my_kernel.py", Problem(1, 1, 64, 64)
    processes = CandidateProcesses(prepare(str(file)), (problem,), JudgeOptions(timeout=60.0))
    try:
        process = processes._plan_process
        assert process is not None
        assert process.confinement == "namespaces"
    finally:
        processes.close()
    spec = CaseSpec("one", problem, "normal", 0)
    (case,) = judge_candidate(str(file), [spec], algebra=False).cases
    assert case.status is Status.PASSED, case.reason
    assert not list(fresh_cache.glob("*/SHA256SUMS"))
    assert list(fresh_cache.glob("foreign/*/*/SHA256SUMS"))


SECRETIVE = """
import os, pathlib
def attention(q, k, v, *, scale, causal):
    here = pathlib.Path(__file__)
    raise ValueError(sorted(each.name for each in here.parent.iterdir()))
"""


@pytest.mark.usefixtures("namespaces")
def test_of_a_home_folder_a_kernel_in_it_sees_only_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("kernel.py", "kernel.cu", "secret.txt", ".netrc"):
        (tmp_path / name).write_text(SECRETIVE if name == "kernel.py" else "text")
    (tmp_path / ".ssh").mkdir()
    (case,) = judge_candidate(str(tmp_path / "kernel.py"), [CaseSpec("one", Problem(1, 1, 8, 32))]).cases
    assert "['kernel.cu', 'kernel.py']" in case.reason
    assert confinement.is_shared_folder(tmp_path)
