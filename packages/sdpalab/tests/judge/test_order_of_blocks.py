"""Outputs that depend on the order of the blocks: only declared sums in float32 may, and only by their rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sdpalab.errors import UserError
from sdpalab.inputs import make_inputs
from sdpalab.judge import CaseSpec, judge_candidate
from sdpalab.judge.rule.evaluate import Evidence, evaluate
from sdpalab.judge.rule.numerics import check_numerics
from sdpalab.judge.rule.references import references_of
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel, Launch, LaunchPlan, Numerics
from sdpalab.kernels.plan import Buffer
from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 64, 32, task="backward")
TICKETS = """
#include <cuda_fp16.h>
__global__ void ticket(__half* o, unsigned* count, int columns) {
    __shared__ unsigned mine;
    if (threadIdx.x == 0) {
        mine = atomicAdd(count, 1);
    }
    __syncthreads();
    for (int column = threadIdx.x; column < columns; column += blockDim.x) {
        o[blockIdx.x * columns + column] = __float2half(mine);
    }
}
"""


def tickets(problem: Problem, config: Any) -> LaunchPlan:
    count = Buffer("count", (1,), "int32", "workspace", fill=0)
    return LaunchPlan((count,), (Launch((problem.seq_q, 1, 1), (32, 1, 1), ("o", "count", problem.head_dim)),))


def test_the_second_run_has_its_blocks_in_another_order() -> None:
    kernel = CudaKernel("tickets", TICKETS, "ticket", tickets)
    [case] = judge_candidate(kernel, [CaseSpec("order", Problem(1, 1, 8, 32))], workers=1).cases
    assert case.status is Status.NONDETERMINISTIC
    assert "(b=0, h=0, i=0, d=0): 0.0 and 7.0" in case.reason


def judged(unordered: tuple[str, ...], name: str, relative: float) -> Evidence:
    """Evidence for right gradients, one of which differs between the runs by a share of its rows' magnitude."""
    inputs, numerics = make_inputs(PROBLEM), Numerics(unordered=unordered)
    expected = references_of(PROBLEM, inputs).expected(numerics)
    first = {each: one.yardstick for each, one in expected.items()}
    other = expected[name].magnitude[..., None] * relative  # type: ignore[index]
    second = {**first, name: (first[name].astype(np.float64) + other).astype(np.float16)}
    about = {"kind": "cuda", "device": "simulator", "config": "", "numerics": numerics.to_dict()}
    outputs = {
        f"{run}.{each}": one for run, all_of in (("first", first), ("second", second)) for each, one in all_of.items()
    }
    return evaluate(PROBLEM, inputs, about, {"status": None}, outputs)


@pytest.mark.parametrize(
    ("unordered", "name", "relative", "status"),
    [
        (("dq",), "dq", 2.0**-22, Status.PASSED),
        (("dq",), "dq", 2.0**-9, Status.NONDETERMINISTIC),
        (("dq",), "dk", 2.0**-13, Status.NONDETERMINISTIC),
        ((), "dq", 2.0**-13, Status.NONDETERMINISTIC),
    ],
)
def test_declared_sums_may_differ_by_their_rounding(
    unordered: tuple[str, ...], name: str, relative: float, status: Status
) -> None:
    assert judged(unordered, name, relative).status is status


def test_an_order_is_declared_for_outputs_only() -> None:
    assert Numerics.from_dict(Numerics(unordered=("dq", "dk")).to_dict()) == Numerics(unordered=("dq", "dk"))
    with pytest.raises(UserError, match="unordered must be a tuple of dk, dq, dv, o, not \\('q',\\)"):
        check_numerics(Numerics(unordered=("q",)))
