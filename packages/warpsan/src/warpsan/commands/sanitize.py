"""``warpsan sanitize``: races and memory errors of a file on the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warpsan.terminal.options import LaunchOption
from warpsan.terminal.sanitizing import SanitizeOptions

__all__ = ["sanitize"]


def sanitize(
    file: Annotated[str, typer.Argument(metavar="FILE", help="FILE.cu or FILE.ptx, with its launch file.")],
    launch: LaunchOption = None,
    *,
    options: SanitizeOptions,
) -> int:
    """Run the launches of a file in every order of the warps, and report races and memory errors."""
    from warpsan.sanitize import case_of, sanitize_case

    folders = [Path(file).parent, Path.cwd()]
    return options.report(
        file,
        lambda modes, progress, accepted: (
            sanitize_case(
                case_of(Path(file), launch), modes, progress=progress, folders=folders, suppressions=accepted
            ),
            folders,
        ),
    )
