"""Cache control: prefetches, priorities and policies (PTX ISA, "prefetch", "applypriority", "discard",
"createpolicy"). There are no caches here, so only ``discard`` changes a value: it leaves undefined values.
"""

from __future__ import annotations

__all__ = ["LINE", "POLICY", "PRIORITIES"]

LINE, _CHUNK = 128, 16
"""Bytes that discard and applypriority name, and of the words that are written."""
PRIORITIES = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
POLICY = 0x5D9A_1AB0_CAC4_E000
"""What a policy is here; its bits mean nothing to a program."""
