"""Kernels whose Python cheats where it makes the plan, or whose CUDA is wrong, for the judge's tests.

A worker imports this file. One kernel is all of CATALOGUE: which of them it is follows from the number of queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from cuda_candidates import one_head_of_32, reads_past_the_end, right, variant
from cuda_candidates import plan_without_lse as honest_plan

from sdpalab.judge.sandbox import plans
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan
from sdpalab.problem import Problem

Made = Launch | LaunchPlan


def launch_of(kernel: CudaKernel, problem: Problem, config: Config) -> Launch:
    """The honest launch, of a kernel that need not be."""
    return replace(honest_plan(problem, config), module=kernel.module(problem, config))


# More of the GPU than there is.


def too_much_shared(problem: Problem, config: Config) -> Made:
    return replace(launch_of(right, problem, config), dynamic_smem=120_000)


def too_many_threads(problem: Problem, config: Config) -> Made:
    return replace(launch_of(right, problem, config), block=(2048, 1, 1))


def needs_memory(problem: Problem, config: Config) -> Made:
    heap = Buffer("heap", (1 << 20, 1 << 16), "float32", "workspace")
    return LaunchPlan((heap,), (launch_of(right, problem, config),))


# Fewer bits than it declares, only the usual length in tests, one wrong value.

_ADD = "out[d] += p * __half2float(v[j * HEAD_DIM + d]);"
_WEIGHT = "const float p = __expf(s * scale - largest);"
HALF_SUMS = variant(_ADD, "out[d] = __half2float(__float2half_rn(out[d] + p * __half2float(v[j * HEAD_DIM + d])));")
FIVE_BITS = variant(_WEIGHT, "const float p = rintf(16.0f * __expf(s * scale - largest)) / 16.0f;")
KNOWN_LENGTH = variant("float total = 0.0f,", "keys = 32;\n    float total = 0.0f,")
ONE_OFF = variant("/ total * GAIN", "/ total * GAIN + (row == 7 && d == 3 ? 0.01f : 0.0f)")


def half_sums(problem: Problem, config: Config) -> Made:
    return launch_of(HALF_SUMS, problem, config)


def weights_in_five_bits(problem: Problem, config: Config) -> Made:
    return launch_of(FIVE_BITS, problem, config)


def known_length(problem: Problem, config: Config) -> Made:
    return launch_of(KNOWN_LENGTH, problem, config)


def one_value_off(problem: Problem, config: Config) -> Made:
    return launch_of(ONE_OFF, problem, config)


# The plan is forged.


def _sending(forge: Callable[[plans.SentPlan], str]) -> Callable[[Problem, Config], Made]:
    """Once, something else than the plan is sent."""
    send = plans.SentPlan.model_dump_json

    def forged(plan: plans.SentPlan) -> str:
        plans.SentPlan.model_dump_json = send
        return forge(plan)

    def forge_and_launch(problem: Problem, config: Config) -> Made:
        plans.SentPlan.model_dump_json = forged
        return launch_of(right, problem, config)

    return forge_and_launch


def _output_first(plan: plans.SentPlan) -> str:
    """O takes the place of V, which the judge fills and the launch overwrites."""
    q, k, v, o = plan.buffers
    return plan.model_copy(update={"buffers": (q, k, replace(o, role="in"), v)}).model_dump_json()


no_plan = _sending(lambda plan: "this is no JSON")
no_fields = _sending(lambda plan: '{"buffers": [], "steps": [{"grid": "all"}]}')
output_is_an_input = _sending(_output_first)


def no_launch(problem: Problem, config: Config) -> Made:
    return LaunchPlan((), ())


def brings_its_answers(problem: Problem, config: Config) -> Made:
    answers = Buffer("answers", problem.q_shape, "float16", "in")
    return LaunchPlan((answers,), (launch_of(right, problem, config),))


# The simulator is changed, in the process where the plan is made; it stays so.


def hides_hazards(problem: Problem, config: Config) -> Made:
    from warpsan.report import hazard_log

    hazard_log.HazardLog.hazards.__code__ = (lambda self: []).__code__
    return launch_of(reads_past_the_end, problem, config)


def computes_on_the_host(problem: Problem, config: Config) -> Made:
    """A server of plans in this process gets the right answer, from a kernel that does nothing."""
    import sdpalab.run
    from sdpalab.inputs.reference import attention_float64

    def run(self: Any, plan: Any, inputs: Any, **_: Any) -> Any:
        out = attention_float64(inputs["q"], inputs["k"], inputs["v"], scale=problem.scale, causal=problem.causal)
        return sdpalab.run.RunResult({"o": out.astype(np.float16)}, "simulator sm_89", ("0" * 64,))

    sdpalab.run.SimulatedExecutor.run = run
    return launch_of(variant("if (row >= rows) return;", "return;"), problem, config)


def honest(problem: Problem, config: Config) -> Made:
    return launch_of(right, problem, config)


CATALOGUE = {
    "honest": honest,
    "too_much_shared": too_much_shared,
    "too_many_threads": too_many_threads,
    "needs_memory": needs_memory,
    "half_sums": half_sums,
    "weights_in_five_bits": weights_in_five_bits,
    "known_length": known_length,
    "one_value_off": one_value_off,
    "no_plan": no_plan,
    "no_fields": no_fields,
    "output_is_an_input": output_is_an_input,
    "no_launch": no_launch,
    "brings_its_answers": brings_its_answers,
    "hides_hazards": hides_hazards,
    "computes_on_the_host": computes_on_the_host,
    "honest_after_them_all": honest,
}
FIRST_QUERIES = 9


def _plan(problem: Problem, config: Config) -> Made:
    return list(CATALOGUE.values())[problem.seq_q - FIRST_QUERIES](problem, config)


catalogue = CudaKernel(
    "catalogue", "// each launch has a source of its own", "none", _plan, [{"GAIN": 1}], one_head_of_32
)
