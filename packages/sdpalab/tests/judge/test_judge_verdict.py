"""Verdict records: what they say, and what they cannot be made to say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdpalab.judge import Case, Errors, Limits, Status, Verdict
from sdpalab.judge.verdict import LIMITED, LseErrors, keeps_original_contract, limited
from sdpalab.problem import MISSION

ERRORS = Errors(1e-4, (0, 0, 0, 0), 2e-4, 2e-4, 3e-4, (0, 0, 0), 0)
LIMITS = Limits(2e-4, 3e-4, 3e-4, 6e-4, 1e-4, 1e-4, 2e-4, 2e-4, 3e-4)
DIGESTS = dict.fromkeys(("q", "k", "v", "o", "yardstick"), "0" * 64)
PASSED = Case("a", MISSION, "normal", 0, Status.PASSED, errors=ERRORS, limits=LIMITS, digests=DIGESTS)
WRONG = Case("b", MISSION, "normal", 0, Status.INCORRECT, "max error", ERRORS, LIMITS)
INFRA = Case("c", MISSION, "normal", 0, Status.INFRA_ERROR, "no space")


def verdict(*cases: Case) -> Verdict:
    return Verdict("k", "", "cpu", "quick", 0, cases)


def test_the_good_status_is_a_str() -> None:
    assert Status.PASSED == "PASSED"
    assert PASSED.passed
    assert not WRONG.passed


@pytest.mark.parametrize(
    "changes",
    [
        {"errors": None},
        {"limits": None},
        {"errors": replace(ERRORS, max_abs=3e-4)},
        {"errors": replace(ERRORS, rel_l2=4e-4)},
        {"errors": replace(ERRORS, worst_row_rel_l2=7e-4)},
        {"errors": replace(ERRORS, rms_row_rel_l2=4e-4)},
        {"errors": replace(ERRORS, not_finite=1)},
        {"errors": replace(ERRORS, exact=5, exact_wrong=1)},
        {"digests": {}},
        {"digests": {**DIGESTS, "o": "abc"}},
        *({"status": status} for status in Status if status is not Status.PASSED),
    ],
)
def test_an_illegal_record_cannot_be_built(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="case a"):
        replace(PASSED, **changes)


def test_no_figure_is_nan() -> None:
    for record in (ERRORS, LIMITS):
        with pytest.raises(ValueError, match="finite number"):
            replace(record, rel_l2=float("nan"))


def test_an_error_is_shown_as_a_share_of_its_limit() -> None:
    """The one place where it is computed."""
    lse = LseErrors(1e-6, 4e-6, (0, 0, 0), 0)
    shares = limited(replace(ERRORS, rel_l2=0.0, worst_row_rel_l2=0.09, lse=lse), replace(LIMITS, rms_row_rel_l2=0.0))
    assert list(shares) == [*LIMITED, "lse"]
    assert [each.text for each in shares.values()] == ["50%", "0%", "1,000,000,000x", "150x", "25%"]
    assert PASSED.shares == pytest.approx({name: each.share for name, each in limited(ERRORS, LIMITS).items()})
    assert INFRA.limited == INFRA.shares == {}


def test_the_original_contract_is_counted_and_not_decisive() -> None:
    """0.06 and 1e-3, both inclusive, and nothing that is not finite."""
    for changes, within in (
        ({}, True),
        ({"max_abs": 0.06, "rel_l2": 1e-3}, True),
        ({"max_abs": 0.0601}, False),
        ({"rel_l2": 1.001e-3}, False),
        ({"not_finite": 1}, False),
        ({"worst_row_rel_l2": 1.0, "exact_wrong": 7}, True),
    ):
        assert keeps_original_contract(replace(ERRORS, **changes)) is within, changes
    assert (WRONG.original_contract, WRONG.status) == (True, Status.INCORRECT)
    loose = replace(PASSED, errors=replace(ERRORS, max_abs=0.1), limits=replace(LIMITS, max_abs=0.2))
    assert (loose.original_contract, loose.status) == (False, Status.PASSED)
    assert INFRA.original_contract is None
    assert verdict(PASSED, loose, WRONG, INFRA).original_contract == 2
    assert verdict(PASSED, loose, WRONG, INFRA).to_dict()["original_contract"] == 2
    assert [case["original_contract"] for case in verdict(loose, INFRA).to_dict()["cases"]] == [False, None]


def test_a_verdict_is_that_of_its_worst_case() -> None:
    assert verdict(PASSED, PASSED).passed
    assert verdict(PASSED, PASSED).to_dict()["reason"] == ""
    assert verdict().status is Status.INFRA_ERROR
    assert not verdict().passed
    assert verdict(PASSED, INFRA).status is Status.INFRA_ERROR
    assert verdict(PASSED, INFRA).reason == "no space"
    assert verdict(INFRA, PASSED, WRONG).status is Status.INCORRECT
    assert verdict(INFRA, PASSED, WRONG).reason == "max error"
    assert verdict(WRONG).to_dict()["status"] == "INCORRECT"
