"""Numerics that belong to a configuration: each is judged by its own, and what is declared for another is no excuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cuda_candidates import SOURCE, one_head_of_32, plan

from sdpalab.bugs import replace_once
from sdpalab.commands.kernels import describe
from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, Status, judge_candidate
from sdpalab.kernels.fp8 import FP8
from sdpalab.kernels.kernel import Config, CudaKernel, Numerics, UnsupportedProblem
from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 40, 32, seq_kv=100)
FINE, COARSE = Numerics(probabilities="float16"), Numerics(probabilities="float8_e4m3fn")

ROUNDINGS = r"""
__device__ unsigned short to_e4m3(float p)
{
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(pair) : "f"(p));
    return pair;
}
__device__ float e4m3(float p)
{
    unsigned halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(to_e4m3(p)));
    return __half2float(__ushort_as_half(halves & 0xffff));
}
__device__ float fp16(float p) { return __half2float(__float2half_rn(p)); }
"""


def numerics(config: Config) -> Numerics:
    """Numerics of P, as the kernel's knob says."""
    return {"fp16": FINE, "e4m3": COARSE}[str(config["P_DTYPE"])]


def rounding_kernel() -> CudaKernel:
    """The judge's tests' own kernel, with P rounded before it meets V, in one type or the other."""
    entry = 'extern "C"'
    source = replace_once(SOURCE, ("out[d] += p *", "out[d] += P_DTYPE(p) *"), (entry, ROUNDINGS + entry))
    configs = [{"GAIN": 1, "P_DTYPE": "fp16"}, {"GAIN": 1, "P_DTYPE": "e4m3"}]
    declared = {"numerics": numerics, "min_arch": 89}
    return CudaKernel("rounds_p", source, "one_row", plan, configs, one_head_of_32, lse=True, **declared)


kernel = rounding_kernel()


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(("p_dtype", "expected"), [("fp16", FINE), ("e4m3", COARSE)])
def test_each_configuration_is_judged_by_its_own(p_dtype: str, expected: Numerics) -> None:
    verdict = judge_candidate(kernel, [CaseSpec("one", PROBLEM), CaseSpec("two", PROBLEM)], config={"P_DTYPE": p_dtype})
    assert verdict.passed, verdict.reason
    assert verdict.config == f"GAIN=1 P_DTYPE={p_dtype}"
    for case in verdict.cases:
        assert Numerics.from_dict(case.run["numerics"]) == expected


def test_the_numerics_of_another_configuration_are_no_excuse() -> None:
    finer = replace(kernel, numerics=FINE)  # which is true of one configuration, and not of the other
    cases = [CaseSpec("one", PROBLEM)]
    assert judge_candidate(finer, cases).passed
    (case,) = judge_candidate(finer, cases, config={"P_DTYPE": "e4m3"}).cases
    assert case.status is Status.INCORRECT
    assert Numerics.from_dict(case.run["numerics"]) == FINE


@pytest.mark.slow
def test_the_first_configuration_is_the_one_that_is_judged_by_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    folder = Path(__file__).parent
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(folder)!r})\nfrom dataclasses import replace\n"
        "from test_config_numerics import kernel\nmine = replace(kernel, configs=kernel.configs[::-1])\n"
    )
    (case,) = judge_candidate(f"{file}:mine", [CaseSpec("one", PROBLEM)]).cases
    assert case.passed, case.reason
    assert Numerics.from_dict(case.run["numerics"]) == COARSE


@pytest.mark.slow
def test_what_is_declared_is_declared_in_every_process(tmp_path: Path) -> None:
    # Its second process would be judged by its other declaration, if that were accepted.
    file = tmp_path / "mine.py"
    file.write_text(
        f"""\
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from dataclasses import replace
from test_config_numerics import kernel

def plan(problem, config):
    if problem.seq_kv == 1:
        os._exit(1)
    return kernel.plan(problem, config)

mine = replace(kernel, plan=plan, name="number " + os.urandom(8).hex())
"""
    )
    cases = [CaseSpec("one", PROBLEM), CaseSpec("ends the process", PROBLEM.with_(seq_kv=1)), CaseSpec("two", PROBLEM)]
    verdict = judge_candidate(f"{file}:mine", cases, workers=1)
    assert [case.status for case in verdict.cases] == [Status.PASSED, Status.CRASHED, Status.CRASHED]
    reason = verdict.cases[2].reason
    assert reason.startswith("the candidate declares {'name': 'number ")
    assert reason.count("'numerics': {") == 2


def test_numerics_that_are_none_are_bad_input() -> None:
    wrong = replace(kernel, numerics=lambda config: "float16")
    with pytest.raises(
        UserError, match=r"^kernel rounds_p: numerics of configuration GAIN=1 P_DTYPE=fp16 must be a Num"
    ):
        judge_candidate(wrong, [CaseSpec("one", PROBLEM)])
    unknown = replace(kernel, numerics=lambda config: Numerics(probabilities="float4"))
    with pytest.raises(UserError, match="numerics: probabilities must be one of"):
        judge_candidate(unknown, [CaseSpec("one", PROBLEM)])


def test_a_value_that_the_knob_has_not_is_refused_and_not_judged_as_the_default() -> None:
    assert FP8.numerics_of(FP8.default_config.but(P_DTYPE="fp16")).probabilities == "float16"
    assert FP8.numerics_of() == FP8.numerics_of(FP8.default_config)
    with pytest.raises(UnsupportedProblem, match="P_DTYPE must be one of e4m3, fp16, not bf16"):
        FP8.launch_plan(PROBLEM, FP8.default_config.but(P_DTYPE="bf16"))
    with pytest.raises(UserError, match="P_DTYPE must be one of e4m3, fp16, not bf16"):
        judge_candidate("fp8", [CaseSpec("one", PROBLEM)], config={"P_DTYPE": "bf16"})


def test_the_list_of_kernels_says_what_the_configurations_declare() -> None:
    assert describe(kernel)["numerics"] == {"accumulate": "float32", "probabilities": "float16 or float8_e4m3fn"}
    assert describe(replace(kernel, numerics=Numerics()))["numerics"]["probabilities"] == "the problem's"
