"""Cases for the code of problems that are too large to be judged."""

from __future__ import annotations

from sdpalab.judge.same_code import LARGE_PROBLEMS, PROBES, cases_with_same_code
from sdpalab.kernels.equivalent import MOST_FLOPS, modules_of
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import Problem


def test_the_code_of_large_problems_is_judged_on_small_ones() -> None:
    hopper = KERNELS["hopper"]
    covering = cases_with_same_code(hopper, None, LARGE_PROBLEMS, sms=132)
    assert covering.missing == {}
    judged = {spec.problem for spec in covering.specs}
    wanted = [modules_of(hopper.launch_plan(problem, sms=132)) for problem in LARGE_PROBLEMS]
    assert [modules_of(hopper.launch_plan(problem, sms=132)) for problem in judged] in (wanted, wanted[::-1])
    for problem in judged:
        assert problem.flops <= MOST_FLOPS
        mine = [spec for spec in covering.specs if spec.problem == problem]
        assert [spec.inputs for spec in mine] == ["normal", "normal", *PROBES]
        assert [spec.seed is None for spec in mine[:2]] == [False, True], "one public seed, and one hidden"


def test_problems_with_one_code_are_judged_once() -> None:
    covering = cases_with_same_code(KERNELS["wmma"], None, [Problem(1, 8, length, 64) for length in (4096, 8192)])
    assert len({spec.problem for spec in covering.specs}) == 1
    assert len({spec.name for spec in covering.specs}) == len(covering.specs)


def test_what_a_kernel_refuses_is_missing_with_its_reason() -> None:
    refused = Problem(1, 16, 16384, 128)
    covering = cases_with_same_code(KERNELS["cublas"], None, [refused])
    assert covering.specs == ()
    assert "keeps all scores and weights in memory" in covering.missing[refused.label]
