"""The catalogue: every planted bug, by its id."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sdpalab.bugs import (
    alibi,
    alignment,
    blackwell,
    caches,
    caps,
    cuda,
    edges,
    fp8,
    gradient_masks,
    gradient_sources,
    gradient_sums,
    gradients,
    hopper,
    hopper_gradients,
    lengths,
    lse,
    masks,
    packed,
    precision,
    sinks,
    softmax,
    synchronisation,
    tiles,
    unasked,
    windows,
)
from sdpalab.bugs.bug import Bug

__all__ = ["BUGS", "IN_PYTHON"]

_OF_FEATURES = (windows, caps, lengths, masks, alibi, sinks, alignment, packed)
"""Bugs on problems with :data:`sdpalab.scoring.FEATURES`."""
_OF_GRADIENTS = (gradients, gradient_masks, gradient_sums)
_FILES = (
    softmax,
    tiles,
    edges,
    precision,
    *_OF_FEATURES,
    *_OF_GRADIENTS,
    cuda,
    gradient_sources,
    hopper_gradients,
    caches,
    lse,
    fp8,
    synchronisation,
    blackwell,
    hopper,
    unasked,
)

BUGS: Mapping[str, Bug] = MappingProxyType({bug.id: bug for file in _FILES for bug in file.BUGS})
"""All bugs: in Python first, then in the sources of shipped kernels, and last in both on unrequested claims."""
IN_PYTHON = tuple(bug for bug in BUGS.values() if not bug.in_source and not bug.equivalent)
"""Bugs in Python, without those that change nothing."""
