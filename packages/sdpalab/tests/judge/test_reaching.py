"""Code that the cases do not execute: reached by a further case, or named in the verdict."""

from __future__ import annotations

import pytest
from size_cheats import FILE, SOURCE

from sdpalab.judge import CaseSpec, Status, Verdict, judge_candidate
from sdpalab.judge.reaching import MOST_WORK
from sdpalab.problem import Problem

SMALL = [CaseSpec(f"{n} keys", Problem(1, 2, 40, 32, seq_kv=n)) for n in (20, 70)]


def judged(name: str) -> Verdict:
    return judge_candidate(f"{FILE}:{name}", SMALL, algebra=False, workers=1, coverage=True)


@pytest.fixture(scope="module")
def honest() -> Verdict:
    return judged("honest")


def test_an_honest_kernel_is_judged_whole(honest: Verdict) -> None:
    assert honest.passed
    (code,) = honest.code
    assert (code.entry, code.builds, code.executed, code.unjudged) == ("attend", 1, code.blocks, ())
    assert code.blocks > 3
    assert Verdict.from_dict(honest.to_dict()) == honest


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("drops_keys_of_long_rows", {"keys": 701}),
        ("slow_path_for_long_rows", {"keys": 701}),
        ("clamps_the_length", {"keys": 1001}),
        ("many_heads", {"grid": 26}),  # two heads a batch entry
    ],
)
def test_a_branch_on_sizes_is_reached_at_the_least_size(name: str, least: dict[str, int]) -> None:
    verdict = judged(name)
    assert verdict.status is Status.INCORRECT
    wrong = next(case for case in verdict.cases if not case.passed)
    assert wrong.name.endswith("reaches further code")
    sizes = {"keys": wrong.problem.seq_kv, "grid": wrong.problem.batch * wrong.problem.heads}
    assert least.items() <= sizes.items()


def test_arithmetic_on_sizes_is_judged_at_a_hidden_length() -> None:
    verdict = judged("length_in_ten_bits")
    assert verdict.status is Status.INCORRECT
    (wrong,) = (case for case in verdict.cases if not case.passed)
    assert wrong.name.endswith("hidden length")
    assert wrong.problem.seq_kv > 2048


def test_a_build_for_larger_problems_is_judged() -> None:
    verdict = judged("other_build")
    assert verdict.status is Status.INCORRECT
    wrong = [case.problem.seq_kv for case in verdict.cases if not case.passed]
    assert 4096 in wrong  # the first power of two above 3000
    assert verdict.code[0].builds == 2


@pytest.mark.parametrize(
    ("name", "depends"),
    [("large_values", ("memory",)), ("late_clock", ("%clock64",))],
)
def test_a_branch_that_no_size_decides_is_named_with_its_lines(name: str, depends: tuple[str, ...]) -> None:
    verdict = judged(name)
    assert verdict.passed
    (code,) = verdict.code
    (place,) = code.unjudged
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if "CONDITION" in text)
    assert place.places == (f"{name}.cu:{line}",)
    assert place.depends == depends
    assert "if (" in place.condition
    assert "if (" in code.sentences[0]
    assert code.executed < code.blocks
    assert code.identity == tuple(each for each in depends if each.startswith("%"))


def test_the_number_of_the_processor_is_refused() -> None:
    verdict = judged("some_processors")
    assert verdict.status is Status.UNSUPPORTED
    assert "%smid" in verdict.reason


def test_a_trap_is_told_apart() -> None:
    verdict = judged("asserts")
    assert verdict.passed
    (code,) = verdict.code
    assert [place.fails for place in code.unjudged] == [True]
    assert code.sentences == []


def test_no_case_costs_more_than_its_limit(honest: Verdict) -> None:
    long = honest.cases[-1].problem
    assert long.heads * long.seq_q * long.seq_kv * long.head_dim < MOST_WORK
