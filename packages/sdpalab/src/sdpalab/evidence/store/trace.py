"""Traces: the attention problems of a recorded program, such as a server's mix of prefill and decode.

``sdpalab.record_calls`` writes a trace, and ``sdpalab prove --shapes-from`` reads it. The schema is
``docs/schemas/trace.json``; ``examples/trace.json`` is an example.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from sdpalab.errors import UserError
from sdpalab.problem import Problem
from sdpalab.record import RECORD, JsonRecord, ProblemField, dataclass

__all__ = ["SCHEMA", "Trace", "TracedCalls", "function_of", "is_trace", "read_trace", "sizes_of", "trace_schema"]

SCHEMA: Literal["sdpalab/trace/1"] = "sdpalab/trace/1"
"""The ``schema`` of a trace; the number increases when a field changes its meaning or is removed."""

Function = Literal[
    "scaled_dot_product_attention",
    "attention_with_lse",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]


@dataclass(frozen=True, config=RECORD)
class TracedCalls(JsonRecord):
    """Calls of a function with one problem, or with packed or paged problems of the same rounded sizes.

    Attributes
    ----------
    function : str
        Function of ``sdpalab``.
    count : int
        Number of calls, at least 1.
    problem : Problem
        Of packed or paged problems the one with the most keys.
    """

    function: Function
    count: int
    problem: ProblemField

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be 1 or more, not {self.count}")
        packed = self.function == "flash_attn_varlen_func"
        if packed != self.problem.varlen or (self.function != "flash_attn_with_kvcache" and self._pages_alone):
            raise ValueError(f"{self.function} has no problems of layout {self.problem.layout}")

    @property
    def _pages_alone(self) -> bool:
        return bool(self.problem.paged) and not self.problem.varlen


@dataclass(frozen=True, config=RECORD)
class Trace(JsonRecord):
    """The calls of a program.

    Attributes
    ----------
    schema : str
        :data:`SCHEMA`.
    calls : tuple of TracedCalls
        At least one.
    """

    schema: Literal["sdpalab/trace/1"]
    calls: tuple[TracedCalls, ...]

    def __post_init__(self) -> None:
        if not self.calls:
            raise ValueError("calls is empty: the program ran no attention of sdpalab")


def is_trace(data: Any) -> bool:
    """Whether JSON values are a trace, right or wrong, and not a problem."""
    return isinstance(data, Mapping) and ("calls" in data or "schema" in data)


def read_trace(data: Mapping[str, Any], where: str) -> Trace:
    """The trace of JSON values.

    Raises
    ------
    UserError
        With the first wrong field; ``where`` is the file.
    """
    try:
        return Trace.from_dict(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{where}: the trace{place and ', at ' + place.lstrip('.')}: {message}") from None


def trace_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a trace."""
    schema = TypeAdapter(Trace).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **schema}


def function_of(problem: Problem) -> str:
    """Name of the lab's torch function that such a problem is a call of."""
    if problem.attn_mask or problem.sinks or (problem.layout == "dense" and {*problem.features} & _LENGTHS):
        return "no function of torch"
    if problem.varlen:
        return "flash_attn_varlen_func"
    if problem.paged:
        return "flash_attn_with_kvcache"
    further = {*problem.features} - {"backward", "head_dim_v"}
    return "flash_attn_func" if further else "scaled_dot_product_attention"


_LENGTHS = {"q_lengths", "kv_lengths"}


def sizes_of(problem: Problem) -> str:
    """A key of problems whose times stand for each other: one problem, or packed or paged ones of like sizes.

    Packed and paged problems have the same key if their batch, and the rows of the arrays that a call has for them,
    round up to the same powers of two: their lengths change with each call, and a plan depends on them in no other way.
    """
    from sdpalab.packing import TAIL

    fields = problem.to_dict()
    if problem.layout != "dense":
        sizes = {name: fields.pop(name) for name in ("batch", "seq_q", "seq_kv")}
        rows, keys = (sum(fields.pop(name, None) or (0,)) + TAIL for name in ("q_lengths", "kv_lengths"))
        sizes |= {"seq_q": rows} if problem.varlen else {}
        sizes |= {} if problem.paged else {"seq_kv": keys}
        fields |= {name: (size - 1).bit_length() for name, size in sizes.items()}
    return json.dumps(fields, sort_keys=True)
