"""Prepared launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from warpsan.analysis.program import Program
from warpsan.engine.arrays import Indices
from warpsan.host.geometry import Geometry
from warpsan.host.heap import Heap
from warpsan.host.options import Options
from warpsan.host.symbols import Symbols
from warpsan.profile.self_profile import Stopwatch
from warpsan.ptx.ir import Entry, PtxModule

__all__ = ["Setup"]


@dataclass(frozen=True, kw_only=True)
class Setup(Options):
    """A prepared launch: its options, code and addresses.

    ``checks`` has the checks that observe the launch (:attr:`Options.watched`), and ``max_steps`` is a number.
    ``workspace`` is the address of the grid's workspace in a cooperative launch, 0 otherwise. ``chunks`` has the linear
    CTA indices of each chunk. The other attributes are as in :func:`~warpsan.launch`.
    """

    max_steps: int
    module: PtxModule
    entry: Entry
    program: Program
    geometry: Geometry
    symbols: Symbols
    params: bytes
    workspace: int
    heap: Heap | None
    chunks: Sequence[Indices]
    tracking: bool = False
    """Whether to track undefined bytes of memory up to their use."""
    track_unwritten_global: bool = False
    """Whether global memory has unwritten bytes and their reads are tracked."""
    resident: bool = False
    """Whether all blocks of a chunk are resident at once, so that one block may wait for another."""
    prerequisites: Indices | None = None
    """Accesses of the preceding kernel in a launch with programmatic stream serialization
    (:mod:`warpsan.engine.watch.prerequisites`).
    """
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
