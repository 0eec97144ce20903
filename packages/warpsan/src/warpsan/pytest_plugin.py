"""pytest fixture for launches on the simulator that must have no hazard.

def test_saxpy(warpsan):
    warpsan.launch(ptx, "saxpy", grid=4, block=256, args=[x, y, 2.0, 1024])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from warpsan import Report

__all__ = ["CheckedLaunches", "warpsan"]


class CheckedLaunches:
    """Launches that fail the test with their hazards."""

    def launch(self, *args: Any, **options: Any) -> Report:
        """:func:`warpsan.launch` with the default checks and those of ``thorough_checks``.

        Raises
        ------
        pytest.fail.Exception
            If the launch has a hazard; the message has one sentence per hazard.
        """
        from warpsan import launch, thorough_checks

        options.setdefault("checks", thorough_checks())
        report = launch(*args, **options)
        if report.hazards:
            pytest.fail("\n".join(hazard.message for hazard in report.hazards), pytrace=False)
        return report


@pytest.fixture
def warpsan() -> CheckedLaunches:
    """Launches on the simulator that fail the test on a hazard."""
    return CheckedLaunches()
