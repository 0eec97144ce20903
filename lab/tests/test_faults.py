"""A sample of the fault campaign (``python -m lab faults``), and what the committed record of it says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lab import ROOT, faults

RECORDS = sorted((ROOT / "evidence" / "campaigns").glob("faults-*.json"))


@pytest.mark.slow
def test_a_kill_is_no_verdict_and_leaves_nothing() -> None:
    calm, draw = faults.baseline("scalar"), random.Random(1)
    kills = [kill for _ in range(4) if (kill := faults.kill_one(calm, draw))]
    assert kills
    assert not [kill for kill in kills if not kill["ok"]]
    assert faults.repeat(calm, 3) == {"candidate": "scalar", "times": 3, "same": 3, "ok": True}


@pytest.mark.slow
def test_without_a_compiler_there_is_no_verdict() -> None:
    fault = faults.no_compiler()
    assert fault["ok"], fault
    assert "no CUDA compiler: pip install" in fault["said"][0]


@pytest.mark.slow
def test_without_room_for_the_cache_the_verdict_is_the_same(namespaces: None) -> None:
    fault = faults.no_space()
    assert fault["ok"], fault


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_the_committed_record_is_of_a_whole_campaign(record: Path) -> None:
    report = json.loads(record.read_text())
    assert report["totals"]["ok"]
    assert report["totals"]["kills"] == len(report["kills"]) >= 50
    assert report["repeats"]["times"] == report["repeats"]["same"] >= 100
    assert set(report["totals"]["victims"]) == {"candidate", "executor", "guard"}
    for fault in (*report["kills"], report["no_space"], report["no_compiler"]):
        assert fault["ok"]
        assert fault["seconds"] <= 60.0
