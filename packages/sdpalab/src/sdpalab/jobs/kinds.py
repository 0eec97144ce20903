"""What a job can be: for each kind the function that runs it, in whatever process that is, and the type of its value.

Both are named, not imported: a job is data, and only the worker that gets it loads the code. No other function can be
named by a job, and no other value is taken from a worker: values travel as JSON and are never unpickled.
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
    "sanitize": "sdpalab.jobs.sanitizing:SanitizedProblem",
    "bug": "sdpalab.campaigns.self_test:BugResult",
    "deletion": "sdpalab.campaigns.deletion_sites:Deletions",
}
"""``module:type`` by kind: what the value of a job is, for :func:`checked_value`."""


def function_of(kind: str) -> Callable[[Value], Value]:
    """The function that runs jobs of ``kind``; raises UserError if there is no such kind."""
    if kind not in KINDS:
        raise UserError(f"there is no kind of job {kind!r}: the kinds are {', '.join(KINDS)}")
    function: Callable[[Value], Value] = _named(KINDS[kind])
    return function


def checked_value(kind: str, value: Any) -> Value:
    """The value of a job as a worker sent it, or why the job cannot be asked for (``bad_input``), as plain JSON.

    Raises
    ------
    ValueError
        If it is neither; says where.
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
