"""Problems in float32: what passes, what is rejected as less, TF32 where it is declared; and the tanh of a soft cap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention import output_of
from cuda_candidates import SOURCE, plan

from sdpalab import judge
from sdpalab.bugs.tiled import TiledAttention
from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.cases import CaseSpec, quick_cases
from sdpalab.judge.rule.evaluate import Judged, judge_output
from sdpalab.judge.rule.limits import FACTORS
from sdpalab.judge.rule.numerics import TF32_BITS, UNDECLARED, approximate_tanh
from sdpalab.judge.rule.single import single_output, to_bits
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import CudaKernel, Numerics
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem

PLAIN = Problem(1, 4, 90, 32, kv_heads=2, dtype="float32")
SINGLE = (PLAIN, PLAIN.with_(causal=True, heads=2, seq_kv=70), PLAIN.with_(sinks=True, softcap=20.0, attn_mask="float"))
CAPPED = Problem(1, 2, 150, 64, softcap=30.0)


def cut(tensor: torch.Tensor, bits: int = 13, half: int = 1 << 12) -> torch.Tensor:
    """TF32: without the last 13 bits, rounded, or chopped with ``half`` of 0."""
    words: torch.Tensor = (tensor.contiguous().view(torch.int32) + half) >> bits << bits
    return words.view(torch.float32)


class Tf32(TiledAttention):
    """Both products on TF32, as tensor cores compute them."""

    half = 1 << 12

    def scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return cut(q, half=self.half) @ cut(k, half=self.half).mT

    def output(
        self, out: torch.Tensor, rescale: torch.Tensor, weights: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        return out * rescale + cut(weights, half=self.half) @ cut(values, half=self.half)


class ChoppedTf32(Tf32):
    """As the tensor cores do it with operands that nobody has rounded."""

    half = 0


class InBfloat16(TiledAttention):
    """Q, K and V in bfloat16."""

    def operands(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return q.bfloat16().float(), k.bfloat16().float(), v.bfloat16().float()


class WeightsInBfloat16(TiledAttention):
    """P in bfloat16."""

    def rounded(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.bfloat16().float()


class ShortScores(TiledAttention):
    """Scores of which 16 bits are right."""

    def after_masks(self, scores: torch.Tensor, cap: float) -> torch.Tensor:
        return cut(scores, 8, 1 << 7)


class HalfOutput(TiledAttention):
    """An output that went through float16."""

    def finish(self, out: torch.Tensor, total: torch.Tensor, maximum: torch.Tensor, seq_kv: int) -> torch.Tensor:
        return super().finish(out, total, maximum, seq_kv).half().float()


def torchs_own(q: Any, k: Any, v: Any, *, scale: float, causal: bool) -> torch.Tensor:
    grouped = q.shape[1] != k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal, enable_gqa=grouped)


def judged(attention: Any, spec: CaseSpec, numerics: Numerics = UNDECLARED) -> Judged:
    torch.set_num_threads(1)
    inputs = make_inputs(spec.problem, spec.inputs, spec.seed or 3)
    return judge_output(spec.problem, inputs, output_of(attention, spec.problem, inputs), numerics)


@pytest.mark.parametrize("problem", SINGLE, ids=lambda problem: problem.label)
def test_right_implementations_pass_and_tf32_does_not(problem: Problem) -> None:
    narrow = TiledAttention()
    narrow.tile = 16
    rejected = 0
    for kind in ("normal", "ramp", "negative", "large_logits", "plateau", "uniform", "needle", "tiny", "huge"):
        spec = CaseSpec(kind, problem, kind)
        for right in (TiledAttention(), narrow, *([] if problem.features else [torchs_own])):
            outcome = judged(right, spec)
            assert outcome.status is Status.PASSED, (kind, outcome.reason)
        rejected += judged(Tf32(), spec).status is Status.INCORRECT
    assert rejected >= 7  # a dominant key hides it where V is all that counts


@pytest.mark.parametrize("wrong", [WeightsInBfloat16, ShortScores, HalfOutput, ChoppedTf32])
def test_what_is_held_in_fewer_bits_is_rejected(wrong: type[TiledAttention]) -> None:
    assert judged(wrong(), CaseSpec("normal", PLAIN)).status is Status.INCORRECT


@pytest.mark.parametrize("kind", ["normal", "large_logits", "outlier"])
def test_declared_tf32_passes_and_bfloat16_does_not(kind: str) -> None:
    declared = Numerics(products="tf32")
    for right in (Tf32(), TiledAttention()):
        outcome = judged(right, CaseSpec(kind, PLAIN, kind), declared)
        assert outcome.status is Status.PASSED, outcome.reason
    assert judged(InBfloat16(), CaseSpec(kind, PLAIN, kind), declared).status is Status.INCORRECT


def test_the_limits_have_factors_of_their_own() -> None:
    outcome = judged(TiledAttention(), CaseSpec("normal", PLAIN))
    assert outcome.limits.rel_l2 == 3.0 * outcome.limits.intended_rel_l2
    assert FACTORS["float16"]["rel_l2"] == FACTORS["bfloat16"]["rel_l2"] == 1.5
    assert outcome.limits.rel_l2 < 1e-5


def test_the_emulation_is_float32_in_its_order() -> None:
    """Against the same operations, one number at a time."""
    problem = Problem(1, 1, 3, 32, seq_kv=5, dtype="float32")
    inputs = make_inputs(problem, "normal", 1)
    q, k, v = (array[0, 0] for array in inputs.qkv)
    one = np.float32
    out = single_output(*inputs.qkv, rows=None, before=False, tanh=np.tanh, **problem.scoring)[0, 0]
    for i in range(3):
        scores = []
        for j in range(5):
            total = one(0.0)
            for d in range(32):
                total = one(total + one(q[i, d] * k[j, d]))
            scores.append(one(total * one(problem.scale)))
        exponents = [one(one(score - max(scores)) * one(np.log2(np.e))) for score in scores]
        weights = [one(to_bits(np.exp2(np.float64(x)), 22)) for x in exponents]
        total, row = one(0.0), np.zeros(32, one)
        for j in range(5):
            total = one(total + weights[j])
            row = row + weights[j] * v[j]
        np.testing.assert_array_equal(out[i], row / total)
    np.testing.assert_allclose(out, attention_float64(*inputs.qkv, **problem.scoring)[0, 0], rtol=1e-5, atol=1e-6)


def test_bits_are_kept_to_the_nearest() -> None:
    numbers = np.random.default_rng(0).standard_normal(1000) * 10.0 ** np.arange(-100, 100, 0.2)
    kept = to_bits(numbers, TF32_BITS)
    assert (np.abs(kept - numbers) <= 2.0**-11 * np.abs(numbers)).all()
    np.testing.assert_array_equal(to_bits(kept, TF32_BITS), kept)
    words = torch.from_numpy(kept[400:600].astype(np.float32))
    assert (words.view(torch.int32) & 0x1FFF == 0).all()


@pytest.mark.parametrize("name", KERNELS)
def test_shipped_kernels_do_not_take_float32(name: str) -> None:
    assert KERNELS[name].why_not(Problem(1, 1, 64, 64, dtype="float32")) is not None


@pytest.mark.slow
def test_callables_are_judged_in_float32_in_the_whole_judge() -> None:
    assert judge(torchs_own, [PLAIN]).passed
    assert judge(Tf32(), [PLAIN]).status is Status.INCORRECT


@pytest.mark.slow
def test_a_cuda_kernel_in_float32_is_judged() -> None:
    source = SOURCE.replace("__half2float", "").replace("__float2half_rn", "").replace("__half", "float")
    source = source.replace("#include <cuda_fp16.h>", 'static_assert(DTYPE_FLOAT32, "float32 only");')
    kernel = CudaKernel("one_row", source, "one_row", plan, [{"GAIN": 1}], lse=True)
    problem = Problem(1, 1, 20, 32, seq_kv=9, dtype="float32")
    specs = [CaseSpec(kind, problem, kind) for kind in ("normal", "needle", "ramp")]
    verdict = judge_candidate(kernel, specs, workers=1)
    assert verdict.passed, verdict.reason
    wrong = replace(kernel, source=source.replace("s * scale", "rintf(s * scale * 1024.0f) / 1024.0f"))
    assert judge_candidate(wrong, specs, workers=1).status is Status.INCORRECT


# ---- tanh.approx ----------------------------------------------------------------------------------------------------


class ApproximateTanh(TiledAttention):
    """A tanh with the relative error of tanh.approx.f32."""

    def capped(self, scores: torch.Tensor, cap: float) -> torch.Tensor:
        return cap * torch.from_numpy(approximate_tanh((scores / cap).double().numpy())).float()


class RoughTanh(TiledAttention):
    """One that is eight times worse."""

    def capped(self, scores: torch.Tensor, cap: float) -> torch.Tensor:
        return cap * torch.from_numpy(to_bits(np.tanh((scores / cap).double().numpy()), 8)).float()


def test_an_approximate_tanh_is_what_is_declared_or_wrong() -> None:
    declared = Numerics(tanh="approx")
    specs = [spec for spec in quick_cases([CAPPED]) if spec.inputs in ("large_logits", "normal", "needle", "outlier")]
    statuses: dict[str, list[Status]] = {}
    for name, attention, numerics in (
        ("declared", ApproximateTanh(), declared),
        ("better than declared", TiledAttention(), declared),
        ("undeclared", ApproximateTanh(), UNDECLARED),
        ("worse than declared", RoughTanh(), declared),
    ):
        statuses[name] = [judged(attention, spec, numerics).status for spec in specs[:8]]
    assert set(statuses["declared"]) == set(statuses["better than declared"]) == {Status.PASSED}
    assert Status.INCORRECT in statuses["undeclared"]
    assert Status.INCORRECT in statuses["worse than declared"]


def test_only_what_is_declared_is_in_a_record() -> None:
    assert set(Numerics().to_dict()) == {
        "accumulate",
        "probabilities",
        "probability_scale",
        "quantised",
        "normalise",
    }
    declared = Numerics(products="tf32", tanh="approx")
    assert Numerics.from_dict(declared.to_dict()) == declared
