"""Sizes of a launch: grid, block, cluster and dynamic shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from warpsan.engine.arrays import WARP

__all__ = ["Dim3", "Geometry"]

Dim3 = tuple[int, int, int]
"""x, y and z, in CUDA's order."""


@dataclass(frozen=True)
class Geometry:
    """Grid, block and cluster of a launch, and its dynamic shared memory in bytes."""

    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic_smem: int
    explicit_cluster: bool = False

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps per CTA."""
        return -(-self.threads // WARP)

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def block_at(self, linear: int) -> Dim3:
        """Block index from a linear index."""
        return _at(linear, self.grid)

    def thread_at(self, linear: int) -> Dim3:
        """Thread index within the block from a linear index."""
        return _at(linear, self.block)

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def _at(linear: int, dims: Dim3) -> Dim3:
    """Coordinates of a linear index, x fastest."""
    x, y, _ = dims
    return linear % x, linear // x % y, linear // (x * y)
