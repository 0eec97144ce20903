"""Untrusted sources: a confined process compiles, disassembles and simulates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, overload

from warpsan.build.cache import Cache
from warpsan.build.headers import Header
from warpsan.build.nvrtc import Compiled
from warpsan.build.source import Module, PtxSource

__all__ = ["ForeignModule", "ForeignPtx", "Workshop", "foreign", "workshop_of"]


class Workshop(Protocol):
    """A confined process that compiles, disassembles and simulates."""

    @property
    def cache(self) -> Cache:
        """Cache of the results in this process, separate for each source."""
        ...

    def compile_program(
        self, source: str, name: str, expression: str | None, headers: Sequence[Header], options: Sequence[str]
    ) -> Compiled:
        """As :func:`warpsan.build.nvrtc.compile_program`."""
        ...

    def assemble(self, ptx: bytes, name: str) -> tuple[bytes, str]:
        """As :func:`warpsan.build.triton_compiler.assemble`."""
        ...

    def run_tool(self, tool: str, options: tuple[str, ...], cubin: bytes) -> str:
        """As :func:`warpsan.build.tools.run_tool`."""
        ...

    def simulate(
        self, plan: Any, builds: Sequence[Any], inputs: Mapping[str, Any], arch: str, poison: int, options: Any
    ) -> tuple[Any, Callable[[], Any]]:
        """Run a launch plan with its builds: reports of its launches, and a function that returns the result or raises
        the error.
        """
        ...

    def simulate_case(
        self, source: Path, description: Path, options: Mapping[str, Any]
    ) -> tuple[Any, Callable[[], tuple[list[str], Mapping[str, int]]]]:
        """Run the launches of a launch file like :meth:`warpsan.sanitize.case.PtxCase.run_all`."""
        ...


@dataclass(frozen=True)
class ForeignModule(Module):
    """A module compiled by its ``workshop``."""

    workshop: Workshop | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class ForeignPtx(PtxSource):
    """PTX assembled by its ``workshop``."""

    workshop: Workshop | None = field(default=None, compare=False, repr=False)


@overload
def foreign(module: Module, workshop: Workshop) -> ForeignModule: ...
@overload
def foreign(module: PtxSource, workshop: Workshop) -> ForeignPtx: ...
def foreign(module: Module | PtxSource, workshop: Workshop) -> ForeignModule | ForeignPtx:
    """``module`` with ``workshop`` as its compiler."""
    kind, names = (ForeignModule, fields(Module)) if isinstance(module, Module) else (ForeignPtx, fields(PtxSource))
    return kind(**{each.name: getattr(module, each.name) for each in names}, workshop=workshop)


def workshop_of(source: object) -> Workshop | None:
    """The workshop of a source or a build; None for this process."""
    workshop: Workshop | None = getattr(source, "workshop", None)
    return workshop
