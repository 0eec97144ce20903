"""Options of several commands, defined once."""

from __future__ import annotations

from collections.abc import Sequence
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any

import typer

from sdpalab.errors import UserError

__all__ = [
    "KERNEL_HELP",
    "AddressOption",
    "ArchOption",
    "ExecutorOption",
    "IncludeOption",
    "KernelArgument",
    "LevelOption",
    "SeedOption",
    "SetOption",
    "SignOption",
    "WorkersOption",
    "complete_kernel",
    "include_dirs_of",
    "parse_settings",
    "shapes",
]

KERNEL_HELP = "A shipped kernel's name, or your own as FILE.py or FILE.py:NAME."


def complete_kernel(incomplete: str) -> list[str]:
    """Shipped kernels and Python files with this prefix, for the completion of a shell."""
    from sdpalab.kernels.registry import SHIPPED

    files = sorted(glob(f"{escape(incomplete)}*.py")) + sorted(glob(f"{escape(incomplete)}*/"))
    return [name for name in SHIPPED if name.startswith(incomplete)] + files


KernelArgument = Annotated[str, typer.Argument(metavar="KERNEL", help=KERNEL_HELP, autocompletion=complete_kernel)]
SignOption = Annotated[
    Path | None,
    typer.Option(
        "--sign", metavar="KEY", help="Sign the bundle with this ed25519 private key, PEM or OpenSSH, beside it."
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a knob of the kernel; may be repeated.")
]
VerdictsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Records of verdicts from this GPU, beside the committed ones: DIR/*/*.json."),
]
ArchOption = Annotated[
    str | None,
    typer.Option(metavar="ARCH", help="sm_80 to sm_121. Default: sm_89, or the first that the kernel runs on."),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="DIR", help="A folder with headers for your kernel's source; may be repeated."),
]
LevelOption = Annotated[str, typer.Option(metavar="L", help="quick (a minute) or full (many minutes).")]
SeedOption = Annotated[int, typer.Option(metavar="N", help="Public seed of the inputs for --shape.")]
ExecutorOption = Annotated[
    str,
    typer.Option("--executor", metavar="E", help="Executor of the jobs: local (processes of this machine) or ray."),
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="A", help="Address of the Ray cluster; with --executor ray.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Jobs at a time. Default: one a CPU, or one a GPU.")
]


def include_dirs_of(folders: Sequence[str] | None, *kernels: str) -> tuple[Path, ...]:
    """The folders of ``--include``, absolute; they apply to kernels in files.

    Raises
    ------
    UserError
        If one is not a folder, or all kernels are shipped ones.
    """
    from sdpalab.kernels.userfile import is_user_file

    if folders and not any(map(is_user_file, kernels)):
        raise UserError(f"--include is for your own FILE.py, and {', '.join(kernels) or 'a shipped kernel'} is not one")
    for folder in folders or ():
        if not Path(folder).is_dir():
            raise UserError(f"--include takes a folder with headers, and {folder} is none")
    return tuple(Path(folder).absolute() for folder in folders or ())


def shapes(what: str, default: str) -> Any:
    """``--shape``, which may be repeated; ``what`` is its purpose, ``default`` its default."""
    help_text = f"{what}, or a name such as mission; may be repeated. Default: {default}."
    return typer.Option("--shape", metavar="B,H,S,D", help=help_text)


def parse_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """``--set KEY=VALUE`` options as a dict.

    Raises
    ------
    UserError
        If one has no ``=`` or no name, or a name is given twice.
    """
    values: dict[str, str] = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals or not name or not value:
            raise UserError(f"--set takes KEY=VALUE such as BLOCK_M=64, not {setting!r}")
        if name in values:
            raise UserError(f"--set gives {name} twice")
        values[name] = value
    return values
