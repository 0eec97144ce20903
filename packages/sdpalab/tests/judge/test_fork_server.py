"""Guarded processes that are copies of the fork server: they are confined as those that are programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdpalab.judge.sandbox import guarded
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, fork_server


def state(untrusted: bool) -> dict[str, Any]:
    """In what state a process was started (``start_probe.py``)."""
    process = GuardedProcess("start_probe", Quota(cpu_seconds=60), untrusted=untrusted)
    try:
        process.await_ready()
        process.channel.send({"number": 1}, seconds=60.0)
        said, _ = process.channel.receive(seconds=60.0, max_bytes=0)
        return {**said, "confined": [process.confinement, process.confined_by]}
    finally:
        process.close()


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def on_interrupt(request: pytest.FixtureRequest) -> Iterator[None]:
    """As a shell starts a job: in the background SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("on_interrupt")
def test_a_copy_is_started_in_the_state_of_a_program_and_a_server_that_ended_is_replaced_by_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fork_server():
        # After the server has begun: each copy has its judge's state of now.
        state(untrusted=True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("LANG", "C.UTF-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        for untrusted in (True, False):
            copy = state(untrusted)
            with monkeypatch.context() as patch:
                patch.setattr(guarded, "_server", None)
                program = state(untrusted)
            assert copy == program
            assert copy["descriptors"].count("pipe") == 4  # wire and output
            assert copy["folder"] == str(tmp_path)
        server = guarded._server
        assert server is not None
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        assert state(untrusted=False)["folder"] == os.getcwd()
