"""Check of a problem in exact arithmetic: recomputes attention in the ring and compares the kernel's words with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import arrays_of, paths_of, problem_of
from sdpalab.evidence.verifier.facts import ALGEBRA_STATUSES
from sdpalab.evidence.verifier.findings import Findings
from sdpalab.judge.algebra.attention import expected_factor
from sdpalab.judge.algebra.gradients import compare, drawn
from warpsan.numerics import RINGS

__all__ = ["check_algebra"]


def check_algebra(bundle: Findings, where: str, case: Mapping[str, Any], built: set[str]) -> str:
    """Checks the record of a problem in exact arithmetic; its status."""
    bundle.same_keys(where, "algebra", case)
    bundle.same_keys(where, "problem", case["problem"])
    status = str(case["status"])
    if status not in ALGEBRA_STATUSES:
        bundle.find(where, f"{status!r} is not a status of a problem in exact arithmetic")
    if status not in ("EQUAL", "UNEQUAL"):
        if not case["reason"] or case["unequal"] or case["digests"]:
            bundle.find(where, f"{status} without a reason, or with outputs")
        return status
    if set(case["ptx_sha256"]) - built or not case["ptx_sha256"]:
        bundle.find(where, "it does not say that it ran the PTX in this bundle")
    paths = paths_of(case["digests"])
    bundle.used.update(paths.values())
    problem = problem_of(case["problem"])
    needed = (*"qkv", *(("do", "o", "lse") if problem.backward else ()), *problem.outputs)
    if missing := [name for name in needed if paths.get(name, "") not in bundle.members]:
        bundle.find(where, f"{status} without the array {missing[0]} that shows it")
        return status
    ring = next((ring for ring in RINGS.values() if ring.prime == case["prime"]), None)
    if ring is None:
        bundle.find(where, f"there is no ring of p = {case['prime']}")
        return status
    words = arrays_of(problem, case["digests"], bundle.members, paths)
    draws = drawn(problem, case["seed"])
    codes = {name: ring.elements(each) for name, each in draws.items() if each.dtype == np.uint16}
    for name, drawn_codes in codes.items():
        if not np.array_equal(ring.decoded(words[name])[0], drawn_codes):
            bundle.find(where, f"{name} is not what the codes of seed {case['seed']} are")
    derived = asdict(compare(ring, problem, codes, words))
    derived = {name: value for name, value in derived.items() if name not in ("first", "output")}
    for name, value in {**derived, "expected_factor": expected_factor(ring, problem)}.items():
        if case[name] != value:
            bundle.find(where, f"{name} is {case[name]} in the record and {value} from the arrays")
    if (status == "UNEQUAL") is not bool(case["unequal"] or case["lse_unequal"]):
        bundle.find(where, f"{status} with {case['unequal']} elements that differ")
    return status
