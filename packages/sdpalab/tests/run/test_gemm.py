"""A matrix product as a step: on the host, in a plan on the simulator, and what is no product of the plan's buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemm_inputs import arrays_for
from sdpalab.errors import UserError
from sdpalab.kernels.plan import Buffer, Gemm, Launch, LaunchPlan, Module
from sdpalab.run import SimulatedExecutor
from sdpalab.run.buffers import multiply, unreleased

PRODUCT = Gemm("a", "b", "c", batch=2, m=3, n=5, k=4)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("operands", "out"), [("float16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")]
)
def test_the_product_on_the_host(transpose_b: bool, padded: bool, operands: str, out: str) -> None:
    gemm = Gemm("a", "b", "c", batch=2, m=3, n=5, k=4, transpose_b=transpose_b, lda=7 * padded, ldc=8 * padded)
    arrays = arrays_for(gemm, operands, out)
    before = {name: array.copy() for name, array in arrays.items()}
    multiply(gemm, arrays)
    left = before["a"][..., :4].astype(np.float64)
    right = before["b"].astype(np.float64)
    expected = left @ (right.transpose(0, 2, 1) if transpose_b else right)
    np.testing.assert_array_equal(arrays["c"][..., :5].astype(np.float64), expected)
    assert np.isnan(arrays["c"][..., 5:].astype(np.float64)).all()
    assert all(arrays[name].tobytes() == before[name].tobytes() for name in "ab")


def test_buffers_may_have_any_shape_with_as_many_elements() -> None:
    arrays = arrays_for(PRODUCT)
    expected = {name: array.copy() for name, array in arrays.items()}
    multiply(PRODUCT, expected)
    arrays["a"], arrays["c"] = arrays["a"].reshape(6, 4), arrays["c"].reshape(30)
    multiply(PRODUCT, arrays)
    assert arrays["c"].shape == (30,)
    np.testing.assert_array_equal(arrays["c"], expected["c"].reshape(30))


def test_sums_are_in_float32_and_rounded_once() -> None:
    # In float16, 2048 + 1 is 2048, and 60000 + 60000 is infinite; as floats they are not.
    gemm = Gemm("a", "b", "c", batch=1, m=1, n=1, k=4)
    arrays = {"a": np.array([2048, 1, 1, 60000], np.float16), "b": np.array([1, 1, 1, 1], np.float16)}
    for dtype, expected in (("float32", 62050.0), ("float16", 62048.0)):
        arrays["c"] = np.zeros(1, dtype)
        multiply(gemm, arrays)
        assert arrays["c"][0] == expected


def test_what_does_not_fit_is_infinite_without_a_warning() -> None:
    arrays = {"a": np.full(2, 60000, np.float16), "b": np.full(2, 60000, np.float16), "c": np.zeros(1, np.float16)}
    multiply(Gemm("a", "b", "c", batch=1, m=1, n=1, k=2), arrays)
    assert np.isposinf(arrays["c"][0])


def test_flops_count_multiplications_and_additions() -> None:
    assert PRODUCT.flops == 2 * 2 * 3 * 5 * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"a": "x"}, "names buffer 'x'; the plan has: a, b, c"),
        ({"c": "b"}, "reads buffer b and writes it, too"),
        ({"m": 4}, "takes 2 matrices 4 x 4 from buffer a, which has 24 elements"),
        ({"transpose_b": True, "n": 6}, "takes 2 matrices 6 x 4 from buffer b, which has 40 elements"),
        ({"ldc": 6}, "takes 2 matrices 3 x 5 in rows of 6 from buffer c, which has 30 elements"),
        ({"lda": 3}, "3 x 4 in rows of 3 from buffer a, which cannot be"),
        ({"k": 0}, "from buffer a, which cannot be"),
    ],
    ids=str,
)
def test_what_is_no_product_of_the_buffers_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as refused:
        multiply(replace(PRODUCT, **changes), arrays_for(PRODUCT))
    assert words in str(refused.value)


SOURCE = """
__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2.0f * x[threadIdx.x]; }
__global__ void take(int* ticket, int left) { if (threadIdx.x == 0) ticket[1] = left; }
"""


def launch(entry: str, *args: str | int) -> Launch:
    return Launch((1, 1, 1), (30, 1, 1), args, module=Module("steps.cu", SOURCE, entry))


def test_a_plan_mixes_launches_and_products() -> None:
    arrays = arrays_for(PRODUCT)
    buffers = (
        Buffer("a", (2, 3, 4), "float16", "in"),
        Buffer("b", (2, 4, 5), "float16", "in"),
        Buffer("c", (2, 3, 5), "float32", "workspace"),
        Buffer("d", (2, 3, 5), "float32", "out"),
    )
    plan = LaunchPlan(buffers, (PRODUCT, launch("twice", "c", "d")))
    inputs = {name: arrays[name] for name in "ab"}
    result = SimulatedExecutor().run(plan, inputs)
    multiply(PRODUCT, arrays)
    np.testing.assert_array_equal(result.outputs["d"], 2 * arrays["c"])
    assert len(result.ptx_sha256) == 1
    assert (result.hazards, result.changed_inputs) == ((), ())


@pytest.mark.parametrize(("left", "hazards"), [(0, 0), (3, 1)])
def test_a_semaphore_that_is_not_left_as_zeros_is_a_hazard(left: int, hazards: int) -> None:
    plan = LaunchPlan((Buffer("ticket", (2,), "int32", "semaphore"),), (launch("take", "ticket", left),))
    messages = SimulatedExecutor().run(plan, {}).hazards
    assert len(messages) == hazards
    assert all("semaphore ticket is not left as zeros: element 1 is 3" in hazard for hazard in messages)
    assert list(messages) == unreleased(plan.buffers, {"ticket": np.array([0, left], np.int32)})
