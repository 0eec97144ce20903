"""Theoretical occupancy: resident blocks per SM, and the limiting resource.

Limits: CUDA C++ Programming Guide 13.0, "Compute Capabilities", the table of technical specifications. Rounding:
``cuda_occupancy.h`` of the CUDA toolkit (registers in units of 256 per warp, over four partitions per SM; shared memory
in units of 128 bytes per block, including 1 KiB for the system). The barrier limit (16 per block) is not included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warpsan.errors import UserError

__all__ = ["RESERVED_SHARED", "SM_LIMITS", "Occupancy", "SmLimits", "capability", "occupancy", "sm_limits"]

WARP = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTERS_PER_SM = 64 * 1024
PARTITIONS = 4
REGISTER_UNIT = 256
SHARED_UNIT = 128
RESERVED_SHARED = 1024
KIB = 1024


@dataclass(frozen=True)
class SmLimits:
    """Limits of one SM: warps, blocks, and bytes of shared memory (a block can have 1 KiB less)."""

    warps: int
    blocks: int
    shared_bytes: int

    @property
    def shared_bytes_per_block(self) -> int:
        """Maximum shared memory per block in bytes (with opt-in)."""
        return self.shared_bytes - RESERVED_SHARED


SM_LIMITS: dict[int, SmLimits] = {
    80: SmLimits(64, 32, 164 * KIB),
    86: SmLimits(48, 16, 100 * KIB),
    87: SmLimits(48, 16, 164 * KIB),
    88: SmLimits(48, 16, 100 * KIB),
    89: SmLimits(48, 24, 100 * KIB),
    90: SmLimits(64, 32, 228 * KIB),
    100: SmLimits(64, 32, 228 * KIB),
    103: SmLimits(64, 32, 228 * KIB),
    110: SmLimits(48, 24, 228 * KIB),
    120: SmLimits(48, 24, 100 * KIB),
    121: SmLimits(48, 24, 100 * KIB),
}
"""Limits by ten times the compute capability. The guide has no column for 8.8; NVIDIA's CCCL gives it the values of
8.6.
"""


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of one SM.

    Attributes
    ----------
    blocks_per_sm, warps_per_sm : int
        0 if no block fits.
    max_warps : int
        Maximum warps per SM.
    limiter : str
        Limiting resource: ``registers``, ``shared memory``, ``warps`` or ``blocks``.
    """

    blocks_per_sm: int
    warps_per_sm: int
    max_warps: int
    limiter: str

    @property
    def fraction(self) -> float:
        """Resident warps over maximum warps, 0 to 1."""
        return self.warps_per_sm / self.max_warps


def sm_limits(arch: str) -> SmLimits:
    """Limits of an architecture such as ``sm_89`` or ``sm_90a``; raises UserError for an unknown one."""
    return SM_LIMITS[capability(arch)]


def capability(arch: str) -> int:
    """Ten times the compute capability, such as 90 for ``sm_90a``; raises UserError if its limits are unknown."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None or int(match[1]) not in SM_LIMITS:
        known = ", ".join(f"sm_{number}" for number in SM_LIMITS)
        raise UserError(f"unknown limits of architecture {arch!r}; known are {known}")
    return int(match[1])


def occupancy(arch: str, threads_per_block: int, registers: int, shared_bytes: int) -> Occupancy:
    """Occupancy of one SM by blocks of a kernel.

    Parameters
    ----------
    arch : str
    threads_per_block : int
    registers : int
        Registers per thread, from the cubin.
    shared_bytes : int
        Shared memory per block, static and dynamic.

    Raises
    ------
    UserError
        If the architecture is unknown, or the block has too many threads.
    """
    limits = sm_limits(arch)
    if not 1 <= threads_per_block <= MAX_THREADS_PER_BLOCK:
        raise UserError(f"a block has 1 to {MAX_THREADS_PER_BLOCK} threads, not {threads_per_block}")
    warps = -(-threads_per_block // WARP)
    per_block = _round_up(shared_bytes + RESERVED_SHARED, SHARED_UNIT)
    fits = {
        "registers": _blocks_by_registers(warps, registers),
        "shared memory": 0 if shared_bytes > limits.shared_bytes_per_block else limits.shared_bytes // per_block,
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    limiter = min(fits, key=lambda name: fits[name])
    blocks = fits[limiter]
    return Occupancy(blocks, blocks * warps, limits.warps, limiter)


def _blocks_by_registers(warps: int, registers: int) -> int:
    per_warp = max(_round_up(registers * WARP, REGISTER_UNIT), REGISTER_UNIT)
    # The launch check spreads the warps of a block evenly over all partitions, so it rounds their number up.
    if registers > MAX_REGISTERS_PER_THREAD or per_warp * _round_up(warps, PARTITIONS) > REGISTERS_PER_SM:
        return 0
    return REGISTERS_PER_SM // PARTITIONS // per_warp * PARTITIONS // warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
