"""The algebraic stage of gradients: its inputs, its reference, and right and wrong kernels."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the ring runs on the native engine")

from sdpalab.bugs.edit import TEMPLATE, SourceEdit
from sdpalab.compile import build
from sdpalab.judge.algebra import attention
from sdpalab.judge.algebra.gradients import RING, compare, drawn
from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.judge.algebra.running import run_in_ring
from sdpalab.judge.algebra.stage import algebra_case, algebra_problems, has_codes, reordered
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.registry import load_kernel
from sdpalab.problem import Problem

SMALL = Problem(1, 4, 6, 16, kv_heads=2, seq_kv=7, causal=True, scale=0.25, task="backward")
GROUPED = Problem(1, 4, 64, 64, kv_heads=2, task="backward")


def in_ring(kernel: CudaKernel, problem: Problem) -> AlgebraCase:
    plan = kernel.launch_plan(problem)
    builds = [build(step.module, kernel.default_arch) for step in plan.launches]
    order = reordered(problem)
    reply, outputs = run_in_ring(plan, builds, drawn(problem), arch=kernel.default_arch, reordered=order)
    return algebra_case(problem, reply, outputs, lambda array: hashlib.sha256(array.tobytes()).hexdigest())


def test_o_and_the_log_sum_exp_are_those_of_the_forward_pass_in_the_ring() -> None:
    forward = SMALL.with_(seq_q=200, task="forward")  # a sum of 200 is 0 mod 251 in some row
    codes = {name: RING.elements(draws) for name, draws in drawn(forward.with_(task="backward")).items()}
    words = RING.encoded(codes["o"], np.float16), RING.encoded(codes["lse"], np.float32)
    right = attention.compare(RING, forward, {name: codes[name] for name in "qkv"}, *words)
    assert (right.unequal, right.lse_unequal, right.left_out) == (0, 0, 0)
    assert (attention.drawn(forward)["q"] != drawn(forward.with_(task="backward"))["q"]).any()


def test_the_reference_is_the_formulas_one_pair_at_a_time() -> None:
    p, order, root = RING.prime, RING.order, RING.root
    codes = {name: RING.elements(draws).astype(object) for name, draws in drawn(SMALL).items()}
    unit, scale = RING.constant(float(attention.LOG2_E)), RING.constant(SMALL.scale)
    right = {name: np.zeros(shape, object) for name, shape in SMALL.outputs.items()}
    for h in range(4):
        q, do, o, lse = (codes[name][0, h] for name in ("q", "do", "o", "lse"))
        k, v = codes["k"][0, h // 2], codes["v"][0, h // 2]
        for i in range(6):
            for j in range(i + 1):
                weight = pow(root, int(unit * (scale * (q[i] @ k[j]) - lse[i]) % order), p)
                ds = weight * (do[i] @ v[j] - sum(weight_of * (do[i] @ v[n]) for n, weight_of in weights(codes, h, i)))
                right["dq"][0, h, i] += scale * ds * k[j]
                right["dk"][0, h // 2, j] += scale * ds * q[i]
                right["dv"][0, h // 2, j] += weight * do[i]
        assert o.shape == (6, 16)
    codes = {name: each.astype(np.int64) for name, each in codes.items()}
    words = {name: RING.encoded((each % p).astype(np.int64), np.float16) for name, each in right.items()}
    found = compare(RING, SMALL, codes, words)
    assert (found.unequal, found.compared) == (0, sum(each.size for each in right.values()))
    words["dk"].view(np.uint16)[0, 1, 3, 4] += 1
    found = compare(RING, SMALL, codes, words)
    assert (found.unequal, found.output, found.first) == (1, "dk", (0, 1, 3, 4))


def weights(codes: dict[str, np.ndarray], h: int, i: int) -> list[tuple[int, int]]:
    """Each key that a row of SMALL sees, and its P mod p, from the sum of its weights."""
    unit, scale = RING.constant(float(attention.LOG2_E)), RING.constant(SMALL.scale)
    q, k = codes["q"][0, h, i], codes["k"][0, h // 2]
    powers = [pow(RING.root, int(unit * scale * (q @ k[j]) % RING.order), RING.prime) for j in range(i + 1)]
    inverse = pow(sum(powers), -1, RING.prime)
    return [(j, power * inverse % RING.prime) for j, power in enumerate(powers)]


def test_problems_whose_rows_have_no_code_have_no_stage() -> None:
    assert has_codes(GROUPED)
    assert not has_codes(GROUPED.with_(softcap=5.0))
    assert not has_codes(GROUPED.with_(window_size=(4, 0), seq_kv=20, causal=True))
    assert not has_codes(GROUPED.with_(dtype="float32"))


@pytest.mark.slow
def test_shipped_and_written_kernels_are_equal() -> None:
    for kernel in (load_kernel("flash_backward_two_pass"), SourceEdit(TEMPLATE, ()).apply()):
        assert isinstance(kernel, CudaKernel)
        for problem in algebra_problems(GROUPED):
            case = in_ring(kernel, problem)
            assert case.status is AlgebraStatus.EQUAL, case.reason
            assert case.scale_explained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "output"),
    [
        (("key0 < last; key0 += TILE", "key0 + TILE < last; key0 += TILE"), "dq"),
        (("member < group; ++member", "member < group - 1; ++member"), "dk"),
        (("OF_K ? q_smem[i] : do_smem[i]", "q_smem[i]"), "dv"),
    ],
)
def test_a_wrong_data_flow_is_unequal(edit: tuple[str, str], output: str) -> None:
    case = in_ring(SourceEdit(TEMPLATE, (edit,)).apply(), next(algebra_problems(GROUPED)))
    assert case.status is AlgebraStatus.UNEQUAL
    assert f"gradients, {output} among them" in case.reason
