"""The accuracy of the diagnosis on edits of CUDA sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import diagnosis
from sdpalab.bugs.catalogue import BUGS
from sdpalab.bugs.cause import Cause
from sdpalab.errors import UserError

RECORDS = Path(__file__).resolve().parents[2] / "evidence" / "campaigns"


def test_an_edit_is_judged_and_its_cause_named() -> None:
    named = diagnosis.diagnosed(BUGS["scalar: no normalisation"], Cause.NORMALISATION)
    assert (named.failed, named.named[0]) == (2, Cause.NORMALISATION)
    assert named.likely.startswith(Cause.NORMALISATION.value)


def test_an_edit_has_one_cause_and_unknown_words_have_none() -> None:
    assert len(diagnosis.edits()) > 30
    assert all(sum(words in name for words in diagnosis.CAUSES) == 1 for name in diagnosis.edits())
    with pytest.raises(UserError, match="no edit whose cause is certain has 'no such words'"):
        diagnosis.run("no such words", print)


def test_the_committed_record_has_all_edits_and_the_right_totals() -> None:
    (record,) = (json.loads(path.read_text()) for path in RECORDS.glob("diagnosis-*.json"))
    assert {each["id"]: Cause(each["cause"]) for each in record["edits"]} == diagnosis.edits()
    failed = [each for each in record["edits"] if each["failed"]]
    ranks = [[*each["named"], each["cause"]].index(each["cause"]) for each in failed if each["cause"] in each["named"]]
    first, three = (sum(rank < most for rank in ranks) for most in (1, 3))
    assert record["totals"] == {
        "edits": len(record["edits"]),
        "failed": len(failed),
        "first": first,
        "first_three": three,
    }
