"""The replay of an SM against schedules that are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sdpalab.compile.control import Control
from sdpalab.compile.sass import SassInstruction
from sdpalab.model.operations import Act, Memory, Operation, lines_of, operations
from sdpalab.model.pipes import pipes_of
from sdpalab.model.replay import replay
from warpsan.gpus import gpu_named

PIPES = replace(pipes_of(gpu_named("L4")), l2_bytes_per_clk_sm=16.0)


def op(act: Act = Act.PLAIN, *, stall: int = 1, write: int | None = None, wait: int = 0, **fields: Any) -> Operation:
    return Operation(act, Control(stall, False, write, None, wait, 0), **fields)


EXIT = op(Act.EXIT)


def clocks(*code: Operation, warps: int = 1, ctas: int = 1) -> float:
    """Until the last instruction of warps that all run the code has issued."""
    return replay([*code, EXIT], [range(len(code) + 1)] * warps, ctas, PIPES)


def test_stall_counts_add_up() -> None:
    assert clocks(op(stall=4), op(stall=7), op(stall=0)) == 4 + 7 + 1


def test_a_trace_has_the_clock_of_each_instruction() -> None:
    trace: list[tuple[float, int, int]] = []
    replay([op(stall=4), op(stall=7), EXIT], [[0, 1, 2], [0, 2]], 1, PIPES, trace=trace)
    assert sorted(trace) == [(0, 0, 0), (0, 1, 0), (4, 0, 1), (4, 1, 2), (11, 0, 2)]


def test_a_unit_takes_one_instruction_an_interval() -> None:
    product = op(unit="tensor", interval=16.0)
    assert clocks(product, product, product) == 2 * 16 + 1


def test_sub_cores_have_units_of_their_own_and_share_them_between_their_warps() -> None:
    product = op(unit="tensor", interval=16.0)
    assert clocks(product, product, warps=4) == 16 + 1
    assert clocks(product, product, warps=8) == pytest.approx(3 * 16, abs=2)


def test_one_instruction_a_clock() -> None:
    assert clocks(*[op()] * 10, warps=8) == pytest.approx(20, abs=2)  # two warps on each sub-core


def test_a_scoreboard_holds_who_waits_for_it() -> None:
    slow = op(Act.QUEUED, unit="special", interval=8.0, latency=17.0, write=3)
    assert clocks(slow, op(stall=1)) == 2
    assert clocks(slow, op(wait=0b1000)) == 17 + 1
    assert clocks(slow, op(wait=0b0100)) == 2


def test_a_queue_takes_some_and_then_holds_the_warp() -> None:
    special = op(Act.QUEUED, unit="special", interval=8.0, latency=17.0)
    assert clocks(*[special] * 4) == 4  # all in the queue
    assert clocks(*[special] * 10) == pytest.approx(8 * (10 - 4 - 1), abs=8)


def test_shared_memory_serves_all_sub_cores() -> None:
    wide = op(Act.SHARED, unit="shared", interval=4.0, latency=29.0, write=0)
    assert clocks(wide, op(wait=1)) == 4 + 29 + 1
    assert clocks(wide, op(wait=1), warps=4) == 4 * 4 + 29 + 1


def test_a_load_takes_its_bytes_and_its_latency() -> None:
    load = op(Act.LOAD, unit="l2", interval=512.0, latency=274.0, write=0)
    assert clocks(load, op(wait=1)) == 512 / 16 + 274 + 1


def test_a_wait_for_copies_leaves_as_many_groups_in_flight_as_it_says() -> None:
    copy, group = op(Act.COPY, interval=512.0, latency=274.0), op(Act.COPY_GROUP)
    for left, groups in ((0, 2), (1, 1)):
        assert clocks(copy, group, copy, group, op(Act.COPY_WAIT, group=left)) == groups * 32 + 274 + 1


def test_who_arrives_at_a_barrier_waits_for_the_last() -> None:
    barrier = op(Act.BARRIER, latency=20.0)
    slow, fast = [0, 2, 3], [1, 2, 3]
    assert replay([op(stall=15), op(stall=1), barrier, EXIT], [slow, fast], 1, PIPES) == 15 + 20


def test_a_named_barrier_is_for_its_threads_only() -> None:
    code = [op(Act.BARRIER, latency=20.0, group=1, threads=32), op(stall=15), EXIT]
    assert replay(code, [[0, 2], [1, 1, 1, 1, 2]], 1, PIPES) == 60


def test_products_of_a_warpgroup_end_by_groups() -> None:
    product = op(Act.WGMMA, unit="tensor", interval=64.0, latency=29.0, threads=1)
    assert clocks(product, product, op(Act.WGMMA_WAIT, group=1)) == 64 + 29 + 1
    assert clocks(product, product, op(Act.WGMMA_WAIT, group=0)) == 2 * 64 + 29 + 1


def test_who_waits_for_data_waits_for_the_warps_that_copy() -> None:
    code = [op(Act.COPY, interval=160.0, latency=300.0), op(Act.DATA_WAIT), EXIT]
    assert replay(code, [[0, 0, 2], [1, 1, 2]], 1, PIPES) == 2 * 10 + 300 + 1


def test_copies_run_ahead_as_far_as_shared_memory_allows() -> None:
    code = [op(Act.COPY, interval=160.0, latency=300.0), op(Act.DATA_WAIT), EXIT]
    paths = [[0] * 8 + [2], [1] * 8 + [2]]
    free, bound = replay(code, paths, 1, PIPES), replay(code, paths, 1, PIPES, 320.0)
    assert free == pytest.approx(8 * 10 + 300, abs=5)
    assert bound > 2 * free


def test_paths_that_do_not_meet_at_a_barrier_go_on_all_the_same() -> None:
    code = [op(Act.BARRIER, latency=20.0), op(), EXIT]
    assert replay(code, [[0, 0, 2], [0, 1, 2]], 1, PIPES) < 100


def test_equal_ctas_that_wait_overlap() -> None:
    slow = op(Act.QUEUED, unit="special", interval=8.0, latency=100.0, write=0)
    one, two = (clocks(*[slow, op(wait=1)] * 20, warps=4, ctas=ctas) for ctas in (1, 2))
    assert one == pytest.approx(20 * 100, rel=0.02)
    assert two == pytest.approx(20 * 100, rel=0.05)


CONTROL = Control(2, False, 1, None, 0, 0)


@pytest.mark.parametrize(
    ("opcode", "operands", "act", "interval"),
    [
        ("HMMA.16816.F32", "R4, R8, R10, R4", Act.PLAIN, 16.0),
        ("QMMA.16832.F32.E4M3.E4M3", "R4, R8, R10, R4", Act.PLAIN, 16.0),
        ("LDSM.16.M88.4", "R72, [R116]", Act.SHARED, 8.0),
        ("LDS.64", "R2, [R3]", Act.SHARED, 4.0),
        ("LDS", "RZ, [RZ]", Act.QUEUED, 1.0),
        ("LDG.E.128", "R4, [R2.64]", Act.LOAD, 512.0),
        ("LDGSTS.E.BYPASS.128", "[R73], [R60.64]", Act.COPY, 512.0),
        ("UTMALDG.4D", "[UR8], [UR4]", Act.COPY, 8192.0),
        ("MUFU.EX2", "R4, R4", Act.QUEUED, 8.0),
        ("EXIT", "", Act.EXIT, 1.0),
    ],
)
def test_what_an_instruction_costs(opcode: str, operands: str, act: Act, interval: float) -> None:
    one = SassInstruction(0, opcode, operands=operands, control=CONTROL)
    (made,) = operations([one], PIPES, Memory(conflicts=2.0, bulk_bytes=8192.0))
    assert (made.act, made.interval) == (act, pytest.approx(interval, rel=0.01))


def test_a_bulk_copy_moves_what_those_at_its_place_in_the_source_move() -> None:
    frames = ("sm90.cuh:41:0", "warpgroup.cuh:120:0")
    code = [SassInstruction(0, "UTMALDG.4D", operands="[UR8], [UR4]", frames=each) for each in (frames, frames[:1])]
    known = Memory(bulk_bytes=2048.0, bulk_at={lines_of(("sm90.cuh:41:5", "warpgroup.cuh:120:13")): 8192.0})
    assert [made.interval for made in operations(code, PIPES, known)] == [8192.0, 2048.0]


def test_barriers_and_waits_are_read_from_their_operands() -> None:
    def made(opcode: str, operands: str) -> Operation:
        return operations([SassInstruction(0, opcode, operands=operands)], PIPES, Memory())[0]

    barrier = made("BAR.SYNC.DEFER_BLOCKING", "0x1, 0x80")
    assert (barrier.act, barrier.group, barrier.threads) == (Act.BARRIER, 1, 128)
    assert made("BAR.SYNC.DEFER_BLOCKING", "R4, 0xa0").act is Act.DATA_WAIT
    wait = made("DEPBAR.LE", "SB0, 0x2")
    assert (wait.act, wait.scoreboard, wait.group) == (Act.COPY_WAIT, 0, 2)
    products = made("WARPGROUP.DEPBAR.LE", "gsb0, 0x1")
    assert (products.act, products.group) == (Act.WGMMA_WAIT, 1)
    wide = made("HGMMA.64x128x16.F32", "R24, gdesc[UR12], R24, gsb0")
    assert (wide.act, wide.interval, wide.threads) == (Act.WGMMA, 64.0, 1)
