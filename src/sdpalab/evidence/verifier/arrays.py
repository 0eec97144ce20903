"""The raw arrays of a case: from bytes to numbers and their roundings; when two figures are the same; normal inputs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["FLOAT8", "FLOAT8_MAX", "Problem", "array_shape", "decode", "is_at", "near", "normal_inputs", "rounded"]

TOLERANCE = 1e-6
"""Relative difference of figures re-derived on another machine: the order of float64 sums, nothing else."""
NOISE = 1e-12
"""What those sums may differ by beside the largest element, where the figure itself is next to nothing."""
FLOAT8, FLOAT8_MAX = "float8_e4m3fn", 448.0
Problem = Mapping[str, Any]


def decode(raw: bytes, shape: tuple[int, ...], dtype: str) -> Any:
    """float32 array of ``shape`` from little-endian bytes of float32, float16 or bfloat16.

    Raises
    ------
    ValueError
        If their number is wrong.
    """
    size = (4 if dtype == "float32" else 2) * math.prod(shape)
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes, and {'x'.join(map(str, shape))} {dtype} has {size}")
    if dtype == "float32":
        return np.frombuffer(raw, "<f4").reshape(shape)
    if dtype == "float16":
        return np.frombuffer(raw, "<f2").astype(np.float32).reshape(shape)
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)


def rounded(values: Any, dtype: str) -> Any:
    """float32 ``values`` rounded to nearest even in ``dtype``, and back as float32; float8 has no more than 448."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(values, np.float32)
        if dtype == "float32":
            return single
        if dtype == "float16":
            return single.astype(np.float16).astype(np.float32)
    if dtype == FLOAT8:
        # Four significant bits down to 2**-6, and below it multiples of 2**-9.
        quantum = np.exp2(np.maximum(np.frexp(single)[1] - 1, -6) - 3).astype(np.float32)
        return np.clip(np.rint(single / quantum) * quantum, -FLOAT8_MAX, FLOAT8_MAX)
    bits = single.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(single), nearest.view(np.float32), single)


def array_shape(name: str, problem: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of the array ``name`` of a case: k and v have the keys' shape, lse one number a row, all others q's."""
    heads, seq = ("kv_heads", "seq_kv") if name in ("k", "v") else ("heads", "seq_q")
    shape = (problem["batch"], problem[heads], problem[seq], problem["head_dim"])
    return shape[:3] if name == "lse" else shape


def normal_inputs(problem: Mapping[str, Any], seed: int) -> Iterator[tuple[str, Any]]:
    """The lab's ``normal`` inputs: Philox bits keyed by a digest of kind, problem, seed and name, then Box-Muller in
    float64."""
    label = json.dumps(["normal", problem, seed], sort_keys=True)
    for name in "qkv":
        shape = array_shape(name, problem)
        half = (math.prod(shape) + 1) // 2
        key = hashlib.sha256(f"{name}:{label}".encode()).digest()[:16]
        raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(2 * half)
        first, second = (((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53).reshape(2, half)
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * math.pi * second
        flat = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[: math.prod(shape)]
        if problem["dtype"] == "float16":
            yield name, flat.astype(np.float16).astype(np.float32).reshape(shape)
        else:
            yield name, rounded(flat, "bfloat16").reshape(shape)


def near(recorded: float, derived: float, scale: float) -> bool:
    return math.isclose(recorded, derived, rel_tol=TOLERANCE, abs_tol=NOISE * scale)


def is_at(values: Any, place: list[int], largest: float, scale: float) -> bool:
    """True if ``place`` is one where the largest value is: of several alike, another machine may name another."""
    inside = len(place) == values.ndim and all(0 <= i < n for i, n in zip(place, values.shape, strict=True))
    return inside and near(float(values[tuple(place)]), largest, scale)
