"""Options of every command that change only the printed output: ``--quiet`` and ``--no-color``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from warpsan.terminal.console import OUTPUT
from warpsan.terminal.groups import with_groups

__all__ = ["with_output_options"]

QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print only the outcome; errors are on stderr as always.")
]
NoColorOption = Annotated[
    bool, typer.Option("--no-color", help="No colours and no other codes of a terminal; NO_COLOR does the same.")
]
_OPTIONS = {"quiet": QuietOption, "no_color": NoColorOption}


def with_output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` with these options after its own and those of its groups; they apply while it runs."""
    command = with_groups(command)

    @wraps(command)
    def styled(*arguments: Any, quiet: bool, no_color: bool, **options: Any) -> Any:
        OUTPUT.quiet, OUTPUT.no_color = quiet, no_color
        try:
            return command(*arguments, **options)
        finally:
            OUTPUT.quiet = OUTPUT.no_color = False

    own = inspect.signature(command)
    parameters = list(own.parameters.values())
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    vars(styled)["__signature__"] = own.replace(parameters=parameters)
    styled.__annotations__ = {**command.__annotations__, **_OPTIONS}
    return styled
