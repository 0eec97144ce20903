"""Recorded outcomes: launches of a test are compared with records in ``recorded/`` beside its module.

    def test_a_kernel(recorded):
        recorded.check(outcome)  # anything that JSON has

``recorded.launches()`` checks every launch in its context (``outcomes.py``), and the fixture ``recorded_launches``
every launch of a test. ``recorded_wholly`` also checks memory and the threads of hazards, which depend on the order of
racing threads. A file has the outcomes of one module, one line per test. ``pytest --record FILE`` rewrites it, with the
outcomes of tests that ran, and without deleted tests. Review the difference before a commit. The first records are
outcomes of a second simulator, on NumPy, which was deleted.
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
"""Ids of all collected tests, including deselected ones."""


class Module:
    """Records of one module's tests."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path, self.write = path, write
        self.kept: dict[str, list[Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def close(self, collected: set[str] | None) -> None:
        """Write the records; tests that were not ``collected``, if known, lose theirs."""
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
    """Outcomes of one test, in order."""

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
        """Check each launch in this context as an outcome (``outcomes.described``)."""
        from outcomes import checking  # imports the packages, after conftest.py has set up the environment

        with pytest.MonkeyPatch.context() as patch:
            modules = [importlib.import_module(f"warpsan.host.{name}") for name in ("launch", "device")]
            for module in modules:  # all are imported before the first is patched
                patch.setattr(module, "execute", checking(self.check, module.execute, wholly=wholly))
            yield

    def close(self) -> None:
        """End of a passed test: all records must have been compared."""
        if self._module.write:
            self._module.kept[self._test] = self._checked
        else:
            kept = len(self._module.kept.get(self._test, []))
            assert kept == len(self._checked), f"{self._test} has {kept} records and {len(self._checked)} outcomes"


@pytest.fixture(scope="module")
def module_records(request: pytest.FixtureRequest) -> Iterator[Module]:
    """Records of the module's tests."""
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
    """Compares outcomes of a test with its records."""
    outcomes, failed = Recorded(module_records, _name(request.node.nodeid)), request.session.testsfailed
    yield outcomes
    if request.session.testsfailed == failed:
        outcomes.close()


@pytest.fixture
def recorded_launches(recorded: Recorded) -> Iterator[None]:
    """Compares every launch of the test with its record."""
    with recorded.launches():
        yield


@pytest.fixture
def recorded_wholly(recorded: Recorded) -> Iterator[None]:
    """As ``recorded_launches``, with results that depend on the order of racing threads."""
    with recorded.launches(wholly=True):
        yield
