"""The catalogue: every planted bug, by its id."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sdpalab.bugs import caps, cuda, edges, fp8, hopper, lse, precision, softmax, synchronisation, tiles, windows
from sdpalab.bugs.bug import Bug

__all__ = ["BUGS"]

_FILES = (softmax, tiles, edges, windows, caps, precision, cuda, lse, fp8, synchronisation, hopper)

BUGS: Mapping[str, Bug] = MappingProxyType({bug.id: bug for file in _FILES for bug in file.BUGS})
"""Those in Python first, then those in the sources of shipped kernels."""
