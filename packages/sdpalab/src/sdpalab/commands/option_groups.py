"""Groups of options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdpalab.commands.options import AddressOption, ExecutorOption, WorkersOption
from sdpalab.errors import UserError
from warpsan.terminal.options import JsonOption

if TYPE_CHECKING:
    from sdpalab.jobs import Executor

__all__ = ["ConfinementOptions", "ExecutorOptions", "RecordOptions", "WorkerOptions"]


@dataclass(frozen=True)
class WorkerOptions:
    """Location and number of an executor's workers."""

    address: AddressOption = None
    workers: WorkersOption = None

    def on(self, executor: str) -> AbstractContextManager[Executor]:
        """The executor of that name with these workers; closed at the end."""
        from sdpalab.jobs import executor_named
        from sdpalab.judge.sandbox.guarded import REQUIRED

        if executor != "local" and os.environ.get(REQUIRED) == "1":
            raise UserError(
                f"--require-confinement is for processes of this machine, and --executor {executor} uses others"
            )
        return closing(executor_named(executor, address=self.address, workers=self.workers))

    @property
    def given(self) -> bool:
        """Whether either option was given."""
        return self.address is not None or self.workers is not None


@dataclass(frozen=True)
class ExecutorOptions(WorkerOptions):
    """The executor of a campaign's jobs."""

    executor: ExecutorOption = "local"

    def open(self) -> AbstractContextManager[Executor]:
        """The executor; closed at the end."""
        return self.on(self.executor)


@dataclass(frozen=True)
class RecordOptions:
    """Destination of a campaign's record."""

    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Path of the record. Default: a file in evidence/."),
    ] = None
    json: JsonOption = None


@dataclass(frozen=True)
class ConfinementOptions:
    """Whether a kernel's processes must be confined, for the duration of the command."""

    require_confinement: Annotated[
        bool,
        typer.Option(
            "--require-confinement",
            help="End with exit code 3 where this machine does not confine a kernel's processes by namespaces.",
        ),
    ] = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Context in which the setting applies."""
        if not self.require_confinement:
            yield
            return
        from sdpalab.judge.sandbox.guarded import confinement_required

        with confinement_required(True):
            yield
