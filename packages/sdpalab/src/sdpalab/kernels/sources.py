"""The source text of kernels: their modules, their folders and the lab's device headers."""

from __future__ import annotations

from collections.abc import Iterable

from sdpalab.kernels.plan import HEADER_FOLDERS, INCLUDE_DIR, Source
from warpsan.report import Sources

__all__ = ["kernel_sources"]

_WRAPPERS = frozenset(path.name for path in (INCLUDE_DIR / "ptx").iterdir())


def kernel_sources(modules: Iterable[Source] = ()) -> Sources:
    """Sources of a launch plan's modules; device headers come last, and PTX wrappers are left out."""
    return Sources.of(modules, HEADER_FOLDERS, _WRAPPERS)
