"""``sdpalab serve`` as a process: it judges as ``evaluate`` does, loses no accepted job, and a hang costs one slot."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sdpalab.judge.sandbox.guarded import fork_server

CUDA = (Path(__file__).parents[1] / "judge" / "cuda_candidates.py").read_text()
TASK = {"batch": 1, "heads": 1, "seq_q": 40, "head_dim": 32, "seq_kv": 70}
EAGER = """
import torch

def attention(q, k, v, *, scale, causal):
    return (torch.softmax((q.float() @ k.float().transpose(-1, -2)) * scale * FACTOR, -1) @ v.float()).to(q.dtype)
"""
HANGS = "import time\n\ndef attention(q, k, v, *, scale, causal):\n    time.sleep(1000)\n"
DIES = "import os\n\ndef attention(q, k, v, *, scale, causal):\n    os.abort()\n"
TALKS = """
import socket

def attention(q, k, v, *, scale, causal):
    socket.create_connection(("127.0.0.1", PORT), 5)
    return q
"""


def submission(source: str | None, **options: Any) -> dict[str, Any]:
    return {"source": source, "task": TASK, "stages": ["compile", "tiny"], **options}


class Server:
    """A running ``sdpalab serve``."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.address + path, data), timeout=120) as answer:
            return json.load(answer)

    def submit(self, *submissions: dict[str, Any]) -> list[str]:
        return [each["id"] for each in self.ask("/jobs", {"submissions": list(submissions)})["jobs"]]

    def done(self, identifier: str, seconds: float = 240.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            job: dict[str, Any] = self.ask(f"/jobs/{identifier}?wait=20")
            if job["state"] == "done":
                return job
        raise AssertionError(f"{identifier} is not done after {seconds:g} s")

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "sdpalab", "serve", "--state", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), line + process.stdout.read()
        confinement = process.stdout.readline()
        assert confinement.startswith("confinement: namespaces"), confinement
        yield Server(process, line.split(": ")[0])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("_in_the_foreground")
def test_the_service_judges_as_evaluate_does_and_loses_no_job(tmp_path: Path) -> None:
    from sdpalab import Problem, evaluate

    listening = socket.create_server(("127.0.0.1", 0))
    with serving(tmp_path / "state", "--workers", "2", "--grace", "0") as server:
        with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), 60) as slow:
            slow.sendall(b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            # One worker hangs; the other one judges the rest.
            (hang,) = server.submit(submission(HANGS, budget_s=20.0))
            wrong, right, dying, talking, cuda, racing = server.submit(
                submission(EAGER.replace("FACTOR", "1.01")),
                submission(EAGER.replace("FACTOR", "1.0")),
                submission(DIES),
                submission(TALKS.replace("PORT", str(listening.getsockname()[1]))),
                submission(CUDA, entry="drops_a_key"),
                submission(None, files={"kernel.py": CUDA}, entry="kernel.py:reads_past_the_end"),
            )
            expected = {
                wrong: ("INCORRECT", "tiny"),
                right: ("PASSED", "tiny"),
                dying: ("CRASHED", "tiny"),
                talking: ("CRASHED", "tiny"),
                cuda: ("INCORRECT", "tiny"),
                racing: ("HAZARD", "tiny"),
            }
            for identifier, (status, stage) in expected.items():
                job = server.done(identifier)
                assert (job["evaluation"]["status"], list(job["evaluation"]["stages"])[-1]) == (status, stage), job
                assert job["confinement"].startswith("namespaces")
                assert 0 < job["cpu_seconds"] < 30
            assert server.ask(f"/jobs/{hang}")["state"] == "running"
            assert "PermissionError" in server.done(talking)["text"]
            listening.settimeout(0.1)
            with pytest.raises(TimeoutError):
                listening.accept()
            job = server.done(hang)
            assert job["evaluation"]["stages"] == {"compile": "PASSED", "tiny": "INTERRUPTED"}
            slow.settimeout(60)
            assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        with fork_server():
            own = evaluate(EAGER.replace("FACTOR", "1.01"), Problem(**TASK), stages=("compile", "tiny")).to_dict()
        stated = server.done(wrong)["evaluation"]
        for name in ("status", "stages", "families", "compiled", "ran", "hazards"):
            assert stated[name] == own[name], name
        # Killed with one job running and two waiting; then stopped in the same state.
        first, *others = server.submit(*(submission(HANGS + f"# {n}", budget_s=12.0) for n in range(4)))
        while server.ask("/health")["running"] < 2:
            time.sleep(0.1)
        server.end(signal.SIGKILL)
    assert list((tmp_path / "state" / "work").glob("*/*")), "the killed server left its folders"
    with serving(tmp_path / "state", "--workers", "1", "--grace", "0") as server:
        assert server.ask("/health")["queued"] + server.ask("/health")["running"] == 4
        while server.ask(f"/jobs/{first}")["state"] != "running":
            time.sleep(0.1)
        assert server.ask(f"/jobs/{first}")["starts"] == 2
        # Equal to a judged one: no worker is needed.
        (again,) = server.submit(submission(EAGER.replace("FACTOR", "1.01")))
        job = server.ask(f"/jobs/{again}")
        assert (job["state"], job["answered_from"], job["evaluation"]) == ("done", wrong, stated)
        assert server.end(signal.SIGTERM) == 0
    assert not list((tmp_path / "state" / "work").glob("*/*"))
    with serving(tmp_path / "state", "--workers", "2") as server:
        assert {server.done(each)["evaluation"]["status"] for each in (first, *others)} == {"INTERRUPTED"}
        assert [server.ask(f"/jobs/{each}")["starts"] for each in (first, others[-1])] == [3, 1]
        text = urllib.request.urlopen(f"{server.address}/metrics").read().decode()
        assert 'sdpalab_judged_total{stage="tiny",status="INTERRUPTED"} 4\n' in text
        server.end(signal.SIGTERM)


def test_an_open_address_needs_tokens(tmp_path: Path, cli: Any) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SDPALAB_TOKENS"}
    ended = cli("serve", "--host", "0.0.0.0", "--port", "0", "--state", tmp_path, env=environment)
    assert ended.returncode == 2
    assert "0.0.0.0 is open to other machines: give --tokens FILE, or set SDPALAB_TOKENS" in ended.stderr
    (tmp_path / "tokens").write_text("short\n")
    ended = cli("serve", "--tokens", tmp_path / "tokens", "--state", tmp_path)
    assert ended.returncode == 2
    assert "a token of 5 characters can be guessed" in ended.stderr
