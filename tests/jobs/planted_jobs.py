"""Jobs that crash, hang and say in which process they ran: kinds ``planted_jobs:NAME``, for tests of executors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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


def process(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The worker's number."""
    return {"process": os.getpid()}
