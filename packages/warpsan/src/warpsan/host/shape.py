"""Shape of a launch: grid, block and cluster that match the code, and the execution order of clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpsan.engine.arrays import Array
from warpsan.errors import LaunchError
from warpsan.host.geometry import Dim3, Geometry
from warpsan.host.limits import check_cluster, check_geometry, check_registers
from warpsan.ptx.ir import Entry
from warpsan.ptx.names import short_name

__all__ = ["clusters_in_order", "shape_of"]


def shape_of(
    code: Entry,
    target: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    cluster: Sequence[int],
    dynamic_smem: int,
) -> Geometry:
    """Geometry of a launch; cluster (1, 1, 1) selects the cluster size that the code requires.

    Raises
    ------
    LaunchError
        If the sizes are invalid, or no GPU of ``target`` can launch the code with them.
    """
    clusters, explicit = _cluster(code, _dim3("cluster", cluster))
    geometry = Geometry(_dim3("grid", grid), _dim3("block", block), clusters, dynamic_smem, explicit)
    check_geometry(geometry)
    check_cluster(geometry, target)
    _check_directives(code, geometry)
    check_registers(code, geometry)
    return geometry


def clusters_in_order(geometry: Geometry, schedule: str, seed: int) -> Array:
    """Linear block indices [clusters, blocks per cluster] in execution order of the clusters: numbered order, reverse
    order, or shuffled.
    """
    clusters = _by_cluster(geometry)
    if schedule == "reverse":
        return clusters[::-1]
    return np.random.default_rng(seed).permutation(clusters) if schedule == "random" else clusters


def _cluster(code: Entry, asked: Dim3) -> tuple[Dim3, bool]:
    """The cluster of a launch, and whether the launch uses clusters (PTX ISA, "Cluster Dimension Directives")."""
    numbers = code.directives.get("reqnctapercluster")
    if numbers:
        required = _dim3("cluster", numbers)
        if asked not in ((1, 1, 1), required):
            raise LaunchError(f"{short_name(code.name)} requires a cluster of {required} blocks, not {asked}")
        return required, True
    most = code.directives.get("maxclusterrank")
    if most and int(np.prod(asked)) > most[0]:
        raise LaunchError(f"{short_name(code.name)} was compiled for at most {most[0]} blocks a cluster, not {asked}")
    if asked == (1, 1, 1) and "explicitcluster" in code.directives:
        raise LaunchError(f"{short_name(code.name)} must be launched with a cluster (.explicitcluster)")
    return asked, asked != (1, 1, 1)


def _check_directives(code: Entry, geometry: Geometry) -> None:
    required = code.directives.get("reqntid")
    if required and (*required, 1, 1)[:3] != geometry.block:
        raise LaunchError(f"{short_name(code.name)} requires a block of {required} threads, not {geometry.block}")
    most = code.directives.get("maxntid")
    if most and geometry.threads > int(np.prod(most)):
        raise LaunchError(
            f"{short_name(code.name)} was compiled for at most {int(np.prod(most))} threads a block, "
            f"not {geometry.threads}"
        )


def _by_cluster(geometry: Geometry) -> Array:
    """Linear block indices [clusters, blocks per cluster], blocks sorted by rank."""
    x, y, z = geometry.cluster
    grid = np.arange(geometry.ctas).reshape(geometry.grid[::-1])
    apart = grid.reshape(grid.shape[0] // z, z, grid.shape[1] // y, y, grid.shape[2] // x, x)
    clusters: Array = apart.transpose(0, 2, 4, 1, 3, 5).reshape(-1, x * y * z)
    return clusters


def _dim3(name: str, size: int | Sequence[int]) -> Dim3:
    dims = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    if not 1 <= len(dims) <= 3 or not all(isinstance(dim, (int, np.integer)) for dim in dims):
        raise LaunchError(f"{name} takes one to three integers, not {size!r}")
    x, y, z = (*(int(dim) for dim in dims), 1, 1)[:3]
    return x, y, z
