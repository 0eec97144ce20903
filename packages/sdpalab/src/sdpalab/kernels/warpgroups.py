"""Sizes, registers, shared memory and tensor maps of 16-bit tensors, for the warpgroup kernels (sm_90a).

The device side is ``include/mainloop/warpgroups.cuh``.
"""

from __future__ import annotations

from sdpalab.kernels.kernel import MISSION_LIMITS
from sdpalab.kernels.plan import TiledMap
from warpsan.gpus import default_sms

__all__ = [
    "LIMITS",
    "MAX_SHARED_BYTES",
    "SMS",
    "WARPGROUP_M",
    "WARP_M",
    "block_threads",
    "blocks_per_sm",
    "merged_bytes",
    "reject_crowded",
    "shared_bytes",
    "tiled_map",
]

SMS = default_sms("sm_90a")
"""SMs of the architecture's reference GPU; a plan may be for another GPU."""
MAX_SHARED_BYTES = 227 * 1024
"""Largest shared memory of a block of sm_90 (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability")."""
_SM_REGISTERS, _SM_SHARED_BYTES, _RESERVED_BYTES = 64 * 1024, 228 * 1024, 1024
"""Registers and shared memory of an SM, and shared memory that the system reserves per block."""
WARPGROUP_M = 64
"""Query rows of a consumer."""
WARP_M = 16
PANEL_COLUMNS = 64

LIMITS = MISSION_LIMITS.but(
    registers=168, shared_bytes=MAX_SHARED_BYTES, reason="at launch; consumers then take up to 240 registers"
)

_CONSUMER_REGISTERS = {1: 232, 2: 240, 3: 160}
"""Registers of a consumer thread by the number of consumers, up to head_dim 128; a lone consumer has 240 at 256."""
_OTHER_REGISTERS = 32
"""Registers of a consumer thread for values other than accumulators and weights."""


def block_threads(block_m: int, groups: int = 1) -> int:
    """Threads of a block: the producer's warpgroup, and one warpgroup per 64 of ``block_m`` query rows in each
    group."""
    return 128 * (1 + block_m // WARPGROUP_M * groups)


def blocks_per_sm(head_dim: int, block_m: int, shared_bytes: int) -> int:
    """Blocks with ``shared_bytes`` of dynamic shared memory that an SM holds at once, by the registers at launch."""
    registers = 168 if block_m == 2 * WARPGROUP_M or head_dim == 256 else 128
    by_registers = _SM_REGISTERS // (registers * block_threads(block_m))
    return min(by_registers, _SM_SHARED_BYTES // (shared_bytes + _RESERVED_BYTES))


def shared_bytes(
    head_dim: int, block_m: int, block_n: int, stages: int, *, element_bytes: int = 2, o_apart: bool = False
) -> int:
    """Dynamic shared memory of a block in bytes, as in ``SharedStorage``, without the buffers of a merging epilogue.

    It has the buffers of O, shared with Q unless they are separate; tiles of K and V with ``element_bytes`` bytes an
    element; and 8 bytes per mbarrier: of Q, and of K and V in each stage, full and empty.
    """
    rows = 2 * block_m * (2 if o_apart else 1) + element_bytes * stages * 2 * block_n
    return rows * head_dim + 8 * (1 + 4 * stages)


def merged_bytes(head_dim: int, block_m: int, split: int, groups: int = 1) -> int:
    """Bytes of shared memory for partial results of ``split`` blocks of a cluster and of ``groups`` in a block.

    A warp's partial results take 16 bytes a lane for each eight columns of O, and for the softmax; one mbarrier counts
    the bytes from a cluster.
    """
    warps = block_m // WARP_M
    partials = ((split - 1) * max(1, warps // split) + (groups - 1) * warps) * 32 * 16 * (head_dim // 8 + 1)
    return partials + (8 if split > 1 else 0)


def reject_crowded(needed: int, head_dim: int, block_m: int, block_n: int, groups: int = 1) -> str | None:
    """None if a consumer thread has enough registers for accumulators and weights, otherwise the reason.

    Parameters
    ----------
    needed : int
        Registers of accumulators and weights at ``head_dim`` and ``block_n`` keys a tile.
    groups : int
        Groups of consumers that share the rows of a block.
    """
    consumers = 2 if head_dim == 256 and block_m * groups == WARPGROUP_M else block_m // WARPGROUP_M * groups
    have = _CONSUMER_REGISTERS[consumers] - _OTHER_REGISTERS
    if needed <= have:
        return None
    beside = f" KEY_GROUPS={groups}" if groups > 1 else ""
    return (
        f"head_dim {head_dim} and BLOCK_N={block_n} take {needed} registers for accumulators and weights, and "
        f"with BLOCK_M={block_m}{beside} a thread has {have} for them"
    )


def tiled_map(buffer: str, heads: int, rows: int, head_dim: int, box_rows: int, packed: int = 1) -> TiledMap:
    """Map of [heads, rows, head_dim] as [heads, panels, rows, 64]; a box has all panels of some rows.

    Elements have 16 bits, and ``heads`` counts the heads of all batches. With ``packed`` heads in a tile, the map is
    [heads / packed, panels, rows, packed, 64], and ``box_rows`` counts the rows of all packed heads.
    """
    panels = head_dim // PANEL_COLUMNS
    if packed > 1:
        return TiledMap(
            buffer,
            box=(1, panels, box_rows // packed, packed, PANEL_COLUMNS),
            swizzle="128B",
            shape=(heads // packed, panels, rows, packed, PANEL_COLUMNS),
            strides=(packed * rows * head_dim * 2, PANEL_COLUMNS * 2, head_dim * 2, rows * head_dim * 2, 2),
        )
    return TiledMap(
        buffer,
        box=(1, panels, box_rows, PANEL_COLUMNS),
        swizzle="128B",
        shape=(heads, panels, rows, PANEL_COLUMNS),
        strides=(rows * head_dim * 2, PANEL_COLUMNS * 2, head_dim * 2, 2),
    )
