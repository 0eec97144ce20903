"""Facts about forms of instructions: types of operations, orders of fragments, modes, clocks (PTX ISA, by opcode)."""

from __future__ import annotations

from warpsan.ptx.ir import Entry, Instruction

__all__ = [
    "A_ORDER",
    "B_ORDER",
    "CLOCKS",
    "DESCRIPTOR_BYTES",
    "FP8_PAIRS",
    "LINE",
    "MAP_FIELDS",
    "OPERATIONS",
    "POLICY",
    "PRIORITIES",
    "PRMT_MODES",
    "SHARED_REDUCTIONS",
    "SUMMED",
    "UPDATE_TYPES",
    "VECTOR_UPDATES",
    "WITHOUT_RESULT",
    "of_kernel",
]

# ---- arithmetic and moves --------------------------------------------------------------------------------------------

PRMT_MODES: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""Source of every result byte, lowest first, for each mode and value of the selector's two low bits."""
FP8_PAIRS = frozenset({"e4m3x2", "e5m2x2"})
"""Types of two 8-bit floating-point numbers."""
CLOCKS = {
    "%clock": (32, 0),
    "%clock_hi": (32, 32),
    "%clock64": (64, 0),
    "%globaltimer": (64, 0),
    "%globaltimer_lo": (32, 0),
    "%globaltimer_hi": (32, 32),
}
"""Bits of each clock, and its shift in the counter."""

# ---- matrices --------------------------------------------------------------------------------------------------------

A_ORDER = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Blocks (row block, k block) of an A fragment in register order."""
B_ORDER = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Blocks (n block, k block) of a B fragment, kept as its transpose, in register order."""
SUMMED = 16
"""Number of products per float32 sum that is added to other sums. Products are added in ascending order from zero,
rounded to nearest each time, so the bits depend on no processor.
"""

# ---- atomic operations -----------------------------------------------------------------------------------------------

UPDATE_TYPES: dict[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
}
"""Types of each atomic operation."""
VECTOR_UPDATES: dict[str, tuple[str, ...]] = {
    "add": ("f32", "f16", "f16x2", "bf16", "bf16x2"),
    **dict.fromkeys(("min", "max"), ("f16", "f16x2", "bf16", "bf16x2")),
}
"""Types of the elements of each atomic operation on a vector."""
WITHOUT_RESULT = ("add", "min", "max", "and", "or", "xor", "inc", "dec")

SHARED_REDUCTIONS = {
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("and", "or", "xor"), ("b32",)),
    "add": ("u32", "s32", "u64"),
}
"""Types of each asynchronous reduction operation in shared memory (PTX ISA, "red.async")."""
OPERATIONS = ("add", "min", "max", "and", "or", "xor")
"""Operations of cp.reduce into global memory."""

DESCRIPTOR_BYTES = 128
"""Size of a tensor map, and of the operand of its fence."""
MAP_FIELDS = {
    "global_address": (16, 8, 1),
    "global_dim": (64, 4, 5),
    "global_stride": (24, 8, 4),
    "box_dim": (84, 2, 5),
    "element_stride": (94, 1, 5),
    "rank": (99, 1, 1),
    "elemtype": (100, 1, 1),
    "interleave_layout": (101, 1, 1),
    "swizzle_mode": (102, 1, 1),
    "fill_mode": (103, 1, 1),
}
"""Fields of ``tensormap.replace``: offset, bytes per element, and number of elements; strides exclude the innermost
axis.
"""

# ---- cache control ---------------------------------------------------------------------------------------------------

LINE = 128
"""Size of the operand of discard and applypriority, in bytes."""
PRIORITIES = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
POLICY = 0x5D9A_1AB0_CAC4_E000
"""Value of a cache policy; programs cannot interpret its bits."""

# ---- parameters ------------------------------------------------------------------------------------------------------


def of_kernel(entry: Entry, instruction: Instruction) -> bool:
    """Whether an access to the parameter space refers to the kernel's own parameters (PTX ISA, "ld": in a kernel
    ``.param`` is ``.param::entry``, in a device function ``.param::func``).
    """
    if "param::entry" in instruction.mods:
        return True
    return "param::func" not in instruction.mods and instruction.pc >= entry.start
