"""Recorded outcomes: differences, missing records and unused records are errors with a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recorded import Module, Recorded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the records of two tests of one module."""
    write(tmp_path, {"test_b": [1, {"hazards": ["race"]}], "test_a": ["text"]}, collected={"test_a", "test_b"})
    return tmp_path


def write(folder: Path, outcomes: dict[str, list[object]], collected: set[str]) -> None:
    """Record outcomes, as ``pytest --record`` does."""
    module = Module(folder / "test_things.json", write=True)
    for test, values in outcomes.items():
        one = Recorded(module, test)
        for value in values:
            one.check(value)
        one.close()
    module.close(collected)


def kept(folder: Path) -> Recorded:
    return Recorded(Module(folder / "test_things.json", write=False), "test_b")


def test_a_file_has_a_line_for_each_test(folder: Path) -> None:
    lines = (folder / "test_things.json").read_text().splitlines()
    assert lines == ["{", '"test_a": ["text"],', '"test_b": [1, {"hazards": ["race"]}]', "}"]


def test_equal_outcomes_pass(folder: Path) -> None:
    outcomes = kept(folder)
    outcomes.check(1)
    outcomes.check({"hazards": ("race",)})  # JSON has no tuples
    outcomes.close()


def test_another_outcome_fails(folder: Path) -> None:
    outcomes = kept(folder)
    outcomes.check(1)
    with pytest.raises(
        pytest.fail.Exception, match=r"outcome 1 of test_b is not the recorded one.*\n.*race.*\n.*async"
    ):
        outcomes.check({"hazards": ["async"]})


def test_more_or_fewer_outcomes_than_recorded_fail(folder: Path) -> None:
    outcomes = kept(folder)
    outcomes.check(1)
    with pytest.raises(AssertionError, match="test_b has 2 records and 1 outcomes"):
        outcomes.close()
    outcomes.check({"hazards": ["race"]})
    with pytest.raises(pytest.fail.Exception, match="outcome 2 of test_b has no record: pytest --record FILE makes it"):
        outcomes.check(2)


def test_a_record_that_no_test_asks_for_is_reported_and_goes(folder: Path) -> None:
    with pytest.raises(AssertionError, match=r"no test asks for these records of test_things.json: \['test_b'\]"):
        Module(folder / "test_things.json", write=False).close({"test_a", "test_c"})
    Module(folder / "test_things.json", write=False).close(None)  # part of the module was collected
    write(folder, {"test_c": [3]}, collected={"test_a", "test_c"})
    assert json.loads((folder / "test_things.json").read_text()) == {"test_a": ["text"], "test_c": [3]}
