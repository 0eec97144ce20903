"""Schedules of the lab's kernels: their paths have what was counted, and their times are in the ladder's order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sdpalab.kernels.registry import get
from sdpalab.model import schedule
from sdpalab.model.counted import CountedPlan, arch_on, count
from sdpalab.model.operations import Memory
from sdpalab.model.pipes import pipes_of
from sdpalab.model.schedule import Schedule
from sdpalab.problem import MISSION, Problem
from warpsan.gpus import gpu_named

SMALL = Problem(1, 4, 256, 64)


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], CountedPlan]:
    """Plans that are counted once."""
    named = [("flash", "L4"), ("wmma", "L4"), ("scalar", "L4"), ("hopper", "H200"), ("flash", "H200"), ("wmma", "H200")]
    found = {}
    for name, gpu_name in named:
        gpu = gpu_named(gpu_name)
        arch = arch_on(get(name), gpu)
        assert arch is not None
        found[name, gpu_name] = count(get(name), MISSION if gpu_name == "H200" else SMALL, arch, sms=gpu.sms)
    return found


@pytest.mark.parametrize("name", [("flash", "L4"), ("wmma", "L4"), ("hopper", "H200")])
def test_the_paths_do_what_was_counted(plans: dict[tuple[str, str], CountedPlan], name: tuple[str, str]) -> None:
    launch = plans[name].main
    ctas = len(launch.counters.by_cta)
    flops = sum(role.flops * len(role.warps) for role in launch.roles)
    assert flops == pytest.approx(launch.counters.tensor_flops / ctas, rel=0.1)
    opcodes = Counter(launch.code[place].opcode for role in launch.roles for place in role.path for _ in role.warps)
    exponentials = launch.counters.exponentials / 32 / ctas
    assert opcodes["MUFU.EX2"] == pytest.approx(exponentials, rel=0.1)
    assert sorted(warp for role in launch.roles for warp in role.warps) == list(range(len(launch.counters.by_warp)))


def test_warps_with_different_tasks_have_roles_of_their_own(plans: dict[tuple[str, str], CountedPlan]) -> None:
    roles = plans["hopper", "H200"].main.roles
    assert [role.warps for role in roles] == [(0,), (1, 2, 3), (4, 5, 6, 7)]
    copies = [sum(plans["hopper", "H200"].main.code[place].base == "UTMALDG" for place in role.path) for role in roles]
    assert copies[0] > 0
    assert copies[1:] == [0, 0]


def test_the_ladder_is_in_order(plans: dict[tuple[str, str], CountedPlan]) -> None:
    for gpu_name, order in (("L4", ["flash", "wmma", "scalar"]), ("H200", ["hopper", "flash", "wmma"])):
        times = [plans[name, gpu_name].modelled(gpu_named(gpu_name)) for name in order]
        assert [time.microseconds for time in times] == sorted(time.microseconds for time in times)
        for time in times:
            assert time.microseconds > time.floor_us
            assert all(step.schedule_us and not step.no_schedule for step in time.steps)


def test_a_part_of_the_turns_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = count(get("wmma"), Problem(1, 1, 1024, 64), "sm_89").main
    pipes = pipes_of(gpu_named("L4"))
    parts = Schedule(launch.code, launch.roles, Memory(), pipes)
    assert len(launch.roles[0].cut(0.5)) == pytest.approx(len(launch.roles[0].path) / 2, rel=0.15)
    monkeypatch.setattr(schedule, "ISSUES", 10**9)
    whole = Schedule(launch.code, launch.roles, Memory(), pipes)
    assert parts.clocks(1) == pytest.approx(whole.clocks(1), rel=0.05)


def test_counts_that_fit_no_path_leave_the_floor_and_say_so(plans: dict[tuple[str, str], CountedPlan]) -> None:
    plan = plans["wmma", "L4"]  # of which that is soon seen
    launch = plan.main
    no_counts = replace(launch.counters, by_warp=[[0] * len(warp) for warp in launch.counters.by_warp])
    broken = replace(plan, steps=(replace(launch, counters=no_counts),))
    time = broken.modelled(gpu_named("L4"))
    (step,) = time.steps
    assert step.schedule_us is None
    assert "machine code" in step.no_schedule
    assert step.microseconds == pytest.approx(step.floor_us + step.launch_us)


def test_where_no_latencies_are_known_the_floor_stands_in(plans: dict[tuple[str, str], CountedPlan]) -> None:
    strange = replace(gpu_named("L4"), name="strange", arch="sm_75")
    (step,) = plans["flash", "L4"].modelled(strange).steps
    assert step.no_schedule.startswith("no latencies are known for sm_75 (strange)")
    assert step.microseconds == step.floor_us


@pytest.mark.parametrize("name", [("flash", "L4"), ("wmma", "L4")])
def test_units_are_busy_for_what_the_paths_ask_of_them(
    plans: dict[tuple[str, str], CountedPlan], name: tuple[str, str]
) -> None:
    launch, gpu = plans[name].main, gpu_named("L4")
    work = launch.scheduled(gpu)
    assert work.schedule is not None
    busy, clocks = work.schedule.busy(2), work.schedule.clocks(2)
    products = sum(
        launch.code[place].base == "HMMA" for role in launch.roles for place in role.path for _ in role.warps
    )
    flops = launch.roles[0].flops / sum(launch.code[place].base == "HMMA" for place in launch.roles[0].path)
    # Two CTAs on four sub-cores, each of which takes an interval for a product.
    interval = pipes_of(gpu).mma_interval(int(flops), "fp16")
    assert busy["tensor"] == pytest.approx(2 * products * interval / 4 / clocks)
    issued = sum(len(role.path) * len(role.warps) for role in launch.roles)
    assert busy["issue"] == pytest.approx(2 * issued / 4 / clocks)
    assert max(busy.values()) <= 1.01


def test_the_turns_of_the_loop_are_most_of_the_time(plans: dict[tuple[str, str], CountedPlan]) -> None:
    launch = plans["wmma", "L4"].main
    work = launch.scheduled(gpu_named("L4"))
    assert work.schedule is not None
    turn, turns = work.schedule.turn_clocks(1), max(len(role.turns) for role in launch.roles)
    assert turn is not None
    assert 0.6 < turn * turns / work.schedule.clocks(1) <= 1.05
