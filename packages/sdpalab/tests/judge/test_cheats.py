"""Callables that cheat: each is caught by what the judge computes from bytes, never by a look at the source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cheats import CATALOGUE, FIRST_SEQ

from sdpalab.errors import UserError
from sdpalab.judge import Case, CaseSpec, Status, judge_candidate
from sdpalab.problem import Problem

FILE = Path(__file__).parent / "cheats.py"
NAMES = [cheat.__name__ for cheat in CATALOGUE]
NUMERICS = {
    "accumulate": "float32",
    "probabilities": "float16",
    "probability_scale": 1.0,
    "quantised": None,
    "normalise": "after",
}
CONTROL = CaseSpec("control case", Problem(1, 2, 40, 64), seed=3)


def judged_alone(spec: CaseSpec) -> Case:
    """The case of an honest candidate that is judged alone."""
    (case,) = judge_candidate(f"{FILE}:good", [spec]).cases
    return case


@pytest.fixture(scope="module")
def alone() -> Case:
    return judged_alone(CONTROL)


@pytest.fixture(scope="module")
def cases(alone: Case) -> Iterator[dict[str, Case]]:
    """One judgement of the whole catalogue, in order, by one worker while it lives; the control case comes last."""
    assert len(set(NAMES)) == len(NAMES)
    specs = [CaseSpec(name, Problem(1, 2, FIRST_SEQ + n, 64), seed=n) for n, name in enumerate(NAMES)]
    last = CaseSpec("honest after them all", Problem(1, 2, FIRST_SEQ + len(NAMES), 64))
    os.environ["SDPALAB_TEST_SECRET"] = "secret"
    try:
        verdict = judge_candidate(f"{FILE}:catalogue", [*specs, last], workers=1, timeout=60.0)
    finally:
        del os.environ["SDPALAB_TEST_SECRET"]
    yield {case.name: case for case in verdict.cases}
    assert judged_alone(CONTROL) == alone


WRONG = (Status.INCORRECT, "")
STALE = (Status.STALE, "")
EXPECTED = {
    "memo_by_pointer": STALE,
    "memo_by_object": STALE,
    "memo_by_problem": STALE,
    "memo_by_fingerprint": STALE,
    "memo_by_corner": STALE,
    "honest_once": (Status.NONDETERMINISTIC, "differ"),
    "honest_at_the_end": (Status.NONDETERMINISTIC, "differ"),
    "lazy_in_the_middle": STALE,
    "lazy_subclass": (Status.BAD_OUTPUT, "Lazy"),
    "disguised_subclass": (Status.BAD_OUTPUT, "Disguised"),
    "finishes_in_a_thread": (Status.NOT_FINITE, "poison"),
    "finishes_at_the_next_call": (Status.NOT_FINITE, "poison"),
    "left_in_freed_memory": (Status.NOT_FINITE, "poison"),
    "left_in_the_last_output": STALE,
    "oracle_in_this_process": (Status.INCORRECT, "all zeros"),
    "oracle_in_the_parent": (Status.INCORRECT, "all zeros"),
    "seed_in_the_environment": (Status.INCORRECT, "all zeros"),
    "only_32_keys": WRONG,
    "constant_scale": WRONG,
    "three_outliers": WRONG,
    "one_lazy_row": (Status.INCORRECT, "worst row"),
    "scores_in_half": WRONG,
    "weights_in_eight_bits": WRONG,
    "output_in_place_of_q": (Status.INPUT_CHANGED, "input q"),
    "simplifies_its_inputs": (Status.INPUT_CHANGED, "input k"),
    "commands_the_terminal": (Status.CRASHED, "PASSED"),
    "says_a_great_deal": (Status.CRASHED, "ValueError: xxxx"),
    "cannot_be_printed": (Status.CRASHED, "Unprintable"),
    "executes_when_unpickled": (Status.BAD_OUTPUT, "Executes"),
    "patches_the_rule": (Status.INCORRECT, "all zeros"),
    "patches_the_libraries": (Status.INCORRECT, "all zeros"),
    "patches_the_digest": (Status.INPUT_CHANGED, "input"),
    "forges_a_verdict": (Status.CRASHED, "status 'PASSED'"),
    "forges_an_answer": (Status.CRASHED, "answers no order"),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_cheat_has_its_status(cases: dict[str, Case], name: str) -> None:
    case, (status, words) = cases[name], EXPECTED[name]
    assert case.status is status, case.reason
    assert words in case.reason


def test_no_reason_commands_a_terminal_or_is_long(cases: dict[str, Case]) -> None:
    for case in cases.values():
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", case.reason)
        assert len(case.reason) < 5000


def test_nothing_was_unpickled(cases: dict[str, Case]) -> None:
    assert cases["executes_when_unpickled"].status is Status.BAD_OUTPUT
    assert not Path("/tmp/unpickled").exists()


def test_who_is_honest_after_them_all_is_judged_as_if_alone(cases: dict[str, Case]) -> None:
    case = cases["honest after them all"]
    assert case.status is Status.PASSED, case.reason
    assert case == judged_alone(CaseSpec(case.name, case.problem))


LIAR = """
from sdpalab.judge.sandbox.callables import CallableRunner
import torch

describe, run = CallableRunner.describe, CallableRunner.run
CallableRunner.describe = lambda self: {**describe(self), **ABOUT}

def lies(self, *arguments):
    out, notes = run(self, *arguments)
    return out, {**notes, "device": "NVIDIA H200", "ptx_sha256": ["0" * 64], "confinement": "namespaces"}

CallableRunner.run = lies

def kernel(q, k, v, *, scale, causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)
"""


@pytest.mark.slow
def test_a_callable_cannot_pretend_to_be_a_kernel(tmp_path: Path, alone: Case) -> None:
    file = tmp_path / "liar.py"
    file.write_text('ABOUT = {"device": "NVIDIA H200"}\n' + LIAR)
    (case,) = judge_candidate(f"{file}:kernel", [CONTROL]).cases
    assert case == alone
    assert "ptx_sha256" not in case.run
    assert str(case.run["device"]).startswith("cpu (torch")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("about", "words"),
    [
        (
            {"numerics": {"accumulate": "float16", "probabilities": "float16", "probability_scale": 1.0}},
            "Field required",
        ),
        ({"numerics": NUMERICS}, "a callable candidate with numerics"),
        ({"kind": "cuda"}, "a cuda candidate with numerics None"),
        ({"kind": "cuda", "numerics": NUMERICS}, "a cuda candidate for no architecture"),
        ({"lse": True}, "a callable candidate for no architecture, with LSE True"),
        ({"name": ""}, "at least 1 item"),
    ],
)
def test_the_description_of_a_candidate_is_checked(tmp_path: Path, about: dict[str, object], words: str) -> None:
    file = tmp_path / "liar.py"
    file.write_text(f"ABOUT = {about!r}\n" + LIAR)
    with pytest.raises(UserError, match=f"does not load: its process answered with a message that is none.*{words}"):
        judge_candidate(f"{file}:kernel", [CONTROL])
