"""The fork server: starts guarded processes as forks of a process that has imported the sandbox's modules, optionally
torch.

The import takes half a CPU second, or two with torch. Judging one kernel needs one or two imports, a campaign or a test
suite hundreds. A ``warm`` server also compiles and runs trusted kernels (:mod:`sdpalab.judge.sandbox.warming`): a copy
then has the compiler and the simulator loaded.

In a block of :func:`sdpalab.judge.sandbox.guarded.fork_server` the server forks a copy on request; the copy runs the
same guard (:mod:`sdpalab.judge.sandbox.guard`), which confines it in the same way. Outside such a block each guard is a
separate program.

The server has no state of a judge: it starts like a guarded process, with the same short environment, imports modules,
and receives orders with a module and its limits. It never loads a candidate. A copy keeps only the descriptors of its
own process. Copies share their memory layout and the secret of ``hash()``, unlike processes that are started as
programs.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from sdpalab.judge.sandbox import guard

__all__ = ["TORCH", "WARM", "ForkServer", "ServedProcess", "main"]

_SANDBOX = ("candidate_server", "plan_server", "compiling")
_ON_FIRST_USE = ("warpsan.engine.running", "warpsan.engine.runtime", "platformdirs")
"""Modules that the plan server imports when it first runs a plan on the simulator."""
_PRELOADED = ("sdpalab.kernels.registry", *(f"sdpalab.judge.sandbox.{name}" for name in _SANDBOX), *_ON_FIRST_USE)
_COMPILER = "cuda.bindings.nvrtc"
"""Module that the plan server imports at its first build; it may not be installed."""
TORCH, WARM = 1, 2
"""Numbers of optional modules: torch; compiled and executed kernels."""
_MOST_BYTES = 1 << 17
"""Most bytes of an order: import paths and environment variables."""
_DESCRIPTORS = 6
"""Descriptors sent with an order: both ends of the wire, lifeline, report, output, and one that is closed at the
end."""


class ServedProcess:
    """A guard that the server started, with the interface of ``subprocess.Popen``.

    Attributes
    ----------
    pid : int
    stdout : file
        Output of the guarded process.
    returncode : int or None
        None until the guard has ended, then always 0; the guard's report has the result.
    """

    def __init__(self, pid: int, output: int, running: int) -> None:
        self.pid, self.stdout = pid, os.fdopen(output, "rb", buffering=0)
        self.returncode: int | None = None
        self._running, self._lock = running, threading.Lock()

    def poll(self) -> int | None:
        """Current ``returncode``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the guard has ended; raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        with self._lock:
            if self.returncode is None:
                poller = select.poll()
                poller.register(self._running, select.POLLIN)
                if not poller.poll(None if timeout is None else 1000 * timeout):
                    raise subprocess.TimeoutExpired("a guarded process", timeout or 0.0)
                os.close(self._running)
                self.returncode = 0
            return self.returncode


class ForkServer:
    """Client of the server's process, which starts with the first order and ends with :meth:`close` or with this
    process.

    Parameters
    ----------
    environment : mapping of str to str
    path : sequence of str
        Import path of the server's modules.
    torch : bool
        Whether the server imports torch.
    warm : bool
        Whether it also compiles and runs shipped kernels.
    """

    def __init__(
        self, environment: Mapping[str, str], path: Sequence[str], *, torch: bool = True, warm: bool = False
    ) -> None:
        self._environment, self._path, self._modules = environment, path, (TORCH * torch) | (WARM * warm)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, order: Mapping[str, Any], theirs: Sequence[int], environment: Mapping[str, str]
    ) -> ServedProcess | None:
        """A guarded process; None if the server has ended.

        Parameters
        ----------
        order : mapping
            Order of the guard as for :func:`sdpalab.judge.sandbox.guard.main`, without descriptors.
        theirs : sequence of int
            The process's ends of the wire, the lifeline and the report. They stay open in this process.
        environment : mapping of str to str
        """
        output, output_in = os.pipe()
        running, running_in = os.pipe()
        text = json.dumps({**order, "environment": environment, "folder": os.getcwd()}).encode()
        try:
            with self._lock:
                connection = self._socket = self._socket or self._open()
                socket.send_fds(connection, [text], [*theirs, output_in, running_in])
                reply = connection.recv(64)
        except OSError:
            reply = b""
        finally:
            os.close(output_in)
            os.close(running_in)
        if not reply.isdigit():
            os.close(output)
            os.close(running)
            return None
        return ServedProcess(int(reply), output, running)

    def close(self) -> None:
        """End the server; processes that it started run until their own judge ends them."""
        if self._socket and self._process:
            self._socket.close()
            self._process.wait()

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            arguments = [str(number), str(self._modules), *self._path]
            command = [sys.executable, "-I", "-u", "-c", guard.BOOT, __name__, *arguments]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(number,), env=self._environment, start_new_session=True
            )
        return ours


def main(orders: int, modules: int) -> None:
    """Run the server: fork a copy for each order, until the other side closes the socket or ends.

    ``modules``: sum of the numbers of optional modules.
    """
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a shell's background job ignores it from its start
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects ended children
    for name in ("torch", *_PRELOADED) if modules & TORCH else _PRELOADED:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module(_COMPILER)
    if modules & WARM:
        from sdpalab.judge.sandbox.warming import warm_up

        warm_up()
    gc.collect()
    gc.freeze()  # garbage collection in a copy would write to, and so copy, all pages
    with socket.socket(fileno=orders) as connection:
        while True:
            text, fds, _, _ = socket.recv_fds(connection, _MOST_BYTES, _DESCRIPTORS)
            if not text:
                return
            try:
                pid = os.fork()
            except OSError:
                pid = -1
            if not pid:
                connection.close()
                _guard_a_copy(json.loads(text), fds, on_interrupt)
            for fd in fds:
                os.close(fd)
            with contextlib.suppress(BrokenPipeError):
                connection.send(str(pid).encode())


def _guard_a_copy(order: dict[str, Any], fds: Sequence[int], on_interrupt: Any) -> NoReturn:
    """Set up the session, folder and environment of a forked guard as for a guard that is a program, and run it."""
    try:
        *wire, lifeline, report, output, _ = fds
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, on_interrupt)
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        guard.main({**order, "fds": wire, "lifeline": lifeline, "report": report}, _run_module)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _run_module(order: Mapping[str, Any]) -> NoReturn:
    """Run the guarded process: without the guard's descriptors, and without state that depends on the server's folder,
    environment or path."""
    try:
        stays = [0, 1, 2, *sorted(order["fds"])]
        for low, high in zip(stays, [*stays[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)
        sys.path[:] = order["path"]
        importlib.invalidate_caches()
        tempfile.tempdir = None
        sys.modules["numpy"].random.seed()
        importlib.import_module(order["module"]).main(*order["fds"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
