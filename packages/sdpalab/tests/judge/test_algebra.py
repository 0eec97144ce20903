"""The algebraic stage: attention in the ring, right and wrong kernels, and what a bundle's verifier makes of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_judge_verdict import PASSED

pytest.importorskip("llvmlite", reason="the ring runs on the native engine")

from sdpalab.bugs.catalogue import BUGS
from sdpalab.compile import build
from sdpalab.judge.algebra.attention import compare, expected_factor
from sdpalab.judge.algebra.outcome import AlgebraCase, AlgebraStatus
from sdpalab.judge.algebra.running import run_in_ring
from sdpalab.judge.algebra.stage import algebra_case, algebra_problems, drawn, reordered
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status, Verdict
from sdpalab.kernels.kernel import CudaKernel
from sdpalab.kernels.registry import CUDA_KERNELS
from sdpalab.problem import Problem
from warpsan.numerics.ring import RINGS

BIG, SMALL = RINGS["ring-251"], RINGS["ring-13"]
MHA, CAUSAL = algebra_problems(Problem(1, 2, 512, 64))


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def in_ring(
    kernel: CudaKernel,
    problem: Problem,
    knobs: Mapping[str, Any] | None = None,
    mutate: tuple[str, str] | None = None,
    order: bool = False,
) -> AlgebraCase:
    """The stage's record of a kernel, perhaps with one edit of its PTX, or in the second order of the codes."""
    config = kernel.default_config.but(**kernel.algebraic).but(**(knobs or {}))
    plan = kernel.launch_plan(problem, config, lse=kernel.lse)
    arch = kernel.default_arch
    builds = [build(step.module, arch) for step in plan.launches]
    if mutate is not None:
        old, new = mutate
        text, count = re.subn(old, new, builds[-1].ptx.decode(), count=1)
        assert count == 1, f"{old} is not in the PTX"
        builds[-1] = replace(builds[-1], ptx=text.encode())
    reply, outputs = run_in_ring(plan, builds, drawn(problem), arch=arch, reordered=order)
    return algebra_case(problem, reply, outputs, digest)


def test_the_reference_is_attention_one_row_at_a_time() -> None:
    problem = Problem(1, 2, 5, 16, kv_heads=1, seq_kv=7, causal=True, scale=0.25, window_size=(3, 0))
    codes = {name: BIG.elements(draws) for name, draws in drawn(problem).items()}
    factor, p = expected_factor(BIG, problem), BIG.prime
    out, lse = np.zeros(problem.q_shape, np.int64), np.zeros(problem.q_shape[:3], np.int64)
    for h in range(2):
        for i in range(5):
            keys = [j for j in range(7) if i - 3 <= j <= i]
            scores = [int((codes["q"][0, h, i] * codes["k"][0, 0, j]).sum()) * factor for j in keys]
            weights = [pow(BIG.root, score % BIG.order, p) for score in scores]
            out[0, h, i] = sum(w * codes["v"][0, 0, j] for w, j in zip(weights, keys, strict=True)) % p
            out[0, h, i] = out[0, h, i] * pow(sum(weights), -1, p) % p
            lse[0, h, i] = next(x for x in range(p - 1) if pow(BIG.root, x, p) == sum(weights) % p) * BIG.ln_2 % (p - 1)
    words, logarithms = BIG.encoded(out, np.float16), BIG.encoded(lse, np.float32)
    right = compare(BIG, problem, codes, words, logarithms)
    assert (right.unequal, right.lse_unequal, right.left_out) == (0, 0, 0)
    assert right.compared == out.size
    out[0, 1, 3, 4] += 1
    lse[0, 1, 2] += 1
    wrong = compare(BIG, problem, codes, BIG.encoded(out, np.float16), BIG.encoded(lse, np.float32))
    assert (wrong.unequal, wrong.first, wrong.lse_unequal) == (1, (0, 1, 3, 4), 1)


