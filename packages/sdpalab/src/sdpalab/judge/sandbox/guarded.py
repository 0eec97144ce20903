"""A guarded process, from the judge's side: starts it with a clean environment, connects the wire, ends it with all its
children."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy.typing as npt
from pydantic import ValidationError

from sdpalab.compile import Cache
from sdpalab.errors import MachineError, UserError
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.judge.sandbox.confinement import bubblewrap_command, call_filter, view_of
from sdpalab.judge.sandbox.fork_server import ForkServer, ServedProcess
from sdpalab.judge.sandbox.guard import PRIVATE, SAME_FOLDER
from sdpalab.judge.sandbox.messages import Message, plain
from sdpalab.judge.sandbox.wire import Channel, WireClosed, WireError, WireTimeout
from warpsan import prepare
from warpsan.folders import NATIVE, SHARED_CACHE

__all__ = [
    "REQUIRED",
    "START_SECONDS",
    "Ending",
    "GuardedProcess",
    "Quota",
    "confinement_required",
    "copies_for",
    "describe",
    "fork_server",
    "simulating_process",
    "spent_seconds",
]

Array = npt.NDArray[Any]
M = TypeVar("M", bound=Message)

START_SECONDS = 120.0
"""Seconds for a process to start; tens of seconds on a busy machine."""

TAIL_BYTES = 4096
_END_SECONDS = 10.0
"""Seconds for a guard to end all processes; after that the guard itself is killed."""
_LAST_WORDS_SECONDS = 5.0
"""Seconds for a process to exit after its wire is closed."""

_server: ForkServer | None = None
"""Server of the enclosing :func:`fork_server` block."""

_spent, _spending = 0.0, threading.Lock()
"""CPU seconds of closed processes, and the lock of that sum."""

_GUARD = Path(__file__).with_name("guard.py")

REQUIRED = "SDPALAB_REQUIRE_CONFINEMENT"
"""Environment variable: with 1 an untrusted process without namespaces is an error. Workers inherit it."""

_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"),
    *("WARPSAN_CACHE_DIR", REQUIRED),
)
"""Environment variables that a process inherits; any other variable could inform a candidate."""
_GPU_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Further variables for a process that uses a GPU: the selected GPU."""


_MANY = 16
"""Candidates for which a warm server is worth its start."""
_LIBRARIES = 2 << 30
"""Address space of torch, the compiler and LLVM, most of which has no memory."""


@dataclass(frozen=True)
class Quota:
    """Limits of a process and its children.

    Attributes
    ----------
    cpu_seconds : int
        CPU time of each process.
    memory_bytes : int
        Resident memory of all processes together.
    address_bytes : int
        Address space of each process; 0 for no limit.
    folder_bytes : int
        Size of all files in the private folder (in the weaker confinement: of each file).
    processes : int
        Concurrent processes.
    """

    cpu_seconds: int
    memory_bytes: int = 16 << 30
    address_bytes: int = 16 << 30
    folder_bytes: int = 1 << 30
    processes: int = 64

    def with_memory(self, most: int | None) -> Quota:
        """With this much resident memory, and address space for libraries beside it; None: unchanged."""
        if most is None:
            return self
        return replace(self, memory_bytes=most, address_bytes=most + _LIBRARIES)


@dataclass(frozen=True)
class Ending:
    """End of a process: ``SIGSEGV``, ``exit code 3``, or the limit of its :class:`Quota` that it exceeded."""

    how: str
    over_quota: bool = False

    @property
    def killed(self) -> bool:
        """True if the process got SIGKILL: from the kernel when memory runs out, from a user, or from itself."""
        return self.how == "SIGKILL"

    def __str__(self) -> str:
        return f"the process was ended: {self.how}" if self.over_quota else f"the process ended with {self.how}"


