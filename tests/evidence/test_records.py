"""Illegal records cannot be built, and legal ones survive the way through JSON."""

from __future__ import annotations

from typing import Any

import pytest
from evidence_sample import Sample
from pydantic import ValidationError

from sdpalab.evidence.records import AttemptRecord, Figure, GateRecord, ProblemRecord, RuleRecord, VerdictRecord
from sdpalab.judge.verdict import Verdict
from sdpalab.problem import MISSION

TIME: dict[str, Any] = {"name": "graph replay", "value": 4.0, "unit": "us", "kind": "measured", "gpu": "L4"}


def attempt(verdict: Verdict, **more: Any) -> AttemptRecord:
    """An attempt without builds, for a verdict whose cases then ran no PTX."""
    record = VerdictRecord.of(verdict).model_dump(mode="json")
    for case in record["cases"]:
        case["run"].pop("ptx_sha256", None)
    return AttemptRecord.model_validate(
        {"kernel": "k", "config": "", "idea": "", "builds": [], "verdict": record, **more}
    )


def test_a_verdict_is_the_same_after_json(sample: Sample) -> None:
    for verdict in sample.verdicts:
        record = VerdictRecord.of(verdict)
        assert VerdictRecord.model_validate_json(record.model_dump_json()) == record
        assert record.model_dump(mode="json") == VerdictRecord.model_validate(verdict.to_dict()).model_dump(mode="json")
        assert [case.case() for case in record.cases] == list(verdict.cases)
        assert record.twelve == 1


def test_passed_needs_errors_below_their_limits_and_arrays(sample: Sample) -> None:
    good = VerdictRecord.of(sample.verdicts[0]).model_dump(mode="json")
    for spoil, message in (
        (lambda case: case["errors"].update(max_abs=1.0), "PASSED with max_abs"),
        (lambda case: case.update(limits=None), "PASSED needs its errors and limits"),
        (lambda case: case["errors"].update(rms_row_rel_l2=1.0), "PASSED with rms_row_rel_l2"),
        (lambda case: case["errors"].update(not_finite=3, exact_wrong=1), "PASSED with not_finite, exact_wrong"),
        (lambda case: case["errors"].pop("exact"), "Field required"),
        (lambda case: case["limits"].pop("rms_row_rel_l2"), "Field required"),
        (lambda case: case.update(original_contract=False), "original_contract False is not what its errors say"),
        (lambda case: case["digests"].pop("o"), "without the digest of o"),
        (lambda case: case["digests"].update(o="abc"), "not a sha256"),
        (lambda case: case.update(status="INCORRECT"), "needs a reason"),
        (lambda case: case.update(status="FINE"), "Input should be"),
        (lambda case: case.update(speedup=15), "Extra inputs"),
        (lambda case: case["problem"].update(kv_heads=3), "must divide heads"),
        (lambda case: case["errors"].update(rel_l2=float("nan")), "finite number"),
    ):
        record = VerdictRecord.of(sample.verdicts[0]).model_dump(mode="json")
        spoil(record["cases"][0])
        with pytest.raises(ValidationError, match=message):
            VerdictRecord.model_validate(record)
    with pytest.raises(ValidationError, match="its cases say PASSED"):
        VerdictRecord.model_validate({**good, "status": "INCORRECT", "passed": False})
    with pytest.raises(ValidationError, match="4 cases keep the original contract"):
        VerdictRecord.model_validate({**good, "original_contract": 3})
    with pytest.raises(ValidationError, match="its cases say INFRA_ERROR"):
        VerdictRecord.model_validate({**good, "cases": []})


def test_figures_carry_their_kind() -> None:
    assert Figure.model_validate(TIME).is_speed
    for changes, message in (
        ({"gpu": None}, "must name the GPU"),
        ({"kind": "simulated"}, "must not be a time"),
        ({"kind": "published"}, "must name its source"),
        ({"kind": "modelled"}, "must name its source"),
        ({"kind": "estimated"}, "Input should be"),
        ({"value": float("inf")}, "finite"),
    ):
        with pytest.raises(ValidationError, match=message):
            Figure.model_validate({**TIME, **changes})
    count = Figure.model_validate({"name": "HMMA issued", "value": 4096, "kind": "simulated"})
    assert not count.is_speed


def test_no_speed_without_passed(sample: Sample) -> None:
    assert attempt(sample.verdicts[0], figures=[TIME]).figures[0].value == 4.0
    with pytest.raises(ValidationError, match="is a speed, and the verdict is not PASSED"):
        attempt(sample.verdicts[1], figures=[TIME])
    with pytest.raises(ValidationError, match="a failure that says why"):
        AttemptRecord.model_validate({"kernel": "k", "config": "", "idea": "", "builds": [], "verdict": None})


def test_records_are_frozen() -> None:
    record = ProblemRecord(**MISSION.to_dict())
    assert record.problem() == MISSION
    with pytest.raises(ValidationError, match="frozen"):
        record.batch = 2


def test_a_gate_says_what_its_rules_say() -> None:
    rule = RuleRecord(name="registers", value=128, limit=120, kind="at most", ok=False)
    assert not GateRecord(rules=(rule,), reason="", ok=False).ok
    with pytest.raises(ValidationError, match="128 at most 120 is not True"):
        RuleRecord(name="registers", value=128, limit=120, kind="at most", ok=True)
    with pytest.raises(ValidationError, match="outcome is not that of its rules"):
        GateRecord(rules=(rule,), reason="", ok=True)
    with pytest.raises(ValidationError, match="at least 1 item"):
        GateRecord(rules=(), reason="", ok=True)
