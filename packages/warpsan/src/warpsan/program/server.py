"""Server end of the socket: receives the calls of one process in order, and replies."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from warpsan import SimError
from warpsan.host.memory import GLOBAL_BASE
from warpsan.program import device_calls, launch_calls, memory_calls, stream_calls, tensor_map_calls
from warpsan.program.errors import ERRORS, CallError
from warpsan.program.handlers import HANDLERS
from warpsan.program.options import RunOptions
from warpsan.program.recorder import LaunchRecorder
from warpsan.program.state import ProgramState
from warpsan.program.wire import CallReply, Request, receive, send

__all__ = ["Server"]

FAMILIES = (device_calls, launch_calls, memory_calls, stream_calls, tensor_map_calls)
"""Modules with handlers, imported to fill the table."""

_WITHOUT_DEVICE = ("cudaGetError", "cudaDriverGetVersion", "cudaRuntimeGetVersion", "cudaGetDeviceCount", "__cuda")
"""Prefixes of calls that work after a kernel has failed."""
_PEER = struct.Struct("3i")


class Server:
    """Server at a socket file, with a thread and a state per connected process.

    Parameters
    ----------
    path : Path
        The socket file.
    options : RunOptions
    on_failure : callable
        Called, in a thread, when the server fails.
    capture : (Path, str), optional
        Folder and name of the launch file to write.

    Attributes
    ----------
    states : list of ProgramState
        States of the processes, in connection order.
    recorders : list of LaunchRecorder
        Recorders of the processes, if launches are captured.
    failure : Exception, optional
        Failure of the server.
    """

    def __init__(
        self, path: Path, options: RunOptions, on_failure: Callable[[], None], capture: tuple[Path, str] | None = None
    ) -> None:
        self._capture = capture
        self.recorders: list[LaunchRecorder] = []
        self.states: list[ProgramState] = []
        self.failure: Exception | None = None
        self._options, self._on_failure = options, on_failure
        self._threads: list[threading.Thread] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Accept no more processes, and wait for the last replies."""
        self._socket.shutdown(socket.SHUT_RDWR)  # ends accept(), which a close does not
        self._acceptor.join()
        self._socket.close()
        for thread in self._threads:
            thread.join(timeout=60)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                state = self._begin(connection)
                while (request := receive(connection)) is not None:
                    send(connection, answer(state, request))
        except (BrokenPipeError, ConnectionResetError):
            pass  # killed process
        except Exception as error:
            self.failure = self.failure or error
            self._on_failure()

    def _begin(self, connection: socket.socket) -> ProgramState:
        """Share memory with a process."""
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        file = os.memfd_create("warpsan device memory")
        try:
            os.ftruncate(file, self._options.memory)
            memory = mmap.mmap(file, self._options.memory)
            socket.send_fds(connection, [struct.pack("<QQ", GLOBAL_BASE, self._options.memory)], [file])
        finally:
            os.close(file)
        state = ProgramState(self._options, _PEER.unpack(peer)[0], memory)
        self.states.append(state)
        if self._capture is not None:
            folder, name = self._capture
            name = name if len(self.states) == 1 else f"{name}-process-{len(self.states)}"
            options = self._options
            self.recorders.append(LaunchRecorder(state, folder, name, options.kernels, options.most_launches))
            state.recorder = self.recorders[-1]
        return state


def answer(state: ProgramState, request: Request) -> CallReply:
    """The reply to a call."""
    state.calls += 1
    reply = CallReply()
    handler = HANDLERS.get(request.name)
    place = state.line(request) if handler is None else ""
    if state.sticky and not request.name.startswith(_WITHOUT_DEVICE):
        reply.status = state.sticky
    elif handler is None:
        at = f" (at {place})" if place else ""
        state.problem(f"{request.name}{at} is not modelled, and returns cudaErrorNotSupported")
        reply.status = ERRORS["cudaErrorNotSupported"][0]
    else:
        try:
            reply.results = handler(state, request)
        except CallError as error:
            reply.status = error.status
            if error.sentence:
                place = state.line(request)
                state.problem(f"{request.name}{f' at {place}' if place else ''}: {error.sentence}")
        except SimError as error:
            state.fatal = f"{request.name}: {error}"
            state.problem(state.fatal)
            reply.status = ERRORS["cudaErrorNotSupported"][0]
    reply.pages, state.excused = state.pages.changes(state.excused), 0
    if state.printed and not request.name.startswith("cudaLaunch"):
        reply.printed = "".join(state.printed)
        state.printed.clear()
    return reply