class GuardedProcess:
    """A Python process that runs ``main(read_fd, write_fd)`` of a module, under :mod:`sdpalab.judge.sandbox.guard`.

    Parameters
    ----------
    module : str
        Full name of a module of the lab.
    quota : Quota
    untrusted : bool
        Whether it runs or parses untrusted code, and is confined as far as this machine allows.
    gpu : bool
        Whether it will use a GPU. CUDA reserves more address space than any limit allows.
    read : sequence of Path
        Files and folders visible to a confined process, beside this Python and the lab.
    write : Path, optional
        The only folder that a confined process may write to beside one in memory; created if missing.
    environment : mapping of str to str
        Further environment variables.

    Attributes
    ----------
    channel : Channel
        The wire to the process. Its first message is that it is ready (:meth:`await_ready`).
    confinement : str
        ``namespaces`` or ``processes`` (see the guard); empty before :meth:`await_ready`.
    confined_by : str
        The kinds of namespaces, or the reason for none.

    Raises
    ------
    MachineError
        If it cannot be started.
    """

    def __init__(
        self,
        module: str,
        quota: Quota,
        *,
        untrusted: bool,
        gpu: bool = False,
        read: Sequence[Path] = (),
        write: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._untrusted = untrusted
        self.confinement = self.confined_by = self._last = ""
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | ServedProcess
        self._ended = self._closed = False
        order_in, order_out = os.pipe()
        answer_in, answer_out = os.pipe()
        lifeline_in, self._lifeline = os.pipe()
        self._report, report_out = os.pipe()
        theirs = (order_in, answer_out, lifeline_in, report_out)
        limits = asdict(replace(quota, address_bytes=0) if gpu else quota)
        order = {"module": module, "path": _path(), "untrusted": untrusted, **limits}
        environment = {**_environment(_GPU_ENVIRONMENT if gpu else ()), **environment}
        try:
            if untrusted:
                order |= _confinement(read, write, gpu)
            copy = _server.start(order, theirs, environment) if _server and not gpu else None
            self._process = copy or _start(order, theirs, environment)
        except OSError as error:
            for fd in (*theirs, order_out, answer_in, self._lifeline, self._report):
                os.close(fd)
            raise MachineError(f"a worker process cannot be started: {error.strerror}") from None
        for fd in theirs:
            os.close(fd)
        self.channel = Channel(answer_in, order_out, alive=lambda: self._process.poll() is None)
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def await_ready(self) -> GuardedProcess:
        """Wait until the process serves its wire, and return it.

        Raises
        ------
        MachineError
            If it does not, or if it is not confined although :func:`confinement_required` demands it. It is then ended.
        """
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def _await_ready(self) -> None:
        try:
            self.channel.receive(seconds=START_SECONDS, max_bytes=0)
        except WireError as error:
            raise MachineError(f"the worker process does not start ({error}){self.quote()}") from None
        report = os.read(self._report, 4096).decode(errors="replace")
        first, _, self._last = report.partition("\n")
        self.confinement, _, self.confined_by = first.partition(" ")
        if self._untrusted and self.confinement != "namespaces" and os.environ.get(REQUIRED) == "1":
            raise MachineError(
                f"this machine does not confine a kernel's processes ({self.confined_by}), and --require-confinement "
                "asks for that: nothing of the kernel was run"
            )

    def exchange(
        self, order: Mapping[str, Any], arrays: Mapping[str, Array], room: int, deadline: float
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Send an order and receive its answer, which must carry the order's number.

        Parameters
        ----------
        room : int
            Most bytes of the arrays of the answer.
        deadline : float
            Deadline on the clock of ``time.monotonic``.

        Raises
        ------
        WireError
            If no such answer arrives in time.
        """
        number = secrets.randbits(63)
        self.channel.send({**order, "number": number}, arrays, seconds=deadline - time.monotonic())
        header, results = self.channel.receive(seconds=deadline - time.monotonic(), max_bytes=room)
        if header.get("number") != number:
            raise WireError("message that answers no order")
        return header, results

    def ask(
        self, kind: type[M], order: Mapping[str, Any], arrays: Mapping[str, Array], room: int, deadline: float
    ) -> tuple[M, dict[str, Array]]:
        """:meth:`exchange`, with the header of the answer as a message; raises WireError if it is malformed."""
        header, results = self.exchange(order, arrays, room, deadline)
        try:
            return kind.model_validate(header), results
        except ValidationError as error:
            raise WireError(f"message that is none ({plain(error.errors()[0]['msg'])})") from None

    def no_answer(self, error: WireError, subject: str, seconds: float) -> UserError | MachineError:
        """The exception for an answer that is missing after ``seconds``, or malformed; ``subject`` begins its text."""
        if isinstance(error, WireTimeout):
            return UserError(f"{subject}: no answer within {seconds:g} s{self.quote()}")
        if not isinstance(error, WireClosed):
            return UserError(f"{subject}: its process answered with a {error}")
        ending = self.ending()
        return (MachineError if ending.killed else UserError)(f"{subject}: {ending}{self.quote()}")

    def ending(self) -> Ending:
        """End of the process, a moment after the wire was found closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_LAST_WORDS_SECONDS)
        if self._process.returncode is None:
            return Ending("its end of the wire closed")
        self._last += os.read(self._report, 4096).decode(errors="replace")
        kind, _, rest = (self._last.splitlines() or [""])[-1].partition(" ")
        if kind == "limit":
            return Ending(rest, over_quota=True)
        if kind == "exit":
            return Ending(f"exit code {rest}")
        if kind != "signal":
            return Ending("SIGKILL")  # its guard was killed, and the process with it
        with contextlib.suppress(ValueError):
            return Ending(signal.Signals(int(rest)).name)
        return Ending(f"signal {rest}")

    def quote(self) -> str:
        """Last lines of the process's output, as the end of a sentence."""
        if self._process.poll() is not None:
            self._reader.join(timeout=1.0)
        text = bytes(self._tail).decode(errors="replace")
        lines = [line for line in map(plain, text.splitlines()) if line][-6:]
        return f"; it last printed: {' | '.join(lines)[-600:]}" if lines else ""

    def forget_output(self) -> None:
        """Drop the output so far from later quotes."""
        self._tail.clear()

    def kill(self) -> None:
        """End the process and its children through the guard; safe from any thread at any time."""
        with self._lock:
            ended, self._ended = self._ended, True
            if not ended:
                os.close(self._lifeline)

    def close(self) -> None:
        """:meth:`kill`, and wait until no process is left."""
        self.kill()
        if self._closed:
            return
        self._closed = True
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        # A process that escaped the weaker confinement may hold the pipe open; the daemon thread keeps the reader then.
        self._reader.join(timeout=1.0)
        self.channel.close()
        os.set_blocking(self._report, False)
        with contextlib.suppress(BlockingIOError):
            self._last += os.read(self._report, 4096).decode(errors="replace")
        os.close(self._report)
        if used := re.search(r"^cpu (\d+\.\d+)$", self._last, re.MULTILINE):
            _spend(float(used[1]))

    def _drain(self) -> None:
        """Read all output, and keep its end."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError), self._process.stdout as stream:
            while chunk := os.read(stream.fileno(), 1 << 16):
                self._tail[:] = (self._tail + chunk)[-TAIL_BYTES:]


def simulating_process(
    module: str, quota: Quota, cache: Path, read: Sequence[Path], *, gpu: bool = False
) -> GuardedProcess:
    """A confined process that compiles and simulates: it reads the build ``cache``, and writes to the compiled parts of
    the simulator in it. If that is not the user's own cache, it also reads the compiled parts there."""
    environment, reads, shared = {"WARPSAN_CACHE_DIR": str(cache)}, [*read, cache], Cache().root
    if cache != shared and not gpu:
        prepare(wait=True)  # which that process cannot store for others
        environment[SHARED_CACHE] = str(shared)
        reads.append(shared / NATIVE)
    write = cache / NATIVE
    return GuardedProcess(module, quota, untrusted=True, gpu=gpu, read=reads, write=write, environment=environment)


def spent_seconds() -> float:
    """CPU seconds of all guarded processes that this process has closed, with their children and guards."""
    return _spent


def _spend(seconds: float) -> None:
    global _spent
    with _spending:
        _spent += seconds


@contextlib.contextmanager
def fork_server(*, torch: bool = True, warm: bool = False) -> Iterator[None]:
    """Context in which guarded processes without a GPU are forks of a process with imported modules
    (:mod:`sdpalab.judge.sandbox.fork_server`).

    ``torch``: whether it also imports torch, for candidates that use it. ``warm``: whether it also compiles and runs
    shipped kernels, for many candidates.
    """
    global _server
    before, server = _server, ForkServer(_environment(()), _path(), torch=torch, warm=warm)
    _server = server
    try:
        yield
    finally:
        _server = before
        server.close()


def copies_for(count: int) -> contextlib.AbstractContextManager[None]:
    """:func:`fork_server` for this many candidates, unless a block of it is open."""
    return contextlib.nullcontext() if _server is not None else fork_server(warm=count >= _MANY)


def describe(confinement: str, confined_by: str) -> str:
    """A process's confinement and its mechanism, in words."""
    if confinement == "namespaces":
        return f"namespaces ({confined_by.replace(',', ', ')})"
    return (
        f"NOT CONFINED: processes without namespaces ({confined_by}), which can read and change files of this user and "
        "escape; no build is reused"
    )


@contextlib.contextmanager
def confinement_required(required: bool) -> Iterator[None]:
    """Context in which, if ``required``, a process without namespaces ends with a MachineError."""
    before = os.environ.get(REQUIRED)
    if required:
        os.environ[REQUIRED] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(REQUIRED, None)
        else:
            os.environ[REQUIRED] = before


def _confinement(read: Sequence[Path], write: Path | None, gpu: bool) -> dict[str, Any]:
    """Settings with which the guard confines a process; raises OSError if the folder cannot be made."""
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
    view = view_of(_path(), read=read, write=() if write is None else (write,), gpu=gpu)
    return {
        "view": view,
        "writes": write is not None,
        "filter": call_filter(gpu=gpu).hex(),
        "bubblewrap": bubblewrap_command(view, PRIVATE, same=SAME_FOLDER),
    }


def _start(
    order: Mapping[str, Any], theirs: tuple[int, int, int, int], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a guard as a program; ``theirs`` are the process's ends of the wire, the lifeline and the report."""
    *fds, lifeline, report = theirs
    text = json.dumps({**order, "fds": fds, "lifeline": lifeline, "report": report})
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD), text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=theirs,
        env=environment,
        start_new_session=True,
    )


def _path() -> list[str]:
    """This process's import path, with the effect of PYTHON* variables; ``-I`` adds nothing to it."""
    return [entry or str(Path.cwd()) for entry in sys.path] + [*IMPORT_FOLDERS]


def _environment(more: tuple[str, ...]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name in (*_ENVIRONMENT, *more)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # glibc reuses small freed blocks without poisoning them, unless its thread cache is disabled.
    return inherited | threads | {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
