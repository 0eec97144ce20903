"""What an architecture lets a launch have (CUDA C++ Programming Guide, "Compute Capabilities")."""

from __future__ import annotations

import re

from sdpalab.sim.errors import LaunchError
from sdpalab.sim.machine import Geometry

__all__ = ["check_cluster", "check_geometry", "shared_limit"]

_KIB = 1024
_SHARED_PER_BLOCK = {
    75: 64,
    80: 163,
    86: 99,
    87: 163,
    88: 99,
    89: 99,
    90: 227,
    100: 227,
    103: 227,
    110: 227,
    120: 99,
    121: 99,
}
"""Shared memory that one CTA can have with opt-in, in KiB, by compute capability times ten."""


def shared_limit(target: str) -> int:
    """Most shared memory one CTA can have, in bytes, for a PTX target such as ``sm_89`` or ``sm_90a``.

    Raises
    ------
    LaunchError
        If the target is not known.
    """
    match = re.fullmatch(r"sm_(\d+)[af]?", target)
    if match is None or int(match.group(1)) not in _SHARED_PER_BLOCK:
        known = ", ".join(f"sm_{arch}" for arch in _SHARED_PER_BLOCK)
        raise LaunchError(f"the PTX targets {target or 'nothing'}, and the simulator knows {known}")
    return _SHARED_PER_BLOCK[int(match.group(1))] * _KIB


def check_geometry(geometry: Geometry) -> None:
    """Raise LaunchError if no NVIDIA GPU could launch this grid and block."""
    for name, dims, most in (
        ("grid", geometry.grid, (2**31 - 1, 65535, 65535)),
        ("block", geometry.block, (1024, 1024, 64)),
    ):
        for axis, size, limit in zip("xyz", dims, most, strict=True):
            if not 1 <= size <= limit:
                raise LaunchError(f"{name}.{axis} must be 1 to {limit}, not {size}")
    if geometry.threads > 1024:
        raise LaunchError(f"a block has at most 1024 threads, and {geometry.block} has {geometry.threads}")
    if geometry.dynamic_smem < 0:
        raise LaunchError(f"dynamic_smem must be 0 or more bytes, not {geometry.dynamic_smem}")


_MOST_CLUSTER = 16
"""CTAs of a cluster; beyond 8 a GPU wants the non-portable size allowed for the kernel (sm_90 and sm_100 have it)."""


def check_cluster(geometry: Geometry, target: str) -> None:
    """Raise LaunchError if no GPU of that target could launch these clusters."""
    size = geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2]
    if min(geometry.cluster) < 1 or size > _MOST_CLUSTER:
        raise LaunchError(f"a cluster has 1 to {_MOST_CLUSTER} blocks, not {geometry.cluster}")
    if geometry.explicit_cluster and int(re.sub(r"\D", "", target) or 0) < 90:
        raise LaunchError(f"clusters need sm_90 or later, and the PTX targets {target}")
    if any(many % part for many, part in zip(geometry.grid, geometry.cluster, strict=True)):
        raise LaunchError(f"the grid {geometry.grid} is no multiple of the cluster {geometry.cluster} along every axis")
