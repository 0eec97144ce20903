"""Cases of a parametrised test in the fast suite: ``@pytest.mark.sample`` and ``@pytest.mark.sample(MOST)``.

A test over several parameters has a case per combination. Its sample has each value of each parameter at least once
(the each-choice criterion of Ammann and Offutt, "Introduction to Software Testing", 4.2), chosen greedily: 10 kernels
and 17 shapes are 17 cases instead of 170. ``MOST`` limits the number of cases, for a long list of one parameter. With
``first=True`` the sample has the first cases of the list, for tests that share builds with other tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import pytest

__all__ = ["beyond_the_sample"]


def beyond_the_sample(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Cases of tests marked ``sample`` that are not in the sample."""
    tests: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("sample") and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    beyond: set[pytest.Item] = set()
    for cases in tests.values():
        beyond |= set(cases) - _sample(cases)
    return beyond


def _sample(cases: list[Any]) -> set[pytest.Item]:
    marker = cases[0].get_closest_marker("sample")
    most = marker.args[0] if marker.args else len(cases)
    # Among cases that add equally many values, a digest of the parameters decides: equal in all tests with these
    # parameters, so that tests share builds.
    left = list(cases)
    if not marker.kwargs.get("first"):
        left.sort(key=lambda case: sha256(case.callspec.id.encode()).digest())
    values = {case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases}
    uncovered = set[tuple[str, int]]().union(*values.values())
    chosen: set[pytest.Item] = set()
    while uncovered and len(chosen) < most:
        best = max(left, key=lambda case: len(values[case] & uncovered))
        left.remove(best)
        chosen.add(best)
        uncovered -= values[best]
    return chosen


LEFT_OUT = pytest.StashKey[dict[str, int]]()
"""Number of deselected tests, by reason."""


def is_full(config: pytest.Config) -> bool:
    """Whether slow tests run."""
    return bool(config.getoption("--full") or config.getoption("--replay-on-gpu"))


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item], reason: str) -> None:
    """Deselect tests, with the reason in a line of the summary."""
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.stash[LEFT_OUT][reason] = len(left_out)
        config.hook.pytest_deselected(items=left_out)
