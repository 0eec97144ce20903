"""Groups of options: a dataclass whose fields are options, as one parameter of every command that has them.

A command declares ``problem: ProblemOptions`` among its keyword-only parameters; the command line gets the group's
fields in its place, and the command gets the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sdpalab.commands.options import AddressOption, ExecutorOption, JsonOption, WorkersOption, executor_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sdpalab.jobs import Executor

__all__ = ["ConfinementOptions", "ExecutorOptions", "RecordOptions", "WorkerOptions", "with_groups"]


@dataclass(frozen=True)
class WorkerOptions:
    """Where the workers of an executor are, and how many."""

    address: AddressOption = None
    workers: WorkersOption = None

    def on(self, executor: str) -> AbstractContextManager[Executor]:
        """The executor of that name with these workers, closed in the end."""
        return executor_of(executor, self.address, self.workers)

    @property
    def given(self) -> bool:
        """Whether either was given."""
        return self.address is not None or self.workers is not None


@dataclass(frozen=True)
class ExecutorOptions(WorkerOptions):
    """The executor of a campaign's jobs."""

    executor: ExecutorOption = "local"

    def open(self) -> AbstractContextManager[Executor]:
        """The executor, closed in the end."""
        return self.on(self.executor)


@dataclass(frozen=True)
class RecordOptions:
    """Where a campaign's record goes."""

    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the record goes. Default: a file in evidence/."),
    ] = None
    json: JsonOption = None


@dataclass(frozen=True)
class ConfinementOptions:
    """Whether a kernel's processes must be confined; in force while the command runs."""

    require_confinement: Annotated[
        bool,
        typer.Option(
            "--require-confinement",
            help="End with exit code 3 where this machine does not confine a kernel's processes by namespaces.",
        ),
    ] = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """A block in which that holds."""
        from sdpalab.judge.sandbox.guarded import confinement_required

        with confinement_required(self.require_confinement):
            yield


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
            for each in options.values():
                if isinstance(each, ConfinementOptions) and each.require_confinement:
                    stack.enter_context(each.in_force())
            return command(*arguments, **options)

    signature = own.replace(parameters=list(parameters()))
    vars(grouped)["__signature__"] = signature
    grouped.__annotations__ = {**{each.name: each.annotation for each in signature.parameters.values()}, "return": int}
    return grouped
