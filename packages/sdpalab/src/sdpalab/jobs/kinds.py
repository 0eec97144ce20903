"""Job kinds, the functions that run them, and the types of their values.

Functions and types are names, not imports: a job is data, and only its worker loads the code. A job cannot name another
function, and a worker cannot return another type; values are JSON and never unpickled.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from sdpalab.errors import UserError

__all__ = ["KINDS", "VALUES", "Value", "checked_value", "function_of"]

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
    "evaluate": "sdpalab.evaluation:evaluate_job",
    "submission": "sdpalab.service.request:submission_job",
    "machine": "sdpalab.service.request:machine_job",
    "sanitize": "sdpalab.jobs.sanitizing:sanitize_job",
    "bug": "sdpalab.campaigns.self_test:bug_job",
    "deletion": "sdpalab.campaigns.deletion:target_job",
}
"""``module:function`` by kind; each function takes plain JSON values and returns plain JSON values."""

VALUES: Mapping[str, str] = {
    "build": "sdpalab.search.values:Built",
    "count": "sdpalab.search.values:Counted",
    "compare": "sdpalab.search.values:Compared",
    "prove": "sdpalab.search.values:Proven",
    "race": "sdpalab.search.values:Raced",
    "full": "sdpalab.search.values:Full",
    "held_out": "sdpalab.search.values:HeldOut",
    "judge": "sdpalab.jobs.judging:JudgedCases",
    "evaluate": "sdpalab.evaluation:Evaluation",
    "submission": "sdpalab.service.request:SubmissionValue",
    "machine": "sdpalab.service.request:MachineValue",
    "sanitize": "sdpalab.jobs.sanitizing:SanitizedProblem",
    "bug": "sdpalab.campaigns.self_test:BugResult",
    "deletion": "sdpalab.campaigns.deletion_sites:Deletions",
}
"""``module:type`` by kind: the type of a job's value, for :func:`checked_value`."""


def function_of(kind: str) -> Callable[[Value], Value]:
    """The function that runs jobs of ``kind``; raises UserError if the kind is unknown."""
    if kind not in KINDS:
        raise UserError(f"there is no kind of job {kind!r}: the kinds are {', '.join(KINDS)}")
    function: Callable[[Value], Value] = _named(KINDS[kind])
    return function


def checked_value(kind: str, value: Any) -> Value:
    """Check the value of a job from a worker, or the reason of an invalid job (``bad_input``); returns plain JSON.

    Raises
    ------
    ValueError
        If it is neither, with the location.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        (_REFUSAL if "bad_input" in value else _type_of(kind)).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or kind}: {first['msg']}") from None
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    plain: Value = json.loads(text)
    return plain


_REFUSAL: TypeAdapter[Any] = TypeAdapter(dict[Literal["bad_input"], str])


@cache
def _type_of(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_named(VALUES[kind]))


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
