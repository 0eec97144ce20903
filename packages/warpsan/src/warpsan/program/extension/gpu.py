"""Extensions of torch in this process: their mode, and the functions that load them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpsan import Report
from warpsan.program.cpu_tensors import CpuTensors
from warpsan.program.extension.loading import Extensions
from warpsan.report.groups import SanitizedHazard

__all__ = ["ExtensionGpu", "extensions_of_process", "install_extensions"]

_of_this_process: list[Extensions] = []


def install_extensions(arch: str) -> None:
    """Load extensions of this process on the simulated GPU of an architecture, from now on."""
    if not _of_this_process:
        _of_this_process.append(Extensions(arch))
        _of_this_process[0].install()


def extensions_of_process() -> Extensions | None:
    """The extensions of this process, if :func:`install_extensions` was called."""
    return _of_this_process[0] if _of_this_process else None


class ExtensionGpu(CpuTensors):
    """Mode in which the functions of extensions run on CPU tensors.

    Parameters
    ----------
    extensions : Extensions
    observe : callable
        As for :class:`warpsan.program.TritonGpu`.
    """

    def __init__(self, extensions: Extensions, observe: Callable[[str, str, dict[int, Any], Report], None]) -> None:
        super().__init__()
        self._extensions = extensions
        extensions.run.observe = observe
        self.in_backward()

    @property
    def hazards(self) -> list[SanitizedHazard]:
        """Hazards of all launches."""
        return self._extensions.run.hazards

    def __enter__(self) -> ExtensionGpu:
        self._extensions.memory.begin_call()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self
