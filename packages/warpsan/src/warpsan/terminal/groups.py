"""Groups of options: a dataclass whose fields are options, as one parameter of every command that has them.

A command declares ``problem: ProblemOptions`` among its keyword-only parameters; the command line gets the group's
fields in its place, and the command gets the group. The command runs in the context ``in_force`` of a group that has
one.
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
    """``command`` with the options of its groups in place of them, in its signature and its type hints."""
    # Typer reads the signature, and resolves no names in it but those of the module that it came from.
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
