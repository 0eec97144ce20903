"""Inputs of a case, made once for all kernels that are judged on it in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

from sdpalab.inputs import Inputs, make_inputs, with_forward
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.judge.strides import expandable

__all__ = ["MOST_BYTES", "case_inputs"]

MOST_BYTES = 64 << 20
"""Most bytes of arrays that are cached; the least recently used are dropped first. The mission shape (1x8x512x64) takes
1.5 MiB."""

_cache: OrderedDict[tuple[str, str, int, int | None], Inputs] = OrderedDict()
_lock = threading.Lock()


def case_inputs(case: CaseSpec) -> Inputs:
    """Result of :func:`sdpalab.inputs.make_inputs` for a case, as copies that the caller may modify; K and V of which
    an axis is expanded have the same values along it."""
    seed = case.seed or 0
    key = (
        repr(case.problem),
        case.inputs,
        seed,
        case.strides.shared_axis,
    )  # equal problems may differ here: a scale of 0.0 and of -0.0
    with _lock:
        known = _cache.get(key)
    if known is None:
        known = make_inputs(case.problem, case.inputs, seed)
        if case.strides.shared_axis is not None:
            known = replace(known, k=expandable(known.k, case.strides), v=expandable(known.v, case.strides))
            known = with_forward(case.problem, known) if case.problem.backward else known
    with _lock:
        _cache[key] = known
        _cache.move_to_end(key)
        while len(_cache) > 1 and sum(map(_nbytes, _cache.values())) > MOST_BYTES:
            _cache.popitem(last=False)
    return replace(known, **{name: array.copy() for name, array in known.arrays.items()})


def _nbytes(inputs: Inputs) -> int:
    return sum(array.nbytes for array in inputs.arrays.values())
