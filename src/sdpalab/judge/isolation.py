"""A worker process, seen from the judge: started clean, given a candidate, and ended whatever it does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from pydantic import ValidationError

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.candidate import Shipment
from sdpalab.judge.messages import About, Reply
from sdpalab.judge.verdict import Status
from sdpalab.judge.wire import Channel, WireClosed, WireError, WireTimeout
from sdpalab.problem import Problem

__all__ = ["CandidateDied", "Worker"]

Array = npt.NDArray[Any]

START_SECONDS = 120.0
"""For a worker to start and to load its candidate: importing torch on a busy machine takes tens of seconds."""

MEMORY_BYTES = 16 << 30
"""Address space of a worker."""

TAIL_BYTES = 4096

_BOOT = "import sys; sys.path[:] = sys.argv[3:]; from sdpalab.judge.worker import main; main(*map(int, sys.argv[1:3]))"

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME")
"""What a worker inherits, beside ``SDPALAB_CACHE_DIR``; everything else might tell a candidate something."""


class CandidateDied(Exception):
    """The worker is gone or had to be ended: CRASHED, TIMED_OUT, and why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Worker:
    """One process that holds one candidate, until :meth:`close` ends it and its process group.

    Parameters
    ----------
    shipment : Shipment
        The candidate.
    problems : sequence of Problem
        What it will be asked, so that it can say at once which of them it does not support.
    arch : str
        What the simulator is to be, for a CUDA kernel.
    config : mapping of str to str, optional
        Knobs that differ from the kernel's default.
    timeout : float
        Seconds of wall clock for one case (both runs).

    Attributes
    ----------
    about : dict
        What the candidate says of itself: kind, name, config, device; for a CUDA kernel numerics, min_arch and rejects.

    Raises
    ------
    UserError
        If the candidate does not load, with what it said.
    MachineError
        If the process does not even start.
    """

    def __init__(
        self,
        shipment: Shipment,
        problems: tuple[Problem, ...],
        *,
        arch: str,
        config: Mapping[str, str] | None,
        timeout: float,
    ) -> None:
        self._timeout = timeout
        self._tail = bytearray()
        self._closed = False
        self._process, self._channel = _start()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()
        try:
            self.about = self._load(
                {
                    "kind": shipment.kind,
                    "spec": shipment.spec,
                    "arch": arch,
                    "config": None if config is None else dict(config),
                    "problems": [problem.to_dict() for problem in problems],
                    "memory_bytes": MEMORY_BYTES,
                    "cpu_seconds": int(START_SECONDS + 2 * timeout * max(1, len(problems))),
                },
                shipment.pickle,
            )
        except BaseException:
            self.close()
            raise

    def run(self, problem: Problem, inputs: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
        """Run the candidate twice on ``inputs`` (q, k, v).

        Returns
        -------
        reply, outputs
            As the worker sent them. The reply's status is None or that of a failure; nothing else is to be believed.

        Raises
        ------
        CandidateDied
            If the process ends, hangs beyond the timeout or breaks the protocol. The worker is of no further use.
        """
        self._tail.clear()
        room = 4 * sum(array.nbytes for array in inputs.values()) + (1 << 20)
        try:
            self._channel.send({"problem": problem.to_dict()}, inputs, seconds=self._timeout)
            reply, outputs = self._channel.receive(seconds=self._timeout, max_bytes=room)
            return _checked(Reply, reply), outputs
        except WireTimeout:
            raise CandidateDied(Status.TIMED_OUT, f"no answer within {self._timeout:g} s{self._quote()}") from None
        except WireClosed:
            how = self._ended()
            status = Status.TIMED_OUT if how == "SIGXCPU" else Status.CRASHED
            raise CandidateDied(status, f"the process ended with {how}{self._quote()}") from None
        except WireError as error:
            raise CandidateDied(Status.CRASHED, f"the process answered with a {error}{self._quote()}") from None

    def close(self) -> None:
        """End the process, and whatever it started in its process group."""
        if self._closed:
            return
        self.kill()
        self._closed = True
        self._process.wait()
        # A descendant that left the group may hold the pipe open: the reader is then left to the daemon thread.
        self._reader.join(timeout=1.0)
        self._channel.close()

    def kill(self) -> None:
        """End the process group and nothing else: safe from another thread, whose :meth:`run` then fails."""
        if self._closed:
            return  # its number may be somebody else's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _load(self, order: Mapping[str, Any], pickle: Array) -> dict[str, Any]:
        try:
            self._channel.receive(seconds=START_SECONDS, max_bytes=0)
        except WireError as error:
            raise MachineError(f"the worker process does not start ({error}){self._quote()}") from None
        try:
            self._channel.send(order, {"pickle": pickle}, seconds=START_SECONDS)
            about, _ = self._channel.receive(seconds=START_SECONDS, max_bytes=0)
        except WireTimeout:
            raise UserError(f"the candidate does not load within {START_SECONDS:g} s{self._quote()}") from None
        except WireClosed:
            raise UserError(
                f"the candidate does not load: its process ended with {self._ended()}{self._quote()}"
            ) from None
        if not about.get("ok"):
            kind = MachineError if about.get("machine") else UserError
            raise kind(str(about.get("message", "the candidate does not load")))
        try:
            return _checked(About, about)
        except WireError as error:
            raise UserError(f"the candidate does not load: its process answered with a {error}") from None

    def _drain(self) -> None:
        """Read all that the candidate prints, and keep the end of it."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError), self._process.stdout as stream:
            while chunk := os.read(stream.fileno(), 1 << 16):
                self._tail[:] = (self._tail + chunk)[-TAIL_BYTES:]

    def _ended(self) -> str:
        """How the process ended: ``SIGSEGV``, ``exit code 3``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        code = self._process.returncode
        if code is None:
            return "its end of the wire closed"
        if code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def _quote(self) -> str:
        """The last lines that the candidate printed, as the end of a sentence."""
        if self._process.poll() is not None:
            self._reader.join(timeout=1.0)
        text = bytes(self._tail).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()][-6:]
        return f"; it last printed: {' | '.join(lines)[-600:]}" if lines else ""


def _checked(kind: type[About] | type[Reply], header: Mapping[str, Any]) -> dict[str, Any]:
    """What ``kind`` allows of ``header``; a WireError if that is not what it is."""
    try:
        return kind.model_validate(header).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise WireError(f"message that is none ({error.errors()[0]['msg']})") from None


def _start() -> tuple[subprocess.Popen[bytes], Channel]:
    """A fresh process that waits for its first message, and the wire to it."""
    to_worker, from_worker = os.pipe(), os.pipe()
    environment = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT}
    if "SDPALAB_CACHE_DIR" in os.environ:
        environment["SDPALAB_CACHE_DIR"] = os.environ["SDPALAB_CACHE_DIR"]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # glibc hands small freed blocks out again without poisoning them, unless it keeps none.
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    # -I, and then this process's own path: what PYTHON* variables made of it is settled, and nothing is added.
    path = [entry or str(Path.cwd()) for entry in sys.path] + [str(Path(__file__).resolve().parents[2])]
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-u", "-c", _BOOT, str(to_worker[0]), str(from_worker[1]), *path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(to_worker[0], from_worker[1]),
            env=environment | threads | tunables,
            start_new_session=True,
        )
    except OSError as error:
        for fd in (*to_worker, *from_worker):
            os.close(fd)
        raise MachineError(f"a worker process cannot be started: {error.strerror}") from None
    os.close(to_worker[0])
    os.close(from_worker[1])
    return process, Channel(from_worker[0], to_worker[1], alive=lambda: process.poll() is None)
