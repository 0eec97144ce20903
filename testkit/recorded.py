"""What launches came to, recorded: a test's outcomes are compared with those in ``recorded/`` beside its module.

    def test_a_kernel(recorded):
        recorded.check(outcome)  # anything that JSON has

``recorded.launches()`` checks every launch in its context so (``outcomes.py``), and the fixture ``recorded_launches``
every launch of a test. ``recorded_wholly`` checks its memory and the
threads that its hazards name, too, which depend on the order of threads that race. A file has the outcomes of one
module, a line for each test. ``pytest --record FILE`` writes it anew: the outcomes of tests that ran, and of no test
that is not there any more. Read the difference before it is committed. The first records are the outcomes of a second
simulator, on NumPy, which was deleted.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["COLLECTED", "Module", "Recorded", "module_records", "recorded", "recorded_launches", "recorded_wholly"]

COLLECTED = pytest.StashKey[set[str]]()
"""The ids of all tests that were collected, those that are deselected among them."""


class Module:
    """The records of one module's tests."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path, self.write = path, write
        self.kept: dict[str, list[Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def close(self, collected: set[str] | None) -> None:
        """Write what was recorded; of tests that were not ``collected``, if that is known, there is no record."""
        gone = set() if collected is None else self.kept.keys() - collected
        if not self.write:
            assert not gone, f"no test asks for these records of {self.path.name}: {sorted(gone)}; pytest --record"
            return
        lines = (
            f"{json.dumps(test)}: {json.dumps(self.kept[test], sort_keys=True)}"
            for test in sorted(self.kept.keys() - gone)
        )
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


class Recorded:
    """The outcomes of one test, in their order."""

    def __init__(self, module: Module, test: str) -> None:
        self._module, self._test = module, test
        self._checked: list[Any] = []

    def check(self, value: Any) -> None:
        """Compare the test's next outcome with its record."""
        value = json.loads(json.dumps(value))
        number = len(self._checked)
        self._checked.append(value)
        if self._module.write:
            return
        kept = self._module.kept.get(self._test, [])
        if number >= len(kept):
            pytest.fail(f"outcome {number} of {self._test} has no record: pytest --record FILE makes it")
        if value != kept[number]:
            pytest.fail(
                f"outcome {number} of {self._test} is not the recorded one (pytest --record FILE makes it anew)\n"
                f"recorded: {json.dumps(kept[number], sort_keys=True)}\nnow:      {json.dumps(value, sort_keys=True)}"
            )

    @contextmanager
    def launches(self, *, wholly: bool = False) -> Iterator[None]:
        """Each launch in this context is an outcome (``outcomes.described``)."""
        from outcomes import checking  # it imports the lab, for which conftest.py sets up the environment

        with pytest.MonkeyPatch.context() as patch:
            for name in ("launch", "device"):
                module = importlib.import_module(f"warpsan.host.{name}")
                patch.setattr(module, "execute", checking(self.check, module.execute, wholly=wholly))
            yield

    def close(self) -> None:
        """The test is over, and has passed."""
        if self._module.write:
            self._module.kept[self._test] = self._checked
        else:
            kept = len(self._module.kept.get(self._test, []))
            assert kept == len(self._checked), f"{self._test} has {kept} records and {len(self._checked)} outcomes"


@pytest.fixture(scope="module")
def module_records(request: pytest.FixtureRequest) -> Iterator[Module]:
    """The records of the module's tests."""
    config = request.config
    path = request.path.parent / "recorded" / f"{request.path.stem}.json"
    module = Module(path, write=config.getoption("--record"))
    yield module
    whole = not any("::" in each for each in config.args)
    module.close({_name(each) for each in config.stash[COLLECTED]} if whole else None)


def _name(test: str) -> str:
    return test.partition("::")[2]


@pytest.fixture
def recorded(request: pytest.FixtureRequest, module_records: Module) -> Iterator[Recorded]:
    """Compares what a test gives it with what is recorded for the test."""
    outcomes, failed = Recorded(module_records, _name(request.node.nodeid)), request.session.testsfailed
    yield outcomes
    if request.session.testsfailed == failed:
        outcomes.close()


@pytest.fixture
def recorded_launches(recorded: Recorded) -> Iterator[None]:
    """Every launch of the test is compared with its record."""
    with recorded.launches():
        yield


@pytest.fixture
def recorded_wholly(recorded: Recorded) -> Iterator[None]:
    """The same, with what depends on the order of threads that race."""
    with recorded.launches(wholly=True):
        yield
