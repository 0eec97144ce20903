"""What a job can be: for each kind the function that runs it, in whatever room that is.

The functions are named, not imported: a job is data, and only the worker that gets it loads the code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["KINDS", "Value", "function_of"]

Value = Mapping[str, Any]
"""Plain JSON values."""

KINDS: Mapping[str, str] = {
    "build": "sdpalab.search.gates:build_gate",
    "count": "sdpalab.search.gates:count_gate",
    "compare": "sdpalab.search.gates:compare_gate",
    "prove": "sdpalab.search.gates:prove_gate",
    "race": "sdpalab.search.gates:race_gate",
    "full": "sdpalab.search.gates:full_gate",
    "held_out": "sdpalab.search.gates:held_out_gate",
    "judge": "sdpalab.jobs.judging:judge_job",
    "sanitize": "sdpalab.jobs.sanitizing:sanitize_job",
    "bug": "sdpalab.campaigns.self_test:bug_job",
    "diagnosis": "sdpalab.campaigns.diagnosis:bug_job",
    "deletion": "sdpalab.campaigns.deletion:target_job",
}
"""``module:function`` by kind; each function takes plain JSON values and returns plain JSON values."""


def function_of(kind: str) -> Callable[[Value], Value]:
    """The function that runs jobs of ``kind``: of :data:`KINDS`, or itself ``module:function``."""
    module, _, name = KINDS.get(kind, kind).partition(":")
    function: Callable[[Value], Value] = getattr(importlib.import_module(module), name)
    return function
