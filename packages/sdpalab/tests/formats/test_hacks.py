"""The table of known hacks: every row has an outcome, and every variant exists and does not pass."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "formats"), str(TESTS / "judge")]

import written_submissions  # noqa: E402
from hacks import CAUGHT, HACKS, page  # noqa: E402
from written_submissions import SUBMISSIONS  # noqa: E402

ROOT = TESTS.parents[2]


def _statuses(file: str) -> dict[str, str]:
    """The expected status of each candidate of a catalogue's test."""
    text = (TESTS / "judge" / file).read_text()
    wrong = {"WRONG": "INCORRECT", "STALE": "STALE"}
    rows = re.findall(r'^    "(\w+)": (?:\(Status\.(\w+)|(\w+))', text, re.MULTILINE)
    return {name: status or wrong.get(named, named) for name, status, named in rows}


def _names(file: str) -> str:
    return (TESTS / "judge" / file).read_text()


@pytest.mark.parametrize("variant", sorted({variant for hack in HACKS for variant in hack.variants}))
def test_a_variant_exists_and_does_not_pass(variant: str) -> None:
    kind, _, name = variant.partition(" ")
    if kind == "submission":
        status = {f"{each.format}/{each.name}": each.status for each in SUBMISSIONS}[name]
    elif kind == "test":
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text()
        return
    elif kind in ("mixed", "size"):
        assert f'"{name}"' in _names({"mixed": "test_provenance.py", "size": "test_reaching.py"}[kind])
        return
    else:
        files = {"cheat": "test_cheats.py", "cuda": "test_cuda_cheats.py", "harmful": "test_harmful_candidates.py"}
        status = _statuses(files[kind])[name]
    assert status != "PASSED"


def test_no_row_is_open() -> None:
    assert len(HACKS) == 52
    assert len({hack.name for hack in HACKS}) == 52
    assert all(hack.reason for hack in HACKS)
    assert all(hack.variants for hack in HACKS if hack.outcome == CAUGHT)


def test_the_pages_are_those_of_the_tables() -> None:  # python scripts/generated_pages.py
    docs = ROOT / "packages" / "sdpalab" / "docs"
    assert (docs / "hacks.md").read_text() == page()
    assert (docs / "elsewhere.md").read_text() == written_submissions.page()
