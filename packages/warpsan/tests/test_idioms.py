"""CUDA C++ idioms that pass data between threads (idioms.cu): correct ones are clean in every schedule, and each
variant with one wrong step is reported.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import warpsan
from warpsan.build.builder import build
from warpsan.build.source import Module

SOURCE = Path(__file__).with_name("idioms.cu")
SCHEDULES = ("lockstep", "forward", "reverse", "random")
MAX_STEPS = 20_000
RACE, LANES = {"race"}, {"lane-race"}

IDIOMS: dict[str, tuple[int, int, list[set[str]]]] = {
    "spin_lock": (3, 32, [RACE] * 4),
    "lock_of_libcu": (3, 32, [RACE] * 3),
    "ticket_lock": (3, 32, [RACE] * 2),
    "lock_of_lanes": (2, 8, [RACE] * 2),
    "try_lock": (3, 32, [RACE]),
    "flag_of_blocks": (2, 64, [RACE] * 5),
    "volatile_flag": (1, 64, [RACE] * 3),
    "double_checked": (2, 64, [RACE] * 3),
    "wait_of_libcu": (3, 32, [RACE] * 2),
    "semaphore": (3, 32, [RACE] * 2),
    "latch": (1, 64, [RACE]),
    "give_up": (2, 32, [RACE]),
    "sequence_lock": (2, 32, [RACE]),
    "ring": (2, 32, [RACE] * 3),
    "look_back": (4, 64, [RACE] * 3),
    "look_back_in_one_word": (4, 32, [RACE]),
    "last_block": (3, 64, [RACE] * 4),
    "reset_of_the_count": (3, 64, [RACE] * 2),
    "last_block_of_libcu": (3, 64, [RACE] * 3),
    "queue": (4, 32, [RACE] * 2),
    "counter_of_blocks": (3, 64, [RACE]),
    "grid_sync": (3, 64, [RACE] * 2),
    "histogram": (1, 64, [RACE] * 3),
    "two_buffers": (1, 64, [RACE]),
    "tree": (1, 128, [RACE, LANES]),
    "named_barriers": (1, 128, [RACE, {"race", "barrier", "deadlock"}, {"barrier"}]),
    "barrier_of_libcu": (1, 64, [RACE, {"race", "mbarrier"}]),
    "prefetch": (1, 64, [{"async", "race"}, RACE, {"async", "race"}]),
    "aggregated": (2, 64, [RACE]),
    "tiles": (1, 64, [LANES, LANES]),
    "vote": (1, 64, [{"divergent", "deadlock"}]),
    "shuffle": (1, 64, [{"divergent", "deadlock"}]),
    "exchange": (4, 64, [RACE, {"cluster"}, RACE, RACE]),
    "flag_in_a_cluster": (4, 64, [RACE] * 2),
}
"""Blocks, threads per block, and hazards of each wrong step, at least one of which is reported."""
CASES = [(name, step) for name, (_, _, wrong) in IDIOMS.items() for step in range(len(wrong) + 1)]


@cache
def ptx() -> str:
    return build(Module("idioms.cu", SOURCE.read_text(), "spin_lock_0"), "sm_90").ptx.decode()


def reported(name: str, step: int, schedule: str) -> dict[str, str]:
    """Messages of a launch by kind, and its exception if it ended early."""
    grid, block, _ = IDIOMS[name]
    arrays = [np.zeros(1024, np.uint32), np.zeros(64, np.uint32), np.zeros(1024, np.uint32)]
    cluster = (2, 1, 1) if "cluster" in name or name == "exchange" else (1, 1, 1)
    options = {"cluster": cluster, "cooperative": name == "grid_sync", "checks": warpsan.thorough_checks()}
    try:
        hazards = warpsan.launch(
            ptx(), f"{name}_{step}", grid, block, arrays, schedule=schedule, max_steps=MAX_STEPS, **options
        ).hazards
        ended = {}
    except (warpsan.Deadlock, warpsan.StepLimit) as error:
        hazards, ended = list(error.hazards), {type(error).__name__.lower(): str(error)}
    return {hazard.kind: hazard.message for hazard in hazards} | ended


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "step"), CASES)
def test_right_idioms_are_clean_and_wrong_ones_are_reported(name: str, step: int) -> None:
    runs = (reported(name, step, schedule) for schedule in SCHEDULES)
    if step == 0:
        assert [*runs] == [{}] * len(SCHEDULES)
    else:
        expected = IDIOMS[name][2][step - 1]
        assert any(expected & run.keys() for run in runs)
