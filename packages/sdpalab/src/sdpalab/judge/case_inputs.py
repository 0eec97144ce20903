"""Inputs of a case, made once for all kernels that are judged on it in this process.

The gradients need O and the log-sum-exp of the forward pass as inputs. They are the float64 results, rounded once.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import replace

import numpy as np

from sdpalab.inputs import Inputs, make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.rule.log_sum_exp import log_sum_exp_float64
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.problem import Problem

__all__ = ["MOST_BYTES", "case_inputs", "with_forward"]

MOST_BYTES = 64 << 20
"""Most bytes of arrays that are cached; the least recently used are dropped first. The mission shape (1x8x512x64) takes
1.5 MiB."""

_cache: OrderedDict[tuple[str, str, int], Inputs] = OrderedDict()
_lock = threading.Lock()


def case_inputs(case: CaseSpec) -> Inputs:
    """Result of :func:`sdpalab.inputs.make_inputs` for a case, as copies that the caller may modify."""
    seed = case.seed or 0
    key = repr(case.problem), case.inputs, seed  # equal problems may differ here: a scale of 0.0 and of -0.0
    with _lock:
        known = _cache.get(key)
    if known is None:
        known = with_forward(case.problem, make_inputs(case.problem, case.inputs, seed))
    with _lock:
        _cache[key] = known
        _cache.move_to_end(key)
        while len(_cache) > 1 and sum(map(_nbytes, _cache.values())) > MOST_BYTES:
            _cache.popitem(last=False)
    return replace(known, **{name: array.copy() for name, array in known.arrays.items()})


def with_forward(problem: Problem, inputs: Inputs) -> Inputs:
    """The inputs with O and the log-sum-exp of the forward pass, for a backward problem; otherwise ``inputs``.

    Rows that are not judged hold 0, and padding holds NaN.
    """
    if not problem.backward:
        return inputs
    clean, scoring = inputs.padded(0.0), problem.scoring_with(inputs.arrays)
    with np.errstate(over="ignore"):
        out = np.nan_to_num(attention_float64(*clean.qkv, **scoring)).astype(inputs.q.dtype)
        lse, _ = log_sum_exp_float64(*clean.qkv, numerics=UNDECLARED, **scoring)
    lse = np.where(np.isnan(lse), 0.0, lse).astype(np.float32)
    return replace(inputs, o=out, lse=lse).padded(math.nan)


def _nbytes(inputs: Inputs) -> int:
    return sum(array.nbytes for array in inputs.arrays.values())
