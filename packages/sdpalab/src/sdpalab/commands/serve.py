"""``sdpalab serve``: the evaluation of submissions over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpalab.errors import UserError
from warpsan.terminal.console import console_for

if TYPE_CHECKING:
    from sdpalab.service.app import Service

__all__ = ["serve"]


def serve(
    folder: Annotated[
        Path, typer.Option("--state", metavar="DIR", help="Folder of the jobs; a restart continues them.")
    ] = Path("sdpalab-serve"),
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to serve.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="0: a free port.", min=0, max=65535)] = 8000,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Default: one per CPU.", min=1)] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Bearer tokens, one a line. Default: those of SDPALAB_TOKENS."),
    ] = None,
    queue: Annotated[int, typer.Option(metavar="N", help="Most waiting jobs.", min=1)] = 10_000,
    keep: Annotated[int, typer.Option(metavar="N", help="Most jobs that are kept after their end.", min=1)] = 100_000,
    max_body: Annotated[float, typer.Option(metavar="MIB", help="Most MiB of a request.", min=0.001)] = 16.0,
    memory: Annotated[
        float, typer.Option(metavar="GIB", help="Most GiB of a kernel's process, of which it has two.", min=0.5)
    ] = 4.0,
    grace: Annotated[
        float, typer.Option(metavar="S", help="Seconds for running jobs to end; then they wait for a restart.", min=0)
    ] = 30.0,
    allow_unconfined: Annotated[
        bool, typer.Option("--allow-unconfined", help="Serve where this machine does not confine kernels.")
    ] = False,
) -> int:
    """Judge submissions over HTTP, in warm workers (extra serve)."""
    try:
        from sdpalab.service.serving import ServerOptions, read_tokens
        from sdpalab.service.serving import serve as run
    except ImportError as error:
        raise UserError(f"sdpalab serve needs Starlette and uvicorn: pip install 'sdpalab[serve]' ({error})") from None
    from warpsan.host import usable_cpus

    console = console_for()
    options = ServerOptions(
        folder=folder,
        host=host,
        port=port,
        workers=workers or usable_cpus(),
        tokens=read_tokens(tokens),
        confined=not allow_unconfined,
        queue=queue,
        keep=keep,
        most_body=int(max_body * (1 << 20)),
        memory_bytes=int(memory * (1 << 30)),
        grace_seconds=grace,
    )

    def ready(address: str, service: Service) -> None:
        counts = service.store.counts()
        console.print(f"{address}: {options.workers} workers, {counts['queued']} jobs wait", soft_wrap=True)
        console.print(f"confinement: {service.confinement}", soft_wrap=True)

    run(options, ready=ready)
    return 0
