"""The server process: workers, database, HTTP, and a stop that loses no accepted job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.guarded import confinement_required
from sdpalab.service.app import Service, application
from sdpalab.service.pool import Pool, start_workers
from sdpalab.service.store import JobStore

__all__ = ["ServerOptions", "read_tokens", "serve"]

TOKENS = "SDPALAB_TOKENS"
"""Environment variable with bearer tokens, separated by white space."""
_LEAST_TOKEN = 16


@dataclass(frozen=True)
class ServerOptions:
    """Options of :func:`serve`.

    Attributes
    ----------
    folder : Path
        Has the database; a second start continues its jobs.
    host : str
    port : int
        0: a free one.
    workers : int
        Concurrent evaluations.
    tokens : sequence of str
        Bearer tokens. Empty: only requests of this machine are served, without a token.
    confined : bool
        Whether confinement by namespaces is required.
    queue, keep : int
        As for :class:`sdpalab.service.store.JobStore`.
    most_body : int
        Most bytes of a body.
    memory_bytes : int
        Most resident memory of a candidate's process, of which a kernel has two.
    grace_seconds : float
        Seconds for running jobs to end after SIGTERM; then they are queued again.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    tokens: Sequence[str] = ()
    confined: bool = True
    queue: int = 10_000
    keep: int = 100_000
    most_body: int = 16 << 20
    memory_bytes: int = 4 << 30
    grace_seconds: float = 30.0


def read_tokens(file: Path | None) -> list[str]:
    """Tokens of a file, one a line, or of the environment variable ``SDPALAB_TOKENS``.

    Raises
    ------
    UserError
        If the file cannot be read, or a token has fewer than 16 characters.
    """
    if file is None:
        tokens = os.environ.get(TOKENS, "").split()
    else:
        try:
            tokens = file.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read: {error}") from None
        if not tokens:
            raise UserError(f"{file} has no token; it has one a line")
    if short := [token for token in tokens if len(token) < _LEAST_TOKEN]:
        raise UserError(f"a token of {len(short[0])} characters can be guessed; {_LEAST_TOKEN} are the fewest")
    return tokens


def serve(options: ServerOptions, *, ready: Callable[[str, Service], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Parameters
    ----------
    options : ServerOptions
    ready : callable
        Called with the address and the service before the first request.

    Raises
    ------
    UserError
        If the address is that of a network and there is no token.
    MachineError
        If the address, the database or a worker is not available.
    """
    if not options.tokens and not _is_local(options.host):
        raise UserError(f"{options.host} is open to other machines: give --tokens FILE, or set {TOKENS}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(confinement_required(options.confined))
        listening = stack.enter_context(_listening(options.host, options.port))
        workers, check = start_workers(options.workers)
        for worker in workers:
            stack.callback(worker.close)
        store = JobStore(options.folder, check.versions, queue=options.queue, keep=options.keep)
        stack.callback(store.close)
        store.recover()
        pool = Pool(store, workers, options.memory_bytes)
        service = Service(
            store,
            pool,
            check.versions,
            check.confinement,
            confined=options.confined,
            workers=len(workers),
            tokens=options.tokens,
            most_body=options.most_body,
        )
        pool.on_end = service.ended
        server = uvicorn.Server(
            uvicorn.Config(
                application(service),
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=1 << 16,
            )
        )
        service.stopping = lambda: server.should_exit
        pool.start()
        stack.callback(pool.stop, options.grace_seconds)
        host, port = listening.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", service)
        with _signals_end_quietly():
            asyncio.run(_run(server, service, listening))


async def _run(server: uvicorn.Server, service: Service, listening: socket.socket) -> None:
    service.loop = asyncio.get_running_loop()
    await server.serve(sockets=[listening])


@contextlib.contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn raises the signals that ended it once more: they have no further effect."""
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise MachineError(f"{host}:{port} cannot be served: {error.strerror or error}") from None
    with listening:
        yield listening


def _is_local(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
