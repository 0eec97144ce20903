"""``record_calls``: write the attention problems of a program to a trace for ``sdpalab prove --shapes-from``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sdpalab.errors import UserError
from sdpalab.problem import Problem, ProblemError
from sdpalab.torch_api.calls import AttentionCall

if TYPE_CHECKING:
    from sdpalab.evidence.store.trace import TracedCalls

__all__ = ["note", "record_calls", "recording"]

_traces: list[dict[tuple[str, str], TracedCalls]] = []


@contextmanager
def record_calls(path: str | Path) -> Iterator[None]:
    """Context that writes a trace of the calls of the lab's attention functions, of all threads, when it ends.

    Calls with tensors on a CPU count as well. Lengths of packed sequences are read from device memory, so a CUDA graph
    cannot be captured within. Calls that no kernel could compute, such as those with a mask, are left out.

    Parameters
    ----------
    path : str or Path
        JSON file to write (:mod:`sdpalab.evidence.store.trace`).

    Raises
    ------
    UserError
        If there was no call, or the file cannot be written.
    """
    from sdpalab.evidence.store.trace import SCHEMA, Trace

    calls: dict[tuple[str, str], TracedCalls] = {}
    _traces.append(calls)
    try:
        yield
    finally:
        _traces[:] = [other for other in _traces if other is not calls]
    if not calls:
        raise UserError(f"{path} is not written: no attention of sdpalab ran that a kernel could compute")
    trace = Trace(SCHEMA, tuple(sorted(calls.values(), key=lambda each: -each.count)))
    try:
        Path(path).write_text(json.dumps(trace.to_dict(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def recording() -> bool:
    """Whether calls are recorded."""
    return bool(_traces)


def note(call: AttentionCall, *, gradients: bool = False) -> None:
    """Record a call, and the problem of its gradients if they are required."""
    from sdpalab.evidence.store.trace import TracedCalls, function_of, sizes_of

    for task in ("forward", "backward")[: 1 + gradients]:
        try:
            problem = _with_lengths(call, call.problem(task))
        except ProblemError:
            continue
        function = function_of(problem)
        key = function, sizes_of(problem)
        for calls in _traces:
            known = calls.get(key) or TracedCalls(function, 1, problem)  # type: ignore[arg-type]
            larger = max(known.problem, problem, key=lambda each: sum(each.kv_lengths or (each.seq_kv,)))
            calls[key] = replace(known, count=known.count + (key in calls), problem=larger)


def _with_lengths(call: AttentionCall, problem: Problem) -> Problem:
    """The problem with the lengths of the call."""
    lengths: dict[str, tuple[int, ...]] = {}
    if call.cu_seqlens_q is not None:
        lengths["q_lengths"] = tuple((call.cu_seqlens_q[1:] - call.cu_seqlens_q[:-1]).tolist())
    if call.seqused_k is not None:
        lengths["kv_lengths"] = tuple(min(each, problem.seq_kv) for each in call.seqused_k.tolist())
    elif call.cu_seqlens_k is not None:
        lengths["kv_lengths"] = tuple((call.cu_seqlens_k[1:] - call.cu_seqlens_k[:-1]).tolist())
    return problem.with_(**lengths) if lengths else problem
