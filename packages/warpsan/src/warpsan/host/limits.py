"""Limits of an architecture for a launch (CUDA C++ Programming Guide, "Compute Capabilities")."""

from __future__ import annotations

import math
import re

from warpsan.engine.selection import WARP
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
        raise LaunchError(f"the PTX targets {target or 'nothing'}, and the simulator supports {known}")
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
"""CTAs of a cluster; beyond 8 a GPU requires that the kernel allows the non-portable size (sm_90 and sm_100 have
it)."""


def check_cluster(geometry: Geometry, target: str) -> None:
    """Raise LaunchError if no GPU of that target could launch these clusters."""
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
"""32-bit registers of one SM, and the most that one block can have; the same for every architecture here."""
_MOST_REGISTERS = 255
"""Of one thread."""
_REGISTER_UNIT = 8
"""Registers of a thread are given in multiples of that."""


def registers_at_launch(code: Entry, geometry: Geometry) -> int:
    """Most registers that a thread can have been launched with.

    That is what .maxnreg says, or what fits for as many blocks of .maxntid (or .reqntid) threads as .minnctapersm
    requires on an SM (PTX ISA, "Performance-Tuning Directives"), or for the block without any.
    """
    directives = code.directives
    most = directives.get("maxnreg", (_MOST_REGISTERS,))[0]
    most = -(-most // _REGISTER_UNIT) * _REGISTER_UNIT
    block = directives.get("reqntid") or directives.get("maxntid")
    if block is None and "maxnreg" in directives:
        return most
    warps = -(-math.prod(block or geometry.block) // WARP) * max(1, directives.get("minnctapersm", (1,))[0])
    fits = REGISTER_FILE // (warps * WARP) // _REGISTER_UNIT * _REGISTER_UNIT
    return min(most, fits) or most  # a .minnctapersm that cannot be is ignored


def check_registers(code: Entry, geometry: Geometry) -> None:
    """Raise LaunchError if a block's threads, with as many registers as the directives allow each, do not fit on an SM.

    How many ptxas will take is not known here: a kernel that stays below a limit which does not fit is refused too.
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
