"""Subcommands imported on their first call: ``--help`` imports none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from warpsan.terminal.output_options import with_output_options

__all__ = ["CommandEntry", "LazyCommands", "group_of"]


@dataclass(frozen=True)
class CommandEntry:
    """Entry of a command in the list of commands, available without an import.

    The command ``speed-of-light`` of a package is ``speed_of_light`` in its module ``speed_of_light``: a function, or a
    Typer group.

    Attributes
    ----------
    summary : str
        One line, at most 60 characters.
    context_settings : mapping
        Parser settings, such as ``{"allow_interspersed_args": False}``.
    one_thread : bool
        Whether NumPy and torch get one thread each, for commands whose processes and threads use all cores: BLAS
        threads would spin while they wait for each other.
    package : str
        Package of the module; default: the package of the group.
    """

    summary: str
    context_settings: Mapping[str, Any] = field(default_factory=dict)
    one_thread: bool = False
    package: str = ""


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each imported on lookup."""

    def __init__(self, package: str, entries: Mapping[str, CommandEntry]) -> None:
        self.package = package
        self.entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(self.package, name, self.entries[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"the commands are fixed, and {name!r} cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries


def _load(package: str, name: str, entry: CommandEntry) -> Any:
    """The command in the module of its name, with the common options; a group adds them itself."""
    attribute = name.replace("-", "_")
    if entry.one_thread:
        _limit_threads()
    value = getattr(import_module(f"{entry.package or package}.{attribute}"), attribute)
    if isinstance(value, typer.Typer):
        return typer.main.get_command(value)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    single.command(name, context_settings=dict(entry.context_settings) or None)(with_output_options(value))
    return typer.main.get_command(single)


def _limit_threads() -> None:
    """Limit NumPy and torch to one thread each, unless the environment sets a number; call it before they load."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def group_of(package: str, entries: Mapping[str, CommandEntry]) -> type[TyperGroup]:
    """A group class with these commands of a package, for ``typer.Typer(cls=)``."""

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = LazyCommands(package, entries)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(entries)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Write the list of ``--help`` from the entries alone."""
            with formatter.section("Commands"):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])

    return LazyGroup