def ring_outputs(q: Any, k: Any, v: Any, problem: Problem, prime: int, factor: int) -> tuple[Any, Any]:
    """O [B, H, Sq, D] and sums of weights, both mod p, of attention without a mask but for lengths."""
    order = prime - 1
    # A root is primitive if none of its powers below p - 1 is 1.
    root = next(g for g in range(2, prime) if all(pow(g, n, prime) != 1 for n in range(1, order)))
    powers = np.array([pow(root, n, prime) for n in range(order)])
    inverse = np.array([0] + [pow(n, -1, prime) for n in range(1, prime)])
    k, v = (np.repeat(each.astype(np.int64), problem.group, axis=1) for each in (k, v))
    scores = np.einsum("bhid,bhjd->bhij", q.astype(np.int64) % order, k % order) % order
    lengths = np.array(problem.kv_lengths or (problem.seq_kv,) * problem.batch)
    weights = powers[scores * factor % order] * (np.arange(problem.seq_kv) < lengths[:, None, None, None])
    sums = weights.sum(axis=3) % prime
    out = np.einsum("bhij,bhjd->bhid", weights, v % prime)
    return out % prime * inverse[sums][..., None] % prime, sums


def test_codes_of_eight_bits_have_inverses() -> None:
    units = SMALL.elements(drawn(MHA)["q"])
    assert (np.gcd(units, SMALL.modulus) == 1).all(), "a kernel that quantises divides by the largest"


def test_another_factor_is_found_and_said() -> None:
    problem = Problem(1, 1, 40, 16, scale=0.25)
    codes = {name: BIG.elements(draws) for name, draws in drawn(problem).items()}
    out, _ = ring_outputs(codes["q"], codes["k"], codes["v"], problem, BIG.prime, 37)
    found = compare(BIG, problem, codes, BIG.encoded(out, np.float16), None)
    assert (found.unequal, found.factor) == (0, 37)
    assert expected_factor(BIG, problem) != 37


@pytest.mark.slow
def test_the_judge_runs_the_stage_with_and_without_the_mask() -> None:
    verdict = judge_candidate("flash", [CaseSpec("one", Problem(1, 1, 64, 64))])
    assert verdict.passed
    assert [(each.problem.causal, each.status) for each in verdict.algebra] == [
        (True, AlgebraStatus.EQUAL),
        (False, AlgebraStatus.EQUAL),
    ]
    assert not judge_candidate("flash", [CaseSpec("one", Problem(1, 1, 64, 64))], algebra=False).algebra


