"""A sample of the campaign ``fuzz``, and its committed record."""

from __future__ import annotations

import json
import math

import pytest

import scalar_evaluator
from lab import ROOT, fuzz
from scalar_evaluator import Program, evaluate


def test_random_programs_compute_what_the_scalar_evaluator_says() -> None:
    result = fuzz.fuzz(math.inf, 1, "programs", rounds=25)
    assert result["failures"] == []
    assert result["counts"]["programs"] == 25


def test_damaged_ptx_raises_typed_errors_only() -> None:
    result = fuzz.fuzz(math.inf, 1, "parser", rounds=120)
    assert result["failures"] == []
    assert {"damaged: PtxSyntaxError", "damaged: ran"} <= set(result["counts"])


def test_a_wrong_result_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(program: Program, first: dict[str, int]) -> dict[str, int]:
        return {**evaluate(program, first), "r0": evaluate(program, first)["r0"] ^ 1}

    monkeypatch.setattr(scalar_evaluator, "evaluate", off_by_one)
    assert "%r0 of thread 0 is" in fuzz.program_round(1)


@pytest.mark.usefixtures("recorded_launches")
def test_random_programs_leave_what_is_recorded() -> None:
    for seed in range(12):
        assert fuzz.program_round(seed) == ""


def test_records_of_the_campaign() -> None:
    paths = sorted((ROOT / "evidence" / "campaigns").glob("fuzz-*.json"))
    assert paths
    record = json.loads(paths[-1].read_text())
    assert record["failures"] == []
    assert record["seconds"] >= 600
    assert record["counts"]["programs"] >= 1000
    assert record["commit"]
