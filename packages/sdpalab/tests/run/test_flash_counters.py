"""Counters of the simulator for ``flash`` on the mission shape, with and without the swizzle."""

from __future__ import annotations

import dataclasses
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sdpalab.bugs import replace_once
from sdpalab.inputs import make_inputs
from sdpalab.kernels.flash import FLASH
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.measure import gpu_named
from sdpalab.model.counted import CountedPlan, count
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from warpsan import Report
from warpsan.profile.counters import Counters

TILES = FLASH.default_config.but(SCHEDULE="tiles")
L4 = gpu_named("L4")


@cache
def counted(schedule: str) -> CountedPlan:
    return count(FLASH, MISSION, "sm_89", FLASH.default_config.but(SCHEDULE=schedule))


def test_the_mission_shape_in_whole_tiles_moves_exactly_its_bytes() -> None:
    counters = counted("tiles").main.counters
    assert counters.compulsory_read_bytes + counters.compulsory_write_bytes == MISSION.least_bytes
    assert counters.divergence == 0


@pytest.mark.parametrize("schedule", ["tiles", "auto"])
def test_the_mission_shape_does_exactly_its_flops_without_a_conflict(schedule: str) -> None:
    counters = counted(schedule).main.counters
    assert counters.tensor_flops == MISSION.flops
    assert counters.exponentials >= MISSION.exponentials
    assert counters.total("sectors") == counters.total("ideal_sectors")
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")


def test_the_mission_shape_fills_an_l4_only_where_blocks_share_tiles() -> None:
    whole, shared = (counted(schedule).modelled(L4).longest for schedule in ("tiles", "auto"))
    assert whole.wave_efficiency == pytest.approx(64 / (58 * 2))
    assert shared.wave_efficiency >= 0.85  # by warp instructions, merging included; by products it is 512 / (58 * 9)
    assert shared.binds == whole.binds == "tensor"
    assert shared.floor_us < 0.65 * whole.floor_us


def test_issue_slots_of_the_mission_shape() -> None:
    # All PTX counts, with moves that the machine code lacks; shared work is also begun, left and merged.
    whole, shared = (counted(schedule).modelled(L4).longest.issue_share for schedule in ("tiles", "auto"))
    assert whole == pytest.approx(0.328, abs=0.01)
    assert shared == pytest.approx(0.45, abs=0.01)
    assert shared is not None
    main = counted("auto").main
    assert main.machine_instructions is not None
    assert shared * main.machine_instructions / main.counters.total("warps") <= 0.375


def test_what_is_shared_costs_its_partial_results() -> None:
    counters = counted("auto").main.counters
    parts = sum(each.warps for each in counters.by_instruction if each.text.startswith("atom"))
    # Each part is O and the statistics of 64 rows: written once, read once, statistics twice.
    assert counters.compulsory_write_bytes - MISSION.least_bytes // 4 == parts * 128 * (64 // 2 + 4) * 4 + 64 * 4


def test_without_the_swizzle_every_ldmatrix_conflicts_eight_times(tmp_path: Path) -> None:
    shutil.copytree(INCLUDE_DIR, tmp_path, dirs_exist_ok=True)
    header = tmp_path / "tile" / "swizzle.cuh"
    edit = ("(row * CHUNKS + (chunk ^ phase)) * CHUNK_BYTES", "(row * CHUNKS + chunk + 0 * phase) * CHUNK_BYTES")
    header.write_text(replace_once(header.read_text(), edit))
    loads = [each for each in counters_with(tmp_path).by_instruction if each.text.startswith("ldmatrix") and each.warps]
    assert loads
    for each in loads:
        assert each.wavefronts == pytest.approx(8 * each.ideal_wavefronts)
        assert each.source.startswith(("sm80.cuh:", "offsets.cuh:"))


def counters_with(include_dir: Path) -> Counters:
    """Counters with the headers of another folder."""
    problem = Problem(1, 1, 128, 64)
    plan = FLASH.launch_plan(problem, TILES)
    (step,) = plan.launches
    assert step.module is not None
    module = dataclasses.replace(step.module, include_dirs=(include_dir,))
    reports: list[Report] = []
    executor = SimulatedExecutor(on_launch=lambda _, report: reports.append(report), checks=(), counters=True)
    executor.run(dataclasses.replace(plan, steps=(dataclasses.replace(step, module=module),)), inputs_of(problem))
    (report,) = reports
    assert report.counters is not None
    return report.counters


def inputs_of(problem: Problem) -> dict[str, np.ndarray]:
    inputs = make_inputs(problem)
    return {"q": inputs.q, "k": inputs.k, "v": inputs.v}
