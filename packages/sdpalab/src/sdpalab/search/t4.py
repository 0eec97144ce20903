"""Export to the T4 format of the autotuning community: results of configurations with invalidity and times.

Source: the results schema 1.0.0 that Kernel Tuner ships (``kernel_tuner/schema/T4/1.0.0/results-schema.json``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sdpalab.search.log import Head
from sdpalab.search.outcome import Standing, Trial

__all__ = ["SCHEMA_VERSION", "to_t4"]

SCHEMA_VERSION = "1.0.0"

INVALIDITY = {
    Standing.PASSED: "correct",
    Standing.BUILD_FAILED: "compile",
    Standing.STATIC_LIMITS: "constraints",
    Standing.HAZARD: "correctness",
    Standing.INCORRECT: "correctness",
    Standing.TIMED_OUT: "timeout",
    Standing.NO_COST: "runtime",
}
"""T4's name of each standing. SCREENED and LOST have no result; a DUPLICATE has that of another configuration."""


def to_t4(head: Head, trials: Iterable[Trial]) -> dict[str, Any]:
    """The T4 results of a search, as plain JSON values.

    Objective names contain the GPU and the kind of time, so a modelled time cannot be taken for a measured one.
    """
    kind = head.clock if head.clock == "modelled" else f"measured {head.clock}"
    objectives = [f"{gpu} {kind} time" for gpu in head.gpus]
    results = []
    for trial in trials:
        if trial.standing not in INVALIDITY:
            continue
        passed = trial.standing is Standing.PASSED
        measurements = [
            {"name": f"{gpu} {kind} time", "value": trial.costs_us[gpu], "unit": "us"} for gpu in head.gpus if passed
        ]
        results.append(
            {
                "timestamp": head.when,
                "configuration": dict(trial.config),
                "objectives": objectives,
                "times": {},
                "invalidity": INVALIDITY[trial.standing],
                "correctness": 1 if passed else 0,
                "measurements": measurements,
            }
        )
    return {"schema_version": SCHEMA_VERSION, "results": results}
