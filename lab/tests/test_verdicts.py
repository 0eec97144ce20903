"""The record of verdicts at level full, on a few cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab import verdicts
from lab.__main__ import main
from sdpalab import cli
from sdpalab.bugs.catalogue import BUGS
from sdpalab.errors import UserError
from sdpalab.judge import CaseSpec, judge_candidate
from sdpalab.judge.cases import quick_cases
from sdpalab.problem import Problem


@pytest.mark.slow
def test_a_record_has_the_verdict_and_how_near_it_came_to_each_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = quick_cases([Problem(1, 1, 33, 64)])[:3]
    monkeypatch.setattr(verdicts, "full_cases", lambda: specs)
    out = tmp_path / "verdicts.json"
    assert main(["verdicts", "wmma", "flash", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert (record["campaign"], record["level"]) == ("verdicts", "full")
    assert [each["kernel"] for each in record["verdicts"]] == ["wmma", "flash"]
    codes = set()
    for each in record["verdicts"]:
        assert (each["status"], each["statuses"], each["cases"]) == ("PASSED", {"PASSED": 3}, 3)
        assert set(each["nearest"]) == {"max_abs", "rel_l2", "rms_row_rel_l2", "worst_row_rel_l2", "lse"}
        assert all(0 <= near["share"] <= 1 for near in each["nearest"].values())
        assert {near["case"] for near in each["nearest"].values()} <= {spec.name for spec in specs}
        codes.add(each["code_sha256"])
    assert len(codes) == 2
    assert "flash: PASSED, 3 of 3 cases" in capsys.readouterr().out


@pytest.mark.slow
def test_what_fails_is_recorded_and_is_exit_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BUGS["wmma: rescale of O lost"]
    monkeypatch.setattr(verdicts, "full_cases", lambda: quick_cases([broken.problem])[:1])
    monkeypatch.setattr(
        verdicts, "judge_by_jobs", lambda _, name, specs, **more: judge_candidate(broken.candidate, specs, **more)
    )
    out = tmp_path / "verdicts.json"
    assert main(["verdicts", "wmma", "--out", str(out)]) == 1
    (each,) = json.loads(out.read_text())["verdicts"]
    assert (each["status"], each["statuses"]) == ("INCORRECT", {"INCORRECT": 1})
    assert "limit" in each["reason"]
    assert max(near["share"] for near in each["nearest"].values()) > 1


def test_a_kernel_that_there_is_not_is_named_before_anything_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "verdicts.json"
    assert main(["verdicts", "wnma", "--out", str(out)]) == 2
    assert "did you mean 'wmma'" in capsys.readouterr().err
    assert not out.exists()


def test_the_cases_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[CaseSpec, ...]] = []

    def refuse(kernel: str, specs: Sequence[CaseSpec], **_: object) -> None:
        asked.append(tuple(specs))
        raise UserError("only the cases are wanted")

    monkeypatch.setattr("sdpalab.judge.session.judge_candidate", refuse)
    assert cli.main(["judge", "wmma", "--level", "full"]) == 2
    assert asked == [verdicts.full_cases()]
    assert len(asked[0]) > 200
