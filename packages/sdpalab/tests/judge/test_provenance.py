"""Functions with Triton kernels: the judge runs them, and says who computed the output."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpalab.judge import Case, CaseSpec, Status, Verdict, judge_candidate
from sdpalab.judge.provenance import provenance_of
from sdpalab.problem import Problem

pytest.importorskip("triton")
FILE = Path(__file__).parent / "mixed_candidates.py"
ONE = CaseSpec("one", Problem(1, 2, 40, 32, seq_kv=70))


def verdict_of(name: str) -> Verdict:
    return judge_candidate(f"{FILE}:{name}", [ONE], workers=1)


def judged(name: str) -> Case:
    (case,) = verdict_of(name).cases
    return case


@pytest.mark.parametrize("name", ["whole", "moved"])
def test_a_function_whose_kernels_compute_the_output_passes(name: str) -> None:
    case = judged(name)
    assert case.status is Status.PASSED, case.reason
    stated = case.run["provenance"]
    assert stated["writers"] == {"kernel attend": 2 * 40 * 32}
    assert stated["flops"]["kernel attend"] >= 4 * 2 * 40 * 70 * 32 > stated["flops"]["torch"]
    assert provenance_of(stated) == "kernels 100%, torch 0% of operations"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("decoy", "torch wrote 100% of its elements last"),
        (
            "never_launched",
            "torch wrote 100% of its elements last; it defines attend, branching_copy, copy, weights, and",
        ),
        ("fig_leaf", "which executed 100% of the operations"),
        (
            "softmax_alone",
            "of the operations; it defines attend, branching_copy, copy, weights, and launched 2 kernels",
        ),
        ("fallback", "torch wrote 100% of its elements last"),
        ("one_head", "torch wrote 50% of its elements last"),
    ],
)
def test_a_function_that_lets_torch_compute_has_its_own_status(name: str, words: str) -> None:
    case = judged(name)
    assert case.status is Status.BY_TORCH, (case.status, case.reason)
    assert case.reason.startswith("the output was computed by torch")
    assert words in case.reason


def test_code_that_no_case_executed_is_named() -> None:
    verdict = verdict_of("branches")
    assert verdict.passed
    code = {each.entry: each for each in verdict.code}
    assert code.keys() == {"attend", "branching_copy"}
    line = 1 + FILE.read_text().splitlines().index("        tl.store(y_ptr + at, x * 2, mask=at < n)")
    (place,) = code["branching_copy"].unjudged
    assert place.places == (f"{FILE.name}:{line}",)
    assert (place.condition, place.depends) == ("if n > 1000000:", ("arguments",))
    assert code["branching_copy"].executed < code["branching_copy"].blocks
    assert Verdict.from_dict(verdict.to_dict()) == verdict


def test_a_hazard_of_a_launch_is_the_status() -> None:
    case = judged("past_the_end")
    assert (case.status, "out-of-bounds" in case.reason) == (Status.HAZARD, True)


def test_a_wrong_kernel_is_incorrect() -> None:
    assert judged("wrong").status is Status.INCORRECT
