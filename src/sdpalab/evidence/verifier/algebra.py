"""A problem in exact arithmetic: attention is computed in the ring again, and the kernel's words held against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import Problem, array_form
from sdpalab.evidence.verifier.facts import ALGEBRA_LN_2, ALGEBRA_PRIMES, ALGEBRA_STATUSES
from sdpalab.evidence.verifier.findings import Findings
from sdpalab.evidence.verifier.weights import seen_of

__all__ = ["check_algebra", "drawn_codes", "ring_outputs"]


def check_algebra(bundle: Findings, where: str, case: Mapping[str, Any], built: set[str]) -> str:
    """Checks the record of a problem in exact arithmetic; its status."""
    bundle.same_keys(where, "algebra", case)
    bundle.same_keys(where, "problem", case["problem"])
    status, prime = str(case["status"]), int(case["prime"])
    if status not in ALGEBRA_STATUSES:
        bundle.find(where, f"{status!r} is not a status of a problem in exact arithmetic")
    if status not in ("EQUAL", "UNEQUAL"):
        if not case["reason"] or case["unequal"] or case["digests"]:
            bundle.find(where, f"{status} without a reason, or with outputs")
        return status
    if set(case["ptx_sha256"]) - built or not case["ptx_sha256"]:
        bundle.find(where, "it does not say that it ran the PTX in this bundle")
    paths = {name: f"arrays/{digest}.raw" for name, digest in case["digests"].items()}
    bundle.used.update(paths.values())
    if missing := [name for name in "qkvo" if paths.get(name, "") not in bundle.members]:
        bundle.find(where, f"{status} without the array {missing[0]} that shows it")
        return status
    if prime not in ALGEBRA_PRIMES or math.gcd(case["factor"], prime - 1) != 1:
        bundle.find(where, f"there is no ring of p = {prime} with factor {case['factor']}")
        return status
    words = {
        name: np.frombuffer(bundle.members[path], "<u4" if name == "lse" else "<u2")
        .reshape(array_form(name, case["problem"])[0])
        .astype(np.int64)
        for name, path in paths.items()
    }
    for name, codes in drawn_codes(case["problem"], case["seed"], prime):
        if not np.array_equal(words[name], codes):
            bundle.find(where, f"{name} is not what the codes of seed {case['seed']} are")
    out, sums, logarithms = ring_outputs(words["q"], words["k"], words["v"], case["problem"], prime, case["factor"])
    left_out = (sums == 0) & _seen(case["problem"]).any(axis=3)
    wrong = ((words["o"] % prime != out) | (words["o"] >= prime * (prime - 1))) & ~left_out[..., None]
    derived = {"compared": int((~left_out).sum()) * out.shape[3], "unequal": int(wrong.sum())}
    derived["left_out"] = int(left_out.sum())
    for name, value in derived.items():
        if case[name] != value:
            bundle.find(where, f"{name} is {case[name]} in the record and {value} from the arrays")
    if ("lse" in words) is (case["lse_unequal"] is None):
        bundle.find(where, "a log-sum-exp without a figure, or a figure without one")
    elif "lse" in words:
        units = [each for each in range(prime - 1) if math.gcd(each, prime - 1) == 1]
        if case["factor"] == case["expected_factor"]:  # then the unit is known: log2 e is the factor over the scale
            units = [pow(ALGEBRA_LN_2[prime], -1, prime - 1)]
        known = (words["lse"] < prime * (prime - 1)) | (sums == 0)
        differ = [int(((words["lse"] * u % (prime - 1) != logarithms) & (sums != 0)).sum()) for u in units]
        if (min(differ) == 0 and known.all()) is bool(case["lse_unequal"]):
            bundle.find(where, f"lse_unequal is {case['lse_unequal']}, and the arrays say something else")
    if (status == "UNEQUAL") is not bool(case["unequal"] or case["lse_unequal"]):
        bundle.find(where, f"{status} with {case['unequal']} elements that differ")
    return status


def drawn_codes(problem: Problem, seed: int, prime: int) -> list[tuple[str, Any]]:
    """The codes of Q, K and V of a seed.

    Where they are 8 bits wide, all have inverses, and the largest differs from head to head and by 32 rows.
    """
    modulus, rng = prime * (prime - 1), np.random.default_rng(seed)
    draws = [(name, rng.integers(0, 1 << 16, array_form(name, problem)[0])) for name in "qkv"]
    if modulus > 256:
        return [(name, drawn % modulus) for name, drawn in draws]
    units = np.array([code for code in range(modulus) if math.gcd(code, modulus) == 1])
    codes = []
    for name, drawn in draws:
        b, h, s, _ = np.ogrid[tuple(slice(size) for size in drawn.shape)]
        most = (3 * b + 7 * h + 5 * (s // 32)) % (len(units) // 2) + len(units) // 2
        codes.append((name, units[drawn % most]))
    return codes


def ring_outputs(q: Any, k: Any, v: Any, problem: Problem, prime: int, factor: int) -> tuple[Any, Any, Any]:
    """O mod p, sums of weights mod p, and their logarithms mod p - 1, of attention in the ring of codes."""
    order = prime - 1
    # A root is primitive if none of its powers below p - 1 is 1.
    root = next(g for g in range(2, prime) if all(pow(g, n, prime) != 1 for n in range(1, order)))
    powers = np.array([pow(root, n, prime) for n in range(order)])
    logarithm = np.zeros(prime, np.int64)
    logarithm[powers] = np.arange(order)
    inverse = np.array([0] + [pow(n, -1, prime) for n in range(1, prime)])
    group = problem["heads"] // problem["kv_heads"]
    k, v = (np.repeat(each, group, axis=1) for each in (k, v))
    scores = _product(q % order, (k % order).swapaxes(2, 3)) % order * factor % order
    weights = powers[scores] * _seen(problem)
    sums = weights.sum(axis=3) % prime
    out = _product(weights, v % prime) % prime * inverse[sums][..., None] % prime
    return out, sums, logarithm[sums]


def _product(left: Any, right: Any) -> Any:
    """left @ right of integers: float64 has all sums exactly, up to 2**53."""
    return np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(np.int64)


def _seen(problem: Problem) -> Any:
    """Whether each row sees each key [B, 1, Sq, Skv]; such a problem has no mask of its own."""
    rows = slice(0, problem["seq_q"])
    return np.stack([seen_of((b, 0, rows), problem) for b in range(problem["batch"])])[:, None]
