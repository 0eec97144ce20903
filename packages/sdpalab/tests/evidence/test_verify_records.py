"""Inputs of the verifier, from the lab or read by itself: fields of records, numerics, resources of cubins."""

from __future__ import annotations

from typing import Any

import pytest
from standalone import verify

from sdpalab import problem
from sdpalab.compile import build
from sdpalab.compile.resources import resources
from sdpalab.evidence.verifier.cases import numerics_of
from sdpalab.judge.rule.numerics import UNDECLARED
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.kernels.plan import Launch, Module

FLOAT8 = "float8_e4m3fn"


@pytest.mark.parametrize(
    "numerics",
    [
        Numerics(),
        Numerics(accumulate="float16", accumulate_terms=16),
        Numerics(probabilities=FLOAT8, probability_scale=256.0, quantised=Quantisation(rows=7)),
        Numerics(products="tf32", tanh="approx", normalise="before"),
    ],
    ids=str,
)
def test_declared_numerics_are_read_as_the_judge_writes_them(numerics: Numerics) -> None:
    assert numerics_of(numerics.to_dict(), built=True) == numerics
    assert numerics_of(numerics.to_dict(), built=False) is None
    assert numerics_of(UNDECLARED.to_dict(), built=False) == UNDECLARED


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": "bfloat16"},
        {"probabilities": "float8"},
        {"probability_scale": 2.0},
        {"probabilities": FLOAT8, "probability_scale": 449.0},
        {"probabilities": FLOAT8, "probability_scale": 100.0},
        {"quantised": {"dtype": "int8", "rows": 0}},
        {"quantised": {"dtype": FLOAT8, "rows": -1}},
        {"quantised": {"dtype": FLOAT8, "rows": True}},
        {"normalise": "either"},
        {"normalise": "first"},
        {"accumulate_terms": 8},
        {"accumulate": "float16", "accumulate_terms": 2},
        {"accumulate": "float16", "accumulate_terms": True},
        {"products": "bfloat16"},
        {"tanh": "fast"},
        {"tanh": "float32"},
        {"quantised": {}},
        {"quantised": 3},
        {"probability_scale": "1"},
        {"accumulate": ["float32"]},
        {"more": 1},
    ],
    ids=str,
)
def test_numerics_without_a_rule_are_refused(changes: dict[str, Any]) -> None:
    fields = {**Numerics().to_dict(), **changes}
    assert numerics_of(fields, built=True) is None


FIELDS = {
    "attempt": "kernel config idea builds verdict failure figures",
    "verdict": "kernel config device level seed status passed reason original_contract cases",
    "case": "name problem inputs seed status reason errors limits digests run original_contract",
    "problem": "batch heads seq_q head_dim kv_heads seq_kv dtype causal scale",
    "build": "directory name module key entry arch compiler command compile_seconds cache_hit sources files "
    "resources gate",
    "resources": "arch registers stack_bytes spill_bytes reported_spill_bytes static_shared_bytes "
    "dynamic_shared_bytes constant_bytes threads_per_block blocks_per_sm warps_per_sm limiter sass main_loop "
    "tensor_share",
    "gate": "rules reason ok",
    "rule": "name value limit kind ok",
    "figure": "name value unit kind gpu source",
    "algebra": "name problem seed status reason prime factor expected_factor compared unequal left_out lse_unequal "
    "digests ptx_sha256 lse_refusal",
    "code": "entry builds blocks executed unjudged identity",
    "unjudged code": "places branch condition depends reached fails",
}
"""Fields that every record has: to change one takes another format number. Sparse ones are missing while empty."""


def test_the_verifier_has_the_format_and_the_statuses_of_the_lab() -> None:
    assert verify.FORMAT == 8
    sparse = verify.SPARSE
    always = {kind: sorted(set(names) - set(sparse.get(kind, ()))) for kind, names in verify.KEYS.items()}
    assert {kind: sorted(names.split()) for kind, names in FIELDS.items()} == always
    lacking = {
        "attempt": ["sources"],
        "verdict": ["unjudged", "algebra", "code", "covers", "confinement"],
        "algebra": ["config"],
        "rule": ["advisory"],
        "case": ["figures"],
    }
    assert sparse == {**lacking, "problem": list(problem.FIELDS)}
    assert set(verify.STATUSES) == {status.value for status in Status}


SOURCE = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2.0f; }
extern "C" __global__ void heavy(float* x, int n) {
    __shared__ float tile[1000];
    float local[64];
    for (int i = 0; i < n; ++i) local[(i * i) & 63] = x[i];
    tile[threadIdx.x] = local[n & 63] + local[(n * n) & 63];
    __syncthreads();
    x[threadIdx.x] = tile[n];
}
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("entry", "arch"),
    [
        ("plain", "sm_80"),
        ("plain", "sm_89"),
        ("heavy", "sm_80"),
        ("heavy", "sm_89"),
        ("heavy", "sm_90"),
        ("heavy", "sm_120"),
    ],
)
def test_resources_are_read_from_the_cubin_as_the_disassembler_does(entry: str, arch: str) -> None:
    built = build(Module("two.cu", SOURCE, entry), arch)
    used = resources(built, Launch((1, 1, 1), (64, 1, 1), ()))
    for name, value in verify.cubin_resources(built.cubin, built.entry).items():
        assert value == getattr(used, name), name
    if entry == "heavy":
        assert used.stack_bytes > 0
        assert used.static_shared_bytes == 4000


@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_120"])
def test_a_kernel_without_shared_memory_has_none(arch: str) -> None:
    used = verify.cubin_resources(build(Module("two.cu", SOURCE, "plain"), arch).cubin, "plain")
    assert (used["static_shared_bytes"], used["stack_bytes"]) == (0, 0)
    assert 4 <= used["registers"] <= 32


def test_a_cubin_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 64-bit ELF"):
        verify.cubin_resources(b"nothing", "x")
    built = build(Module("two.cu", SOURCE, "plain"))
    with pytest.raises(ValueError, match="has no entry other"):
        verify.cubin_resources(built.cubin, "other")
