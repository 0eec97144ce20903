"""A worker that also runs jobs which crash, hang, answer nonsense and say in which process they ran, for tests of
executors. The lab's own worker runs none of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.jobs import kinds, worker


def crash(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """End the worker by a segmentation fault."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def hang(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Never return; the worker's number goes into the file ``note`` first, if there is one."""
    if "note" in inputs:
        Path(inputs["note"]).write_text(str(os.getpid()))
    while True:
        time.sleep(1.0)


def nonsense(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """No value of the kind that is asked for: a verdict that passed, and text with an escape sequence."""
    return {"verdict": {"passed": True}, "\x1b[31m": ["\x1b[2J"]}


def refuses(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    raise UserError("no such thing \x1b[2J")


def main(read_fd: int, write_fd: int) -> None:
    """The lab's worker with further kinds."""
    planted = {name: f"planted_jobs:{name}" for name in ("crash", "hang", "process", "refuses")}
    kinds.KINDS = {**kinds.KINDS, **planted, "full": "planted_jobs:nonsense"}
    worker.main(read_fd, write_fd)


def process(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The worker's number."""
    return {"process": os.getpid()}
