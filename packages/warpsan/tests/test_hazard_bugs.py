"""Bugs of registers, barriers and atomics in CUDA source are reported, correct twins are clean, in any order."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from hazard_bugs import ALL, PAIRS, Pair
from warpsan.build.builder import build
from warpsan.build.source import Module


def hazards(pair: Pair, ptx: str, schedule: str) -> list[warpsan.Hazard]:
    """Hazards of a launch, also of one that ended with an exception."""
    given, out = np.arange(512, dtype=np.uint32) % 100, np.zeros(1024, np.uint32)
    try:
        return warpsan.launch(ptx, "entry", 2, pair.threads, [given, out, 40], schedule=schedule, seed=1).hazards
    except (warpsan.Deadlock, warpsan.StepLimit) as error:
        return list(error.hazards)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_bug_is_flagged_and_the_right_kernel_is_not(pair: Pair) -> None:
    right, broken = (
        build(Module("program.cu", pair.source(broken=broken), "entry"), pair.arch).ptx.decode()
        for broken in (False, True)
    )
    for schedule in ALL:
        assert [hazard.message for hazard in hazards(pair, right, schedule)] == [], schedule
    for schedule in pair.shows:
        found = [hazard for hazard in hazards(pair, broken, schedule) if hazard.kind == pair.kind]
        assert any(pair.says in hazard.message for hazard in found), (schedule, found)
        assert all(hazard.source.startswith("program.cu:") for hazard in found)
