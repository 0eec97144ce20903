"""Options shared by several commands, defined once, and their conversion."""

from __future__ import annotations

from typing import Annotated

import typer

from warpsan.errors import UserError

__all__ = [
    "JsonOption",
    "LaunchOption",
    "MaxStepsOption",
    "NumericsOption",
    "SelfProfileOption",
    "at_least",
    "checked_numerics",
]

JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON too; - is standard output.")
]
MaxStepsOption = Annotated[
    int | None,
    typer.Option("--max-steps", metavar="N", help="Maximum steps of one warp; more count as an endless loop."),
]
LaunchOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.json",
        help='For FILE.ptx or FILE.cu, its launch: {"entry": "saxpy", "grid": [4], "block": [256], "dynamic_smem": '
        '0, "args": [{"dtype": "float32", "shape": [1000], "init": "normal"}, 2.0, 1000]}; init is normal, zeros, '
        "ones, arange, poison or a number, and a bare number is passed by value. Structures, tensor maps, .npy "
        "files, several launches and expected values: docs/launch-files.md. Default: FILE.json beside it.",
    ),
]
NumericsOption = Annotated[
    str | None,
    typer.Option(metavar="N", help="Rule of the simulator's tensor-core sums: hardware (the default) or float32."),
]
SelfProfileOption = Annotated[
    bool,
    typer.Option("--self-profile", help="Show the simulator's own time by phase, check, unit and operation."),
]


def at_least(option: str, value: int | None, least: int) -> int | None:
    """Return ``value``; below ``least``, raise UserError with the name of the option."""
    if value is not None and value < least:
        raise UserError(f"{option} takes a number from {least} up, not {value}")
    return value


def checked_numerics(name: str | None) -> str:
    """The value of ``--numerics``, or the default.

    Raises
    ------
    UserError
        If the rule is unknown.
    """
    from warpsan import DEFAULT_NUMERICS, NUMERICS  # local: the import of the simulator takes 0.2 s

    if name is None:
        return DEFAULT_NUMERICS
    if name not in NUMERICS:
        raise UserError(f"--numerics takes {', '.join(NUMERICS)}, not {name!r}")
    return name
