"""A small problem with the code of a large one: for each shipped kernel, on GPUs of several sizes; and for none."""

from __future__ import annotations

import pytest

from sdpalab.compile import build
from sdpalab.kernels.equivalent import MOST_FLOPS, modules_of, problem_with_same_code
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.ladder import ladder_launch
from sdpalab.kernels.plan import Launch
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.problem import MISSION, NAMED_PROBLEMS, Problem

LARGE = (
    NAMED_PROBLEMS["prefill-4k"],
    Problem(2, 16, 4096, 128),
    Problem(1, 16, 16384, 128),
    Problem(1, 16, 16384, 128, causal=True),
    Problem(4, 32, 8192, 128, kv_heads=8, causal=True, dtype="bfloat16"),
    Problem(2, 16, 4099, 64),
    Problem(1, 32, 1, 128, kv_heads=8, seq_kv=8192),
    Problem(8, 16, 2048, 256),
)


def test_every_shipped_kernel_takes_most_of_the_large_problems() -> None:
    for kernel in KERNELS.values():
        assert sum(kernel.why_not(problem) is None for problem in LARGE) >= 4, kernel.name


@pytest.mark.sample(2)
@pytest.mark.parametrize("sms", [58, 114, 132])
@pytest.mark.parametrize("problem", LARGE, ids=lambda problem: problem.label)
@pytest.mark.parametrize("name", KERNELS)
def test_every_shipped_kernel_has_a_small_problem_with_the_code_of_a_large_one(
    name: str, problem: Problem, sms: int
) -> None:
    if (reason := needs(name)) is not None:
        pytest.skip(reason)
    kernel = KERNELS[name]
    if kernel.why_not(problem) is not None:
        return
    equivalent = problem_with_same_code(kernel, None, problem, sms=sms)
    small = equivalent.problem
    assert small is not None, equivalent.reason
    assert small.flops <= MOST_FLOPS
    assert modules_of(kernel.launch_plan(small, sms=sms)) == modules_of(kernel.launch_plan(problem, sms=sms))
    for trait in ("dtype", "head_dim", "causal", "group", "scale"):
        assert getattr(small, trait) == getattr(problem, trait)
    for length in ("seq_q", "seq_kv"):
        assert min(getattr(problem, length), 128) <= getattr(small, length) <= getattr(problem, length)
        assert (getattr(small, length) - getattr(problem, length)) % 128 == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problem", "like"),
    [
        ("hopper", NAMED_PROBLEMS["prefill-4k"], Problem(1, 48, 512, 64)),
        ("hopper", Problem(2, 16, 4096, 128), Problem(1, 136, 128, 128)),
        ("hopper_fp8", NAMED_PROBLEMS["prefill-4k"], Problem(1, 24, 512, 64)),
        ("hopper_fp8", Problem(2, 16, 4096, 128), Problem(1, 24, 512, 128)),
    ],
)
def test_on_an_h200_they_are_as_cheap_as_what_was_found_by_hand(name: str, problem: Problem, like: Problem) -> None:
    small = problem_with_same_code(KERNELS[name], None, problem, sms=132).problem
    assert small is not None
    assert small.flops <= like.flops
    codes = [
        [build(module, "sm_90a").ptx_sha256 for module in modules_of(KERNELS[name].launch_plan(each, sms=132))]
        for each in (small, problem, like)
    ]
    assert codes[0] == codes[1] == codes[2]


def test_a_small_problem_stands_for_itself_where_nothing_is_cheaper() -> None:
    one = Problem(1, 1, 16, 64)
    assert problem_with_same_code(KERNELS["flash"], None, one).problem == one


def _by_length(macro: str) -> CudaKernel:
    """A kernel whose code has the length of the keys in it."""

    def plan(problem: Problem, config: Config) -> Launch:
        return ladder_launch(problem, 16, 32, 0)

    return CudaKernel("rigid", "", "rigid", plan, macros=lambda problem, config: {macro: problem.seq_kv})


def test_where_there_is_none_it_says_so() -> None:
    equivalent = problem_with_same_code(_by_length("SEQ_KV"), None, Problem(1, 64, 16384, 64))
    assert equivalent.problem is None
    assert equivalent.reason == (
        "no problem of at most 4.3 GFLOP that was tried runs the code that rigid has for 1x64x16384x64"
    )
    # One with as many keys, and fewer queries and heads, is small enough here.
    small = problem_with_same_code(_by_length("SEQ_KV"), None, Problem(1, 64, 4096, 128)).problem
    assert small == Problem(1, 1, 128, 128, seq_kv=4096)


def test_what_the_kernel_refuses_is_refused() -> None:
    with pytest.raises(Exception, match="supports head_dim 32, 64, 96, 128, 192 or 256, not 80"):
        problem_with_same_code(KERNELS["flash"], None, MISSION.with_(head_dim=80, scale=None))
