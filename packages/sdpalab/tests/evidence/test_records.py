"""Illegal records cannot be built, and legal ones survive the way through JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from evidence_sample import Sample
from pydantic import ValidationError

from sdpalab.compile.gate import GateResult, Rule
from sdpalab.evidence.records import AttemptRecord, Figure, FigureKind
from sdpalab.judge.verdict import Case, Verdict

TIME: dict[str, Any] = {
    "name": "graph replay",
    "value": 4.0,
    "unit": "us",
    "kind": "measured",
    "gpu": "L4",
    "source": "",
}


def attempt(verdict: Verdict, **more: Any) -> AttemptRecord:
    """An attempt without builds, for a verdict whose cases then ran no PTX."""
    record = verdict.to_dict()
    for case in record["cases"]:
        case["run"].pop("ptx_sha256", None)
    return AttemptRecord(kernel="k", config="", idea="", builds=(), verdict=Verdict.from_dict(record), **more)


def test_a_verdict_is_the_same_after_json(sample: Sample) -> None:
    for verdict in sample.verdicts:
        text = json.dumps(verdict.to_dict(), allow_nan=False)
        assert Verdict.from_dict(json.loads(text)) == verdict
        assert verdict.twelve == 1
        record = attempt(verdict)
        assert AttemptRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
        for case in verdict.cases:
            assert Case.from_dict(case.to_dict()) == case


def test_a_verdict_of_format_2_has_no_log_sum_exp(sample: Sample) -> None:
    """Only fields that a format added may be missing."""
    data = sample.verdicts[1].to_dict()
    for case in data["cases"]:
        assert case["errors"].pop("lse") is None
    assert Verdict.from_dict(data) == sample.verdicts[1]


def test_passed_needs_errors_below_their_limits_and_arrays(sample: Sample) -> None:
    good = sample.verdicts[0].to_dict()
    for spoil, message in (
        (lambda case: case["errors"].update(max_abs=1.0), "PASSED with max_abs"),
        (lambda case: case.update(limits=None), "PASSED needs its errors and limits"),
        (lambda case: case["errors"].update(rms_row_rel_l2=1.0), "PASSED with rms_row_rel_l2"),
        (lambda case: case["errors"].update(not_finite=3, exact_wrong=1), "PASSED with not_finite, exact_wrong"),
        (lambda case: case["errors"].pop("exact"), "Errors: exact must be there"),
        (lambda case: case["limits"].pop("rms_row_rel_l2"), "rms_row_rel_l2 must be there"),
        (lambda case: case.update(original_contract=False), "original_contract is False, and its fields give True"),
        (lambda case: case["digests"].pop("o"), "without the digest of o"),
        (lambda case: case["digests"].update(o="abc"), "not a sha256"),
        (lambda case: case.update(status="INCORRECT"), "needs a reason"),
        (lambda case: case.update(status="FINE"), "Input should be"),
        (lambda case: case.update(speedup=15), "Unexpected keyword"),
        (lambda case: case["problem"].update(kv_heads=3), "must divide heads"),
        (lambda case: case["problem"].pop("scale"), "a problem has the fields"),
        (lambda case: case["errors"].update(rel_l2=float("nan")), "finite number"),
    ):
        record = sample.verdicts[0].to_dict()
        spoil(record["cases"][0])
        with pytest.raises(ValidationError, match=message):
            Verdict.from_dict(record)
    with pytest.raises(ValidationError, match=r"its fields give (PASSED|True)"):
        Verdict.from_dict({**good, "status": "INCORRECT", "passed": False})
    with pytest.raises(ValidationError, match="original_contract is 3, and its fields give 4"):
        Verdict.from_dict({**good, "original_contract": 3})
    with pytest.raises(ValidationError, match="its fields give INFRA_ERROR"):
        Verdict.from_dict({**good, "cases": [], "covers": [], "original_contract": 0, "passed": False})


def test_figures_carry_their_kind() -> None:
    assert Figure.from_dict(TIME).is_speed
    for changes, message in (
        ({"gpu": None}, "must name the GPU"),
        ({"kind": "simulated"}, "must not be a time"),
        ({"kind": "published"}, "must name its source"),
        ({"kind": "modelled"}, "must name its source"),
        ({"kind": "estimated"}, "Input should be"),
        ({"value": float("inf")}, "finite"),
    ):
        with pytest.raises(ValidationError, match=message):
            Figure.from_dict({**TIME, **changes})
    count = Figure(name="HMMA issued", value=4096, kind=FigureKind.SIMULATED)
    assert not count.is_speed


def test_no_speed_without_passed(sample: Sample) -> None:
    assert attempt(sample.verdicts[0], figures=[TIME]).figures[0].value == 4.0
    with pytest.raises(ValidationError, match="is a speed, and the verdict is not PASSED"):
        attempt(sample.verdicts[1], figures=[TIME])
    with pytest.raises(ValidationError, match="a failure that says why"):
        AttemptRecord(kernel="k", config="", idea="", builds=(), verdict=None)


def test_records_are_frozen() -> None:
    figure = Figure.from_dict(TIME)
    with pytest.raises(FrozenInstanceError):
        figure.value = 1.0  # type: ignore[misc]


def test_a_gate_says_what_its_rules_say() -> None:
    gate = GateResult((Rule("registers", 128, 120),), "")
    assert not gate.ok
    data = gate.to_dict()
    assert data == {"rules": [{"name": "registers", "value": 128, "limit": 120, "kind": "at most", "ok": False}]} | {
        "reason": "",
        "ok": False,
    }
    assert GateResult.from_dict(data) == gate
    with pytest.raises(ValidationError, match="Rule: ok is True, and its fields give False"):
        Rule.from_dict({**data["rules"][0], "ok": True})
    with pytest.raises(ValidationError, match="GateResult: ok is True, and its fields give False"):
        GateResult.from_dict({**data, "ok": True})
    with pytest.raises(ValidationError, match="at least 1 item"):
        GateResult((), "")
