"""Tensor maps that a kernel changes: tensormap.replace, and the copy of one with a fence (PTX ISA, "tensormap.replace",
"tensormap.cp_fenceproxy"). The race check looks for missing fences."""

from __future__ import annotations

__all__ = ["ALIGNMENT", "BYTE_STRIDES", "CHUNK"]

ALIGNMENT, CHUNK = 64, 16
"""Of a tensor map in memory; bytes that are copied at a time."""
BYTE_STRIDES = 8.5
"""The PTX version (that of CUDA 12.5) from which on a stride is given in bytes, and not in units of 16."""
