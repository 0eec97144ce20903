"""Limits of an architecture for a launch (CUDA C++ Programming Guide, "Compute Capabilities")."""

from __future__ import annotations

import math
import re

from warpsan.engine.arrays import WARP
from warpsan.errors import LaunchError
from warpsan.host.geometry import Geometry
from warpsan.ptx.ir import Entry
from warpsan.ptx.names import short_name

__all__ = [
    "REGISTER_FILE",
    "check_cluster",
    "check_geometry",
    "check_registers",
    "registers_at_launch",
    "shared_limit",
]

_KIB = 1024
_SHARED_PER_BLOCK = {
    70: 96,
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
"""Maximum opt-in shared memory per CTA in KiB, by ten times the compute capability."""


def shared_limit(target: str) -> int:
    """Maximum shared memory per CTA in bytes, for a PTX target such as ``sm_89`` or ``sm_90a``.

    Raises
    ------
    LaunchError
        If the target is unknown.
    """
    match = re.fullmatch(r"sm_(\d+)[af]?", target)
    if match is None or int(match.group(1)) not in _SHARED_PER_BLOCK:
        known = ", ".join(f"sm_{arch}" for arch in _SHARED_PER_BLOCK)
        raise LaunchError(f"the PTX targets {target or 'nothing'}, and the simulator supports {known}")
    return _SHARED_PER_BLOCK[int(match.group(1))] * _KIB


def check_geometry(geometry: Geometry) -> None:
    """Raise LaunchError for a grid or block that exceeds the limits of all NVIDIA GPUs."""
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
"""Maximum CTAs per cluster; more than 8 require the non-portable size attribute of the kernel (sm_90 and sm_100)."""


def check_cluster(geometry: Geometry, target: str) -> None:
    """Raise LaunchError for clusters that no GPU of the target can launch."""
    size = geometry.cluster[0] * geometry.cluster[1] * geometry.cluster[2]
    if min(geometry.cluster) < 1 or size > _MOST_CLUSTER:
        raise LaunchError(f"a cluster has 1 to {_MOST_CLUSTER} blocks, not {geometry.cluster}")
    if geometry.explicit_cluster and int(re.sub(r"\D", "", target) or 0) < 90:
        raise LaunchError(f"clusters need sm_90 or later, and the PTX targets {target}")
    if any(many % part for many, part in zip(geometry.grid, geometry.cluster, strict=True)):
        raise LaunchError(
            f"the grid {geometry.grid} is not a multiple of the cluster {geometry.cluster} along every axis"
        )


REGISTER_FILE = 65536
"""32-bit registers per SM, and maximum per block; the same for all supported architectures."""
_MOST_REGISTERS = 255
"""Maximum registers per thread."""
_REGISTER_UNIT = 8
"""Allocation granularity of registers per thread."""


def registers_at_launch(code: Entry, geometry: Geometry) -> int:
    """Maximum registers per thread at launch.

    The value of .maxnreg, or the registers that fit for as many blocks of .maxntid (or .reqntid) threads as
    .minnctapersm requires on an SM (PTX ISA, "Performance-Tuning Directives"). Without directives: the registers that
    fit for the block.
    """
    directives = code.directives
    most = directives.get("maxnreg", (_MOST_REGISTERS,))[0]
    most = -(-most // _REGISTER_UNIT) * _REGISTER_UNIT
    block = directives.get("reqntid") or directives.get("maxntid")
    if block is None and "maxnreg" in directives:
        return most
    warps = -(-math.prod(block or geometry.block) // WARP) * max(1, directives.get("minnctapersm", (1,))[0])
    fits = REGISTER_FILE // (warps * WARP) // _REGISTER_UNIT * _REGISTER_UNIT
    return min(most, fits) or most  # ptxas ignores an impossible .minnctapersm


def check_registers(code: Entry, geometry: Geometry) -> None:
    """Raise LaunchError if the threads of a block, with the registers their directives allow, exceed the registers of
    an SM.

    The register count of ptxas is unknown here: a kernel below a limit that does not fit is rejected too.
    """
    most = code.directives.get("maxnreg", (0,))[0]
    if most > _MOST_REGISTERS:
        raise LaunchError(
            f"{short_name(code.name)} has .maxnreg {most}, and a thread has at most {_MOST_REGISTERS} registers"
        )
    need = registers_at_launch(code, geometry) * -(-geometry.threads // WARP) * WARP
    if most and need > REGISTER_FILE:
        raise LaunchError(
            f"{short_name(code.name)} has .maxnreg {most}, with which a block of {geometry.threads} threads takes "
            f"{need} registers, and an SM has {REGISTER_FILE}"
        )
