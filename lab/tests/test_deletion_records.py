"""The committed records of the campaigns ``deletion`` and ``weakening``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab import ROOT, TRITON_KERNEL
from lab.deletion import REASONS
from sdpalab.campaigns import deletion
from sdpalab.kernels.registry import KERNELS, needs

RECORDS = sorted((ROOT / "evidence" / "campaigns").glob("deletion-*.json"))
EXTERNAL = sorted((ROOT / "evidence" / "campaigns").glob("external-deletion-*.json"))


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """The committed records, oldest first: a campaign may be of some kernels only."""
    assert RECORDS, "python -m lab deletion writes one"
    return sorted((json.loads(path.read_text()) for path in RECORDS), key=lambda each: str(each["when"]))


@pytest.fixture(scope="module")
def external() -> list[dict[str, Any]]:
    """The committed records of PTX files with their launch files."""
    assert EXTERNAL, "python -m lab deletion FILE.ptx writes one"
    return [json.loads(path.read_text()) for path in EXTERNAL]


@pytest.fixture(scope="module")
def subjects(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results for each kernel from the newest campaign that it was in."""
    newest: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        of: dict[str, list[dict[str, Any]]] = {}
        for subject in record["subjects"]:
            of.setdefault(subject["configurations"][0].partition(" ")[0], []).append(subject)
        newest |= of
    return [subject for entries in newest.values() for subject in entries]


def test_the_records_cover_every_kernel(subjects: list[dict[str, Any]]) -> None:
    """New configurations join the records with the next run of the campaign."""
    named = {name for subject in subjects for name in subject["configurations"]}
    kernels = {name.partition(" ")[0] for name in named}
    assert {name for name in KERNELS if needs(name) is None} | {Path(TRITON_KERNEL).stem} <= kernels
    for name in named:  # on which code of its own, or others' too, depends on the problem
        ran = [subject["problems"] for subject in subjects if name in subject["configurations"]]
        assert sum(map(len, ran)) >= 4


def test_the_records_say_what_they_are_and_that_at_least_95_percent_are_killed(
    records: list[dict[str, Any]], external: list[dict[str, Any]]
) -> None:
    for record in records + external:
        assert record["commit"]
        assert record["when"]
        assert record["command"].startswith(("python scripts/", "sdpalab campaign", "python -m lab"))
        assert "/home" not in json.dumps(record)
        total = deletion.totals(record["subjects"])
        assert total == record["totals"]
        assert total["share"] >= 0.95
        assert total["unexplained"] == 0
    assert sum(record["totals"]["mutants"] for record in records) >= 80


def test_every_reason_explains_a_survivor_of_the_records(
    subjects: list[dict[str, Any]], external: list[dict[str, Any]]
) -> None:
    listed = subjects + [subject for record in external for subject in record["subjects"]]
    given = {mutant["reason"] for subject in listed for mutant in subject["mutants"] if not mutant["killed_by"]}
    recorded = {subject["subject"].partition(" ")[0] for subject in listed}
    entries = [entry for entry in REASONS if "weaker" not in entry]
    assert {entry["reason"] for entry in entries if entry["kernel"] in recorded} <= given
    assert given <= {entry["reason"] for entry in entries}


def test_every_reason_of_a_weaker_order_explains_a_survivor_of_the_records() -> None:
    """Mutants in the records of the campaign ``weakening``."""
    files = sorted((ROOT / "evidence" / "campaigns").glob("weakening-*.json"))
    mutants = [
        {**mutant, "kernel": subject["subject"].partition(" ")[0]}
        for file in files
        for subject in json.loads(file.read_text())["subjects"]
        for mutant in subject["mutants"]
    ]
    assert mutants
    for entry in REASONS:
        same = [each for each in mutants if (each["kernel"], each["weaker"]) == (entry["kernel"], entry.get("weaker"))]
        assert not same or entry["reason"] in {each.get("reason") for each in same}
