"""Groups of options: dataclasses whose fields are options, as one parameter of every command that uses them.

A command declares ``problem: ProblemOptions`` among its keyword-only parameters; the command line has the group's
fields in its place, and the command receives the group. For a group with a context ``in_force``, the command runs in
it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

__all__ = ["with_groups"]


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` with the options of its groups in its signature and type hints."""
    # Typer reads the signature, and resolves only names of the module that the command came from.
    hints, own = get_type_hints(command, include_extras=True), inspect.signature(command)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}

    def parameters() -> Iterator[inspect.Parameter]:
        for name, each in own.parameters.items():
            if name not in groups:
                yield each.replace(annotation=hints[name])
                continue
            kinds = get_type_hints(groups[name], include_extras=True)
            for option in fields(groups[name]):
                yield each.replace(name=option.name, default=option.default, annotation=kinds[option.name])

    @wraps(command)
    def grouped(*arguments: Any, **options: Any) -> Any:
        for name, group in groups.items():
            options[name] = group(**{option.name: options.pop(option.name) for option in fields(group)})
        with ExitStack() as stack:
            for each in groups.keys() & options.keys():
                if hasattr(options[each], "in_force"):
                    stack.enter_context(options[each].in_force())
            return command(*arguments, **options)

    signature = own.replace(parameters=list(parameters()))
    vars(grouped)["__signature__"] = signature
    grouped.__annotations__ = {**{each.name: each.annotation for each in signature.parameters.values()}, "return": int}
    return grouped
