"""Seeded input arrays beside Q, K and V: lengths, masks, slopes and sinks.

The arrays do not weaken the probe of a kind of inputs: where all scores must be equal, an additive mask holds only 0
and -inf, and the sinks are 0; where one key must dominate, no bias outweighs it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.inputs.source import F64, Source, dtype_of

__all__ = ["extra_arrays"]

_SEEN = 0.75
"""Share of the keys that are visible under a boolean mask."""
_FINITE = 0.8
"""Share of the entries of an additive mask that are not -inf."""
_GENTLE = 8.0
"""Largest bias where one key must dominate."""


def extra_arrays(kind: str, source: Source) -> dict[str, npt.NDArray[Any]]:
    """The arrays of :attr:`sdpalab.problem.Problem.array_shapes`, by name, for a kind of inputs.

    Lengths are those of the problem. Each row sees at least the key at its own position, or the last key; in
    ``hidden_rows`` every third row sees none. Slopes are those of the ALiBi paper, 2 ** (-8 (h + 1) / H), times a
    random number from 0.5 to 1.5. Sinks are near the logarithm of the number of keys, so their weight is about that of
    all keys together. O and the log-sum-exp of the forward pass, and scales of a cache, are not made here.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, (shape, dtype) in source.problem.array_shapes.items():
        if name in ("o", "lse", "k_scale", "v_scale"):
            continue
        if name in ("kv_lengths", "q_lengths"):
            values: F64 = np.array(getattr(source.problem, name), np.float64)
        elif name == "attn_mask":
            values = _mask(kind, source, shape, boolean=dtype == "uint8")
        elif name == "alibi_slopes":
            values = _slopes(kind, source, shape)
        elif name == "do":
            values = _output_gradient(kind, source, shape)
        else:
            values = _sinks(kind, source, shape)
        arrays[name] = np.ascontiguousarray(values.astype(dtype_of(dtype)))
    return arrays


def _mask(kind: str, source: Source, shape: tuple[int, ...], *, boolean: bool) -> F64:
    seq_q, seq_kv = shape[2:]
    ahead = seq_kv - seq_q if source.problem.bottom_right else 0
    seen = source.uniform("attn_mask", shape) < (_SEEN if boolean else _FINITE)
    seen[:, :, np.arange(seq_q), np.clip(np.arange(seq_q) + ahead, 0, seq_kv - 1)] = True
    if kind == "hidden_rows":
        seen[:, :, 1::3] = False
    if boolean:
        return seen.astype(np.float64)
    bias = source.normal("attn_mask values", shape) * (not kind.startswith("uniform"))
    hidden = -65504.0 if source.problem.dtype == "float16" else float(np.finfo(np.float32).min)
    return np.where(seen, bias, hidden / 2.0 if kind == "finite_mask" else -math.inf)


def _slopes(kind: str, source: Source, shape: tuple[int, ...]) -> F64:
    heads, problem = shape[0], source.problem
    slopes: F64 = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads) * (0.5 + source.uniform("alibi_slopes", shape))
    if kind in ("needle", "needle_e4m3", "forbidden"):
        slopes = np.minimum(slopes, _GENTLE / max(problem.seq_q, problem.seq_kv))
    return slopes


def _output_gradient(kind: str, source: Source, shape: tuple[int, ...]) -> F64:
    """dO: standard normal; small integers where the gradients are exact; 0 in two of three rows where rows are to be
    told apart (``onehot``); small beside large V and Q (``huge``), and large beside a tiny V outside float16, so that
    float32 and the type represent the gradients."""
    if kind.startswith("uniform"):
        return np.floor(source.uniform("do", shape) * 17.0) - 8.0
    values = source.normal("do", shape)
    half = source.problem.dtype == "float16"
    if kind == "huge" and half:
        values = values * 2.0**-14
    if kind == "tiny" and not half:
        values = values * 2.0**20
    if kind == "onehot":
        values = values * (np.arange(shape[2]) % 3 == 1)[:, None]
    return values


def _sinks(kind: str, source: Source, shape: tuple[int, ...]) -> F64:
    if kind.startswith("uniform"):
        return np.zeros(shape)
    level = -120.0 if kind == "negative" else 0.0
    return level + math.log(source.problem.seq_kv) + source.normal("sinks", shape)
