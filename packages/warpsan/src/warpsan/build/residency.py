"""Theoretical occupancy: how many blocks of a kernel fit on one SM, and which resource limits them.

Limits: CUDA C++ Programming Guide 13.0, "Compute Capabilities", the table of technical specifications.
Rounding: ``cuda_occupancy.h`` of the CUDA toolkit (registers go to warps in units of 256 and are split over four
partitions of an SM; shared memory goes to blocks in units of 128 bytes, 1 KiB of each block's is the system's).
Barriers, of which a block has up to 16, are not counted.
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
    """What one SM holds: warps, blocks, and bytes of shared memory (a block can have 1 KiB less than all of it)."""

    warps: int
    blocks: int
    shared_bytes: int

    @property
    def shared_bytes_per_block(self) -> int:
        """Most shared memory that a block can ask for, bytes (with opt-in)."""
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
"""By compute capability times ten. 8.8 has no column in the guide; NVIDIA's CCCL gives it the figures of 8.6."""


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of one SM.

    Attributes
    ----------
    blocks_per_sm, warps_per_sm : int
        0 if not even one block fits.
    max_warps : int
        Warps that the SM could hold.
    limiter : str
        The resource that limits the blocks: ``registers``, ``shared memory``, ``warps`` or ``blocks``.
    """

    blocks_per_sm: int
    warps_per_sm: int
    max_warps: int
    limiter: str

    @property
    def fraction(self) -> float:
        """Resident warps over those that the SM could hold, 0 to 1."""
        return self.warps_per_sm / self.max_warps


def sm_limits(arch: str) -> SmLimits:
    """Limits of an architecture such as ``sm_89`` or ``sm_90a``; raises UserError if they are unknown."""
    return SM_LIMITS[capability(arch)]


def capability(arch: str) -> int:
    """Compute capability times ten, such as 90 for ``sm_90a``; raises UserError if its limits are not known."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None or int(match[1]) not in SM_LIMITS:
        known = ", ".join(f"sm_{number}" for number in SM_LIMITS)
        raise UserError(f"no limits are known for architecture {arch!r}; known are {known}")
    return int(match[1])


def occupancy(arch: str, threads_per_block: int, registers: int, shared_bytes: int) -> Occupancy:
    """Blocks of a kernel that one SM holds at once.

    Parameters
    ----------
    arch : str
    threads_per_block : int
    registers : int
        A thread's, as the cubin says.
    shared_bytes : int
        A block's, static and dynamic.

    Raises
    ------
    UserError
        If the architecture is not known, or a block cannot have so many threads.
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
    # The launch check takes a block's warps to be spread over all partitions evenly, so rounds their number up.
    if registers > MAX_REGISTERS_PER_THREAD or per_warp * _round_up(warps, PARTITIONS) > REGISTERS_PER_SM:
        return 0
    return REGISTERS_PER_SM // PARTITIONS // per_warp * PARTITIONS // warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
