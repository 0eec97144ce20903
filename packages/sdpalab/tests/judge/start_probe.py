"""A guarded process that says in what state it was started: ``main`` is what the sandbox's modules have."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdpalab.judge.sandbox.wire import serve

LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
STATUS = (
    "Uid",
    "Gid",
    "Groups",
    "Threads",
    "SigBlk",
    "SigIgn",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
)


def main(read_fd: int, write_fd: int) -> None:
    state = _state()
    serve(read_fd, write_fd, lambda order, arrays: (state, {}))


def _state() -> Mapping[str, Any]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {
        "descriptors": sorted(_kind(name) for name in os.listdir("/proc/self/fd")),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "temporary": tempfile.gettempdir(),
        "path": sys.path,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        **{name: status[name].split() for name in STATUS},
        "session": os.getsid(0) == os.getppid(),
        "umask": os.umask(0o22),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "mounts": [[mount[4], mount[5]] for mount in mounts],
        "handlers": {each.name: str(signal.getsignal(each)) for each in signal.Signals},
        "collects": gc.isenabled(),
        "sees": sorted(name for name in os.listdir("/proc") if name.isdigit()) if os.getpid() < 9 else [],
        "isolated": [sys.flags.isolated, sys.flags.utf8_mode, sys.stdout.line_buffering, sys.stdout.write_through],
    }


def _kind(name: str) -> str:
    """Kind of a descriptor; the one that lists the folder is closed by then."""
    try:
        target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return "closed"
    return target.partition(":")[0]
