"""A case in a bundle: all figures of its record are derived again from its raw arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from sdpalab.evidence.verifier.arrays import array_form, decode, input_names, is_at, near, normal_inputs
from sdpalab.evidence.verifier.attention import KnownWeights, intended_of, reference_of
from sdpalab.evidence.verifier.facts import LIMITED, STATUSES, UNDECLARED
from sdpalab.evidence.verifier.findings import Findings
from sdpalab.evidence.verifier.rule import (
    errors_of,
    fixed_elements,
    has_rule_for,
    keeps_original_contract,
    limits_of,
    lse_errors_of,
    lse_of,
    row_errors,
    status_of,
)

__all__ = ["Cases"]


class Cases:
    """Checks the cases of one bundle; what the cases on the same inputs have in common is derived once."""

    def __init__(self, bundle: Findings) -> None:
        self.bundle = bundle
        self.references: dict[str, Any] = {}
        self.oracles: dict[str, tuple[Any, Any, dict[str, float]]] = {}
        self.lse_oracles: dict[str, tuple[Any, Any]] = {}

    def check(self, where: str, case: Mapping[str, Any], built: set[str]) -> bool:
        """Checks one case; True if it was re-derived from raw arrays."""
        self.bundle.same_keys(where, "case", case)
        self.bundle.same_keys(where, "problem", case["problem"])
        if case["status"] not in STATUSES or case["status"] == "INTERRUPTED":
            self.bundle.find(where, f"{case['status']!r} is not a status of a case")
        if case["status"] != "PASSED" and not case["reason"]:
            self.bundle.find(where, f"{case['status']} without a reason")
        contract = keeps_original_contract(case["errors"]) if case["errors"] else None
        if case["original_contract"] is not contract:
            self.bundle.find(
                where, f"by its errors the original contract is {contract}, not {case['original_contract']}"
            )
        ran = case["run"].get("ptx_sha256", [])
        simulated = built or str(case["run"].get("device", "")).startswith("simulator")
        if set(ran) - built or (case["status"] == "PASSED" and simulated and not ran):
            self.bundle.find(where, "it does not say that it ran the PTX in this bundle")
        paths = {name: f"arrays/{digest}.raw" for name, digest in case["digests"].items()}
        self.bundle.used.update(paths.values())
        problem = case["problem"]
        needed = [*input_names(problem), "o", "yardstick"]
        missing = [name for name in needed if paths.get(name, "") not in self.bundle.members]
        if "o_second" in case["digests"] and case["status"] == "PASSED":
            self.bundle.find(where, "PASSED, and its two runs gave different outputs")
        if case["status"] not in ("PASSED", "INCORRECT", "NOT_FINITE"):
            return False
        if missing:
            self.bundle.find(where, f"{case['status']} without the array {missing[0]} that shows it")
            return False
        arrays = {name: decode(self.bundle.members[path], *array_form(name, problem)) for name, path in paths.items()}
        if problem.get("kv_lengths") and arrays["kv_lengths"].tolist() != list(problem["kv_lengths"]):
            self.bundle.find(where, "its array of lengths is not that of its problem")
        exact, fixed, limits = self.oracle_of(where, case, arrays)
        errors = errors_of(arrays["o"], exact, problem["dtype"], fixed)
        scale = float(np.nanmax(np.abs(exact)))
        difference = np.abs(arrays["o"] - exact)
        rows = row_errors(arrays["o"], exact, problem["dtype"])
        for name, place, values in (("max_abs", "max_abs_index", difference), ("worst_row_rel_l2", "worst_row", rows)):
            if is_at(values, case["errors"][place], errors[name], scale):
                errors[place] = case["errors"][place]
        recorded = dict(case["errors"])
        lse = self.check_lse(where, case, arrays, recorded.pop("lse", None))
        self.compare(where, "errors", recorded, errors, scale)
        self.compare(where, "limits", case["limits"], limits, scale)
        status = status_of(errors, limits, lse)
        if case["status"] != status:
            self.bundle.find(where, f"the record says {case['status']}, and its arrays say {status}")
        return True

    def check_lse(
        self, where: str, case: Mapping[str, Any], arrays: Mapping[str, Any], recorded: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Compares the figures of a log-sum-exp with the array; returns the derived figures, or None without one."""
        if (recorded is None) is not ("lse" not in arrays):
            self.bundle.find(where, "a log-sum-exp without figures, or figures without one")
        if recorded is None or "lse" not in arrays:
            return None
        numerics, problem = case["run"]["numerics"], case["problem"]
        inputs = {name: case["digests"][name] for name in input_names(problem)}
        key = json.dumps([inputs, problem, numerics], sort_keys=True)
        if key not in self.lse_oracles:
            of_arrays = {**problem, "arrays": arrays}
            self.lse_oracles[key] = lse_of(arrays["q"], arrays["k"], arrays["v"], of_arrays, numerics)
        reference, limit = self.lse_oracles[key]
        derived = lse_errors_of(arrays["lse"], reference, limit, list(recorded["row"]))
        # The sums behind the reference are larger than the limit by as much as float32 is coarse.
        self.compare(where, "errors lse", recorded, derived, 2.0**23 * float(np.nanmax(limit)))
        return derived

    def oracle_of(
        self, where: str, case: Mapping[str, Any], arrays: Mapping[str, Any]
    ) -> tuple[Any, Any, dict[str, float]]:
        """Float64 reference of a case, the elements that are fixed, and the limits; kept for reuse."""
        problem, numerics = case["problem"], case["run"]["numerics"]
        inputs = [case["digests"][name] for name in input_names(problem)]
        of_inputs = json.dumps([inputs, problem, case["inputs"], case["seed"]], sort_keys=True)
        key = json.dumps([of_inputs, case["digests"]["yardstick"], numerics], sort_keys=True)
        if key in self.oracles:
            return self.oracles[key]
        q, k, v = (arrays[name] for name in "qkv")
        if case["inputs"] == "normal" and of_inputs not in self.references:
            for name, generated in normal_inputs(problem, case["seed"]):
                # another math library may round one element in 10**12 the other way
                if np.count_nonzero(arrays[name] != generated) > 1 + generated.size // 10**6:
                    self.bundle.find(where, f"{name} is not what normal inputs of seed {case['seed']} are")
        declares = case["run"].get("ptx_sha256")
        if not (has_rule_for(numerics) if declares else numerics == UNDECLARED):
            self.bundle.find(where, f"there is no rule for the numerics that it declares, {numerics}")
        problem = {**problem, "arrays": arrays}
        dtype, order = problem["dtype"], numerics["normalise"]
        weights = KnownWeights(q, k, problem)
        if of_inputs not in self.references:
            self.references[of_inputs] = reference_of(q, k, v, problem, weights)
        exact = self.references[of_inputs]
        open_orders = ("after", "before") if order == "either" else (order,)
        declared = [{**numerics, "normalise": each} for each in open_orders]
        own = [errors_of(intended_of(q, k, v, problem, each, weights), exact, dtype) for each in declared]
        worst = {name: max(errors[name] for errors in own) for name in LIMITED}
        limits = limits_of(exact, errors_of(arrays["yardstick"], exact, dtype), worst, dtype)
        asked, narrow = numerics["accumulate"] == "float32", numerics["quantised"]
        cap_error = 2.0**-11 * problem.get("softcap", 0.0) if numerics.get("tanh") == "approx" else 0.0
        block = narrow and narrow["rows"]
        fixed = fixed_elements(q, k, v, problem, order == "after", cap_error, block, weights) if asked else None
        self.oracles[key] = exact, fixed, limits
        return self.oracles[key]

    def compare(
        self, where: str, what: str, recorded: Mapping[str, Any], derived: Mapping[str, Any], scale: float
    ) -> None:
        """Compares the figures of a record with those re-derived; ``scale`` is the largest element of the reference."""
        if set(recorded) != set(derived):
            self.bundle.find(where, f"the fields of its {what} are not those of the format")
            return
        for name, value in derived.items():
            unit = scale if name.endswith("max_abs") or name == "error" else 1.0
            if recorded[name] != value and not (isinstance(value, float) and near(recorded[name], value, unit)):
                self.bundle.find(where, f"{what} {name} is {recorded[name]} in the record and {value} from the arrays")
