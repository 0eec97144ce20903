"""Shared by the kernels of warpgroups for sm_90a: sizes, registers, shared memory, the maps of 16-bit tensors.

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
"""Of the GPU that stands for the architecture; a plan may be made for another."""
MAX_SHARED_BYTES = 227 * 1024
"""That a block of sm_90 may have (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""
_SM_REGISTERS, _SM_SHARED_BYTES, _RESERVED_BYTES = 64 * 1024, 228 * 1024, 1024
"""Of an SM; and what of its shared memory the system keeps for each block."""
WARPGROUP_M = 64
"""Query rows of a consumer."""
WARP_M = 16
PANEL_COLUMNS = 64

LIMITS = MISSION_LIMITS.but(
    registers=168, shared_bytes=MAX_SHARED_BYTES, reason="at launch; consumers then take up to 240 registers"
)

_CONSUMER_REGISTERS = {1: 232, 2: 240, 3: 160}
"""Of a thread, by the consumers of a block, for head dimensions up to 128; at 256 a lone consumer has 240."""
_OTHER_REGISTERS = 32
"""Of these, for what is neither an accumulator nor a weight."""


def block_threads(block_m: int, groups: int = 1) -> int:
    """Threads of a block: the producer's warpgroup, and one for each 64 of its ``block_m`` query rows in each group."""
    return 128 * (1 + block_m // WARPGROUP_M * groups)


def blocks_per_sm(head_dim: int, block_m: int, shared_bytes: int) -> int:
    """Blocks of ``shared_bytes`` dynamic shared memory that an SM holds at once, with the registers at launch."""
    registers = 168 if block_m == 2 * WARPGROUP_M or head_dim == 256 else 128
    by_registers = _SM_REGISTERS // (registers * block_threads(block_m))
    return min(by_registers, _SM_SHARED_BYTES // (shared_bytes + _RESERVED_BYTES))


def shared_bytes(
    head_dim: int, block_m: int, block_n: int, stages: int, *, element_bytes: int = 2, o_apart: bool = False
) -> int:
    """Dynamic shared memory of a block in bytes, as ``SharedStorage`` has it, without what an epilogue merges.

    The places of O, which Q takes at first unless they are apart; tiles of K and V of ``element_bytes`` an element; and
    8 bytes for each mbarrier: of Q, and of K and V in each stage, full and empty.
    """
    rows = 2 * block_m * (2 if o_apart else 1) + element_bytes * stages * 2 * block_n
    return rows * head_dim + 8 * (1 + 4 * stages)


def merged_bytes(head_dim: int, block_m: int, split: int, groups: int = 1) -> int:
    """Shared memory of a block in bytes for the partial results of ``split`` blocks of a cluster and of its ``groups``.

    A warp's partial results are 16 bytes a lane for each eight columns of O, and for the softmax; one mbarrier counts
    those of a cluster.
    """
    warps = block_m // WARP_M
    partials = ((split - 1) * max(1, warps // split) + (groups - 1) * warps) * 32 * 16 * (head_dim // 8 + 1)
    return partials + (8 if split > 1 else 0)


def reject_crowded(needed: int, head_dim: int, block_m: int, block_n: int, groups: int = 1) -> str | None:
    """None if a consumer's thread has the registers that accumulators and weights need, otherwise the reason.

    Parameters
    ----------
    needed : int
        Registers that they take at ``head_dim`` and ``block_n`` keys a tile.
    groups : int
        Of consumers that share the rows of a block.
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
    """[heads, rows, head_dim] as [heads, panels, rows, 64]: boxes of all panels of some rows, one behind the other.

    Elements have 16 bits, and ``heads`` are those of all batches. Where ``packed`` heads share a tile, it is
    [heads / packed, panels, rows, packed, 64], and of the ``box_rows`` as many are one row's of these heads.
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
