"""Commands of the lab in processes that are copies of one with the lab and torch imported, for the fast suite.

A process that is started as a program imports for 0.5 to 2.5 s of CPU time, which is most of what a command on a small
problem takes. A copy has arguments, folder, environment, standard streams and an exit code of its own, too. The guarded
processes of its sandbox are copies as well, of a fork server that is a copy itself.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpalab.judge.sandbox.fork_server import ForkServer

__all__ = ["can_copy", "run_copy"]

_OF_THE_START = ("PYTHON", "LD_", "CUDA_")
"""Beginnings of variables that work, or may work, while a program starts."""


def can_copy(environment: Mapping[str, str]) -> bool:
    """Whether a copy obeys these variables."""
    return not any(name.startswith(_OF_THE_START) for name in environment)


def run_copy(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run ``sdpalab ARGUMENTS``; as subprocess.run, with the standard input at its end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        streams = tuple(f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, error))
        order = (list(arguments), str(folder), dict(environment), streams)
        process = _context().Process(target=_be_the_command, args=order)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read())
        return subprocess.CompletedProcess(list(arguments), process.exitcode, *texts)


@cache
def _context() -> ForkServerContext:
    from sdpalab.cli import COMMANDS

    context = multiprocessing.get_context("forkserver")
    commands = (f"sdpalab.commands.{name.replace('-', '_')}" for name in COMMANDS)
    context.set_forkserver_preload(
        ["torch", "sdpalab.kernels.registry", "sdpalab.judge.sandbox.plan_server", *commands]
    )
    return context


def _copied_server() -> ForkServer:
    """A fork server that is a copy of this process, as it is now, and ends with it."""
    from sdpalab.judge.sandbox import fork_server

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        try:
            ours.close()
            os.setsid()
            fork_server.main(theirs.detach(), fork_server.TORCH)
        finally:
            os._exit(0)
    theirs.close()
    server = fork_server.ForkServer({}, ())
    server._socket = ours
    return server


def _be_the_command(
    arguments: Sequence[str], folder: str, environment: Mapping[str, str], streams: tuple[str, str]
) -> None:
    for number, path in enumerate((os.devnull, *streams)):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    sys.argv = ["sdpalab", *arguments]
    from sdpalab.cli import main
    from sdpalab.judge.sandbox import guarded

    guarded._server = _copied_server()

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