@pytest.mark.slow
@pytest.mark.parametrize("name", CUDA_KERNELS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_shipped_kernel_is_equal(name: str, dtype: str) -> None:
    for problem in algebra_problems(Problem(1, 4, 512, 64, kv_heads=2, dtype=dtype)):
        case = in_ring(CUDA_KERNELS[name], problem, order=reordered(problem))
        assert case.status is AlgebraStatus.EQUAL, case.reason
        assert case.scale_explained
        assert case.lse_unequal == 0
        assert case.prime == (13 if "fp8" in name else 251)


def test_flash_is_equal_with_every_number_of_tiles() -> None:
    for length in (320, 64, 1):
        case = in_ring(CUDA_KERNELS["flash"], Problem(1, 1, length, 64, scale=0.25), {"SCHEDULE": "tiles"})
        assert case.status is AlgebraStatus.EQUAL, case.reason


MUTANTS = {
    "a sum that subtracts": (r"add\.f32 (\s*%f\d+, %f\d+, %f\d+;)", r"sub.f32 \1"),
    "an exponential too few": (r"ex2\.approx\.ftz\.f32 ", "mov.f32 "),
    "no inverse": (r"rcp\.approx\.ftz\.f32 ", "mov.f32 "),
}


@pytest.mark.parametrize("what", MUTANTS)
def test_a_wrong_data_flow_is_unequal(what: str) -> None:
    case = in_ring(CUDA_KERNELS["flash"], MHA, {"SCHEDULE": "tiles"}, MUTANTS[what])
    assert case.status is AlgebraStatus.UNEQUAL
    assert "exact arithmetic" in case.reason


def test_a_lost_rescale_is_unequal() -> None:
    wrong = BUGS["flash: rescale of O lost"].candidate
    assert isinstance(wrong, CudaKernel)
    assert in_ring(wrong, MHA, {"SCHEDULE": "tiles"}).status is AlgebraStatus.UNEQUAL


@pytest.mark.parametrize("what", ["no maximum but the tile's", "rescale of O lost"])
def test_references_that_move_behind_a_threshold_are_seen_in_the_second_order(what: str) -> None:
    """In the first all sums of weights of fp8 are below 448, so that its references stay those of the first tile."""
    wrong, right = BUGS[f"fp8: {what}"].candidate, CUDA_KERNELS["fp8"]
    assert isinstance(wrong, CudaKernel)
    problem = Problem(1, 1, 173, 64, causal=True, scale=0.125)
    statuses = [in_ring(kernel, problem, order=order).status for kernel in (right, wrong) for order in (False, True)]
    assert statuses == [AlgebraStatus.EQUAL, AlgebraStatus.EQUAL, AlgebraStatus.EQUAL, AlgebraStatus.UNEQUAL]
    assert [reordered(each) for each in algebra_problems(problem)] == [True, False]


def test_lengths_of_batch_entries_are_asked() -> None:
    problem, _ = algebra_problems(Problem(2, 2, 512, 64, kv_lengths=(512, 100)))
    assert (problem.batch, problem.kv_lengths) == (2, (173, 69))
    assert in_ring(CUDA_KERNELS["flash"], problem, {"SCHEDULE": "tiles"}).status is AlgebraStatus.EQUAL
    wrong = BUGS["flash: unasked: one key too many of each batch entry"].candidate
    assert isinstance(wrong, CudaKernel)
    assert in_ring(wrong, problem, {"SCHEDULE": "tiles"}).status is AlgebraStatus.UNEQUAL
    none = problem.with_(kv_lengths=(0, 40))
    codes = {name: BIG.elements(drawn(none)[name]) for name in "qkv"}
    out, sums = ring_outputs(codes["q"], codes["k"], codes["v"], none, BIG.prime, 37)
    assert (sums[0] == 0).all()
    found = compare(BIG, none, codes, BIG.encoded(out, np.float16), None)
    assert (found.unequal, found.factor, found.left_out) == (0, 37, int((sums[1] == 0).sum()))


@pytest.mark.parametrize(
    "extra", [{"softcap": 15.0}, {"attn_mask": "bool:1,1"}, {"sinks": True}, {"dtype": "float32"}], ids=str
)
def test_what_has_no_meaning_in_a_ring_is_not_asked(extra: dict[str, Any]) -> None:
    assert list(algebra_problems(Problem(1, 1, 64, 64, **extra))) == []


def test_a_maximum_cancels() -> None:
    edit = (r"max\.f32 (\s*%f\d+, %f\d+, %f\d+;)", r"min.f32 \1")
    assert in_ring(CUDA_KERNELS["flash"], MHA, {"SCHEDULE": "tiles"}, edit).status is AlgebraStatus.EQUAL


@pytest.mark.slow
def test_exponentials_by_polynomial_are_not_algebraic_and_not_blamed() -> None:
    spec = CaseSpec("one", Problem(1, 1, 64, 64))
    verdict = judge_candidate("flash", [spec], config={"EXP_ON_FMA": "1"})
    assert verdict.passed
    assert {each.status for each in verdict.algebra} == {AlgebraStatus.NOT_ALGEBRAIC}
    assert re.search(r"PTX line \d+: \w", verdict.algebra[0].reason)
    assert verdict == Verdict.from_dict(verdict.to_dict())


def test_unequal_decides_a_verdict_whose_cases_passed() -> None:
    equal = in_ring(CUDA_KERNELS["flash"], MHA, {"SCHEDULE": "tiles"})
    verdict = Verdict("flash", "", "simulator sm_89", "quick", 0, (PASSED,), algebra=(equal,))
    assert verdict.passed
    assert Verdict.from_dict(verdict.to_dict()) == verdict
    unequal = replace(equal, status=AlgebraStatus.UNEQUAL, reason="one element differs", unequal=1)
    rejected = replace(verdict, algebra=(equal, unequal))
    assert rejected.status is Status.INCORRECT
    assert "one element differs" in rejected.reason
    unknown = replace(equal, status=AlgebraStatus.NOT_RUN, reason="it does not compute that")
    assert replace(verdict, algebra=(unknown,)).passed
    for change in (
        {"status": AlgebraStatus.EQUAL, "unequal": 1},
        {"status": AlgebraStatus.EQUAL, "digests": {}},
        {"status": AlgebraStatus.UNEQUAL, "reason": "none differs", "unequal": 0},
        {"status": AlgebraStatus.NOT_RUN, "reason": ""},
    ):
        with pytest.raises(ValueError, match="in the ring"):
            replace(equal, **change)
