"""Resources of the process that uses a GPU for the judge; the judge with a GPU is in ``tests/standin``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota

PROBE = """
import os, resource
from sdpalab.judge.sandbox.wire import serve

def main(read_fd, write_fd):
    said = {"address": resource.getrlimit(resource.RLIMIT_AS)[0], "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    serve(read_fd, write_fd, lambda order, arrays: (said, {}))
"""


def test_a_process_that_uses_a_gpu_gets_its_number_and_has_address_space_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "limit_probe.py").write_text(PROBE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    replies = []
    for gpu in (False, True):
        process = GuardedProcess("limit_probe", Quota(cpu_seconds=60), untrusted=False, gpu=gpu)
        try:
            process.await_ready()
            process.channel.send({"number": 1}, seconds=60.0)
            replies.append(process.channel.receive(seconds=60.0, max_bytes=0)[0])
        finally:
            process.close()
    assert [(each["address"], each["gpu"]) for each in replies] == [(16 << 30, ""), (-1, "3")]
