"""The raw arrays of a case: from bytes to numbers and their roundings; when two figures are the same; normal inputs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = [
    "FLOAT8",
    "FLOAT8_MAX",
    "Problem",
    "array_form",
    "decode",
    "input_names",
    "is_at",
    "near",
    "normal_inputs",
    "padding_of",
    "rounded",
]

TOLERANCE = 1e-6
"""Relative difference of figures re-derived on another machine: the order of float64 sums, nothing else."""
NOISE = 1e-12
"""What those sums may differ by beside the largest element, where the figure itself is next to nothing."""
FLOAT8, FLOAT8_MAX = "float8_e4m3fn", 448.0
Problem = Mapping[str, Any]
"""The fields of a problem, and for a computation under ``arrays`` its inputs beside Q, K and V, by name."""
BYTES = {"float32": 4, "int32": 4, "uint8": 1, "float16": 2, "bfloat16": 2}


def decode(raw: bytes, shape: tuple[int, ...], dtype: str) -> Any:
    """Array of ``shape`` from little-endian bytes: float32 of any float type, or integers as they are.

    Raises
    ------
    ValueError
        If their number is wrong.
    """
    size = BYTES[dtype] * math.prod(shape)
    if len(raw) != size:
        raise ValueError(f"{len(raw)} bytes, and {'x'.join(map(str, shape))} {dtype} has {size}")
    if dtype in ("float32", "int32", "uint8"):
        return np.frombuffer(raw, {"float32": "<f4", "int32": "<i4", "uint8": "u1"}[dtype]).reshape(shape)
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
            # Up from the middle of 65504 and 65536 the result is infinite, which no quantum says.
            regular = single.min(initial=0) > -65520 and single.max(initial=0) < 65520
            return _on_grid(single, 11, -14) if regular else single.astype(np.float16).astype(np.float32)
        if dtype == FLOAT8:
            return _on_grid(np.clip(single, -FLOAT8_MAX, FLOAT8_MAX), 4, -6)
    bits = single.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(single), nearest.view(np.float32), single)


def _on_grid(single: Any, bits: int, least: int) -> Any:
    """float32 values with so many significant bits; below 2**least the step is that of 2**least."""
    powers = np.asarray(single.view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
    quantum = np.asarray(np.maximum(powers, np.float32(2.0**least)))
    quantum *= np.float32(2.0 ** (1 - bits))
    steps = np.asarray(single / quantum)
    np.rint(steps, out=steps)
    steps *= quantum
    return steps


def input_names(problem: Problem) -> list[str]:
    """The input arrays of a problem: Q, K, V, and those that its further fields stand for."""
    further = ("kv_lengths", "attn_mask", "alibi_slopes", "sinks")
    return [*"qkv", *(name for name in further if problem.get(name))]


def array_form(name: str, problem: Problem) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the array ``name`` of a case; what is no input has Q's, and lse one float32 a row."""
    batch, heads, seq_q, seq_kv = (problem[size] for size in ("batch", "heads", "seq_q", "seq_kv"))
    if name == "attn_mask":
        kind, _, axes = problem["attn_mask"].partition(":")
        per_batch, _, per_head = axes.partition(",")
        first = (batch if per_batch == "B" else 1, heads if per_head == "H" else 1)
        return (*first, seq_q, seq_kv), "uint8" if kind == "bool" else problem["dtype"]
    rows = (problem["kv_heads"], seq_kv) if name in ("k", "v") else (heads, seq_q)
    return {
        "lse": ((batch, heads, seq_q), "float32"),
        "kv_lengths": ((batch,), "int32"),
        "alibi_slopes": ((heads,), "float32"),
        "sinks": ((heads,), "float32"),
    }.get(name, ((batch, *rows, problem["head_dim"]), problem["dtype"]))


def padding_of(problem: Problem) -> Any:
    """Which keys are behind the length of their batch entry, [B, Skv]."""
    lengths = problem.get("kv_lengths") or [problem["seq_kv"]] * problem["batch"]
    return np.arange(problem["seq_kv"]) >= np.array(lengths)[:, None]


def normal_inputs(problem: Problem, seed: int, *, padded: bool = True) -> Iterator[tuple[str, Any]]:
    """The lab's ``normal`` inputs: Philox bits keyed by a digest of kind, problem, seed and name, then Box-Muller in
    float64 for Q, K, V and what is added; a mask lets a row see the key at its own place, or the last. ``padded``: keys
    behind a length are NaN, as they are since format 8."""
    label = json.dumps(["normal", problem, seed], sort_keys=True)

    def uniform(name: str, count: int) -> Any:
        key = hashlib.sha256(f"{name}:{label}".encode()).digest()[:16]
        raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)
        raw >>= np.uint64(11)
        numbers = raw.astype(np.float64)
        numbers += 0.5
        numbers *= 2.0**-53
        return numbers

    def normal(name: str, shape: tuple[int, ...]) -> Any:
        half = (math.prod(shape) + 1) // 2
        first, angle = uniform(name, 2 * half).reshape(2, half)
        angle *= 2 * math.pi
        pair = np.stack((np.cos(angle), np.sin(angle)))
        pair *= np.sqrt(-2 * np.log(first))
        return pair.reshape(-1)[: math.prod(shape)].reshape(shape)

    for name in input_names(problem):
        shape, dtype = array_form(name, problem)
        if name == "kv_lengths":
            yield name, np.array(problem["kv_lengths"], np.int32)
            continue
        if name == "attn_mask":
            draws = uniform(name, math.prod(shape)).reshape(shape)
            seen = draws < (0.75 if dtype == "uint8" else 0.8)
            rows = np.arange(shape[2])
            seen[:, :, rows, np.minimum(rows, shape[3] - 1)] = True
            values = seen if dtype == "uint8" else np.where(seen, normal(f"{name} values", shape), -np.inf)
        elif name == "alibi_slopes":
            values = 2.0 ** (-8 * np.arange(1, shape[0] + 1) / shape[0]) * (0.5 + uniform(name, shape[0]))
        elif name == "sinks":
            values = math.log(problem["seq_kv"]) + normal(name, shape)
        else:
            values = normal(name, shape)
            if padded and name in ("k", "v"):
                values = np.where(padding_of(problem)[:, None, :, None], np.nan, values)
        if dtype in ("uint8", "float16"):
            values = values.astype(np.uint8 if dtype == "uint8" else np.float16)
            yield name, values if dtype == "uint8" else values.astype(np.float32)
        else:
            yield name, rounded(values, dtype)


def near(recorded: float, derived: float, scale: float) -> bool:
    return math.isclose(recorded, derived, rel_tol=TOLERANCE, abs_tol=NOISE * scale)


def is_at(values: Any, place: list[int], largest: float, scale: float) -> bool:
    """True if ``place`` is one where the largest value is: of several alike, another machine may name another."""
    inside = len(place) == values.ndim and all(0 <= i < n for i, n in zip(place, values.shape, strict=True))
    return inside and near(float(values[tuple(place)]), largest, scale)
