"""``sdpalab mcp``: the lab's tools for agents, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sdpalab.errors import UserError

__all__ = ["mcp"]


def mcp(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Kernels are files below it.", exists=True, file_okay=False)
    ] = Path(),
    brief: Annotated[int, typer.Option(metavar="N", help="Most characters of a tool's text.", min=200)] = 2000,
    timeout: Annotated[float, typer.Option(metavar="S", help="Most seconds of one call.", min=1)] = 300.0,
    allow_unconfined: Annotated[
        bool, typer.Option("--allow-unconfined", help="Serve where this machine does not confine kernels.")
    ] = False,
) -> int:
    """Serve the tools build, judge, sanitize, explain and profile on stdin and stdout (extra mcp)."""
    try:
        from sdpalab.service.agent import Tools, agent_server
    except ImportError as error:
        raise UserError(f"sdpalab mcp needs the SDK of the protocol: pip install 'sdpalab[mcp]' ({error})") from None
    agent_server(Tools(folder.resolve(), brief, timeout, confined=not allow_unconfined)).run("stdio")
    return 0
