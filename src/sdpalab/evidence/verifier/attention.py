"""Attention from raw arrays: in float64, and as a kernel declares its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import rounded
from sdpalab.evidence.verifier.weights import ROWS, Operands, bias_of, divisors, seen_of, weights_of

__all__ = [
    "intended_of",
    "reference_of",
    "terms_of",
]


def reference_of(inputs: Operands) -> Any:
    """Attention in float64, [B, H, Sq, D]; NaN in rows that are not judged."""
    values = inputs.doubles("v")
    exact = np.empty(inputs.singles["q"].shape, np.float64)
    for block in inputs.blocks():
        exact[block.place] = block.weights @ values[block.head] / divisors(block.total)
    if not np.isfinite(exact).all():
        raise ValueError("the scores are too large for float64")
    return exact if inputs.judged.all() else np.where(inputs.judged[..., None], exact, np.nan)


def terms_of(numerics: Mapping[str, Any]) -> Any:
    """Terms that are added to a float16 accumulator before it is rounded; 8 where the record names no number."""
    terms = numerics.get("accumulate_terms")
    return 8 if terms is None else terms


def half_product(left: Any, right: Any, terms: int) -> Any:
    """left @ right, the sum rounded to float16 after every so many terms."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float16)
    for start in range(0, left.shape[1], terms):
        total = (total + left[:, start : start + terms] @ right[start : start + terms]).astype(np.float16)
    return total.astype(np.float64)


def to_bits(values: Any, bits: int) -> Any:
    """``values`` [...] in float64, rounded to so many significant bits."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.rint(fraction * 2.0**bits), exponent - bits)


def approximate_tanh(values: Any) -> Any:
    """tanh with a relative error of up to 2**-11."""
    return to_bits(np.tanh(values), 11)


def single_of(inputs: Operands, before: bool, tanh: Callable[[Any], Any]) -> Any:
    """Attention in float32: each product and each addition rounded, along D and over the keys in ascending order;
    weights are 2**x rounded to 22 bits. ``before``: they are divided by their sum before they are multiplied by V."""
    q, k, v = inputs.singles.values()
    problem, out = inputs.problem, np.empty(q.shape, np.float32)
    for b, h, start in np.ndindex(problem["batch"], problem["heads"], -(-problem["seq_q"] // ROWS)):
        place = b, h, slice(start * ROWS, min((start + 1) * ROWS, problem["seq_q"]))
        head = (b, h // (problem["heads"] // problem["kv_heads"]))
        rows, keys, values = q[place], k[head], v[head]
        scores = np.zeros((len(rows), len(keys)), np.float32)
        for d in range(problem["head_dim"]):
            scores = scores + rows[:, d : d + 1] * keys[:, d]
        scores = scores * np.float32(problem["scale"])
        if problem.get("softcap"):
            cap = np.float32(problem["softcap"])
            scores = tanh((scores / cap).astype(np.float64)).astype(np.float32) * cap
        if problem.get("alibi_slopes") or problem.get("attn_mask", "").startswith("float"):
            scores = scores + bias_of(place, problem).astype(np.float32)
        scores = np.where(seen_of(place, problem), scores, np.float32(-np.inf))
        logit = np.float32(problem["arrays"]["sinks"][h] if problem.get("sinks") else -np.inf)
        top = np.maximum(scores.max(axis=1, keepdims=True), logit)
        top = np.where(top == -np.inf, np.float32(0), top)
        exponents = [(x - top) * np.float32(math.log2(math.e)) for x in (scores, logit)]
        weights, total = (to_bits(np.exp2(x.astype(np.float64)), 22).astype(np.float32) for x in exponents)
        for j in range(len(keys)):
            total = total + weights[:, j : j + 1]
        total = np.where(total == 0, np.float32(1), total)
        summed = np.zeros((len(rows), values.shape[1]), np.float32)
        for j in range(len(keys)):
            weight = weights[:, j : j + 1]
            summed = summed + (weight / total if before else weight) * values[j]
        out[place] = summed if before else summed / total
    return out


def intended_of(inputs: Operands, numerics: Mapping[str, Any]) -> Any:
    """Attention as ``numerics`` declares it: weights rounded to the type of P, sums to float32, the result to its type.

    ``normalise`` is ``before`` (the weights are divided by their sum before they are rounded) or ``after``.
    """
    problem, quantised = inputs.problem, numerics["quantised"]
    p_type = problem["dtype"] if numerics["probabilities"] == "problem" else numerics["probabilities"]
    tanh = approximate_tanh if numerics.get("tanh") == "approx" else np.tanh
    tf32 = problem["dtype"] == "float32" and numerics.get("products") == "tf32"
    half, terms, before = numerics["accumulate"] == "float16", terms_of(numerics), numerics["normalise"] == "before"
    if problem["dtype"] == p_type == "float32" and quantised is None and not tf32 and not half:
        return single_of(inputs, before, tanh)
    rows = None if quantised is None else quantised["rows"]
    q, k, v = (inputs.doubles(name, rows) for name in "qkv")
    if tf32:
        q, k, v = (to_bits(x, 11) for x in (q, k, v))
    factor = np.float32(numerics["probability_scale"])
    product = (lambda left, right: half_product(left, right, terms)) if half else np.matmul
    own = half or tf32 or tanh is approximate_tanh
    out = np.empty(q.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in weights_of(q, k, problem, product, tanh) if own else inputs.blocks(rows):
            p, total = block.singles
            if before:
                p, total = p / total, np.float32(1)
            weights = rounded(p if factor == 1 else p * factor, p_type).astype(np.float64)
            summed = product(to_bits(weights, 11) if tf32 else weights, v[block.head])
            out[block.place] = rounded(summed.astype(np.float32) / (total * factor), problem["dtype"])
    return out
