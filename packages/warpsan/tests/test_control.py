"""Control flow: divergence and reconvergence, loops, early exits, and the barriers of a block."""

import numpy as np
import pytest

import warpsan

THREADS = 128


def launch(body, *, block=THREADS, grid=1, shared=1024, results=1, **options):
    """Run a body; ``%t`` is the thread, ``%i`` its index in the grid; ``%d0``, ``%d1``... are its results.

    ``tile`` is shared memory, ``%s`` the address of the thread's word in it.
    """
    numbers = range(results)
    lines = [
        ".reg .b64 %addr, %wide; .reg .b32 %t, %i, %s, %n, %x<8>, %d<4>; .reg .pred %p<8>;",
        f".shared .align 16 .b8 tile[{shared}];",
        "mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %x0, %ctaid.x; mad.lo.u32 %i, %x0, %n, %t;",
        "mov.u32 %s, tile; mad.lo.u32 %s, %t, 4, %s;",
        *(f"mov.u32 %d{k}, 0;" for k in numbers),
        body,
        "STORE: mul.wide.u32 %wide, %i, 4;",
        *(f"ld.param.u64 %addr, [r{k}]; add.u64 %addr, %addr, %wide; st.global.u32 [%addr], %d{k};" for k in numbers),
        "DONE: ret;",
    ]
    parameters = ", ".join(f".param .u64 r{k}" for k in numbers)
    text = "\n".join(lines)
    ptx = f".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry k({parameters})\n{{\n{text}\n}}\n"
    out = [np.full(grid * block, 0xDEAD, np.uint32) for _ in numbers]
    report = warpsan.launch(ptx, "k", grid, block, out, **options)
    values = [array.tolist() for array in out]
    return (values[0] if results == 1 else values), report


def test_branches_join_again_before_a_warp_wide_instruction():
    body = """and.b32 %x1, %t, 1; setp.eq.u32 %p1, %x1, 0; @%p1 bra EVEN;
        mul.lo.u32 %d0, %t, 3; bra.uni JOIN;
        EVEN: add.u32 %d0, %t, 1000;
        JOIN: shfl.sync.bfly.b32 %d0, %d0, 1, 31, -1; activemask.b32 %d1;"""
    (d, mask), report = launch(body, results=2)
    assert d == [(t ^ 1) * 3 if (t ^ 1) % 2 else (t ^ 1) + 1000 for t in range(THREADS)]
    assert mask == [0xFFFFFFFF] * THREADS
    assert report.hazards == []


def test_a_warp_wide_instruction_inside_a_branch_taken_by_whole_warps():
    body = """setp.lt.u32 %p1, %t, 64; @!%p1 bra JOIN;
        shfl.sync.down.b32 %d0, %t, 1, 31, -1; redux.sync.add.u32 %d1, %t, -1;
        JOIN:"""
    (d, total), report = launch(body, results=2)
    assert d[:64] == [t + 1 if t % 32 < 31 else t for t in range(64)]
    assert total == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32 + [0] * 64
    assert report.hazards == []


def test_nested_branches():
    body = """and.b32 %x1, %t, 3; setp.lt.u32 %p1, %x1, 2; setp.eq.u32 %p2, %x1, 0; setp.eq.u32 %p3, %x1, 2;
        @!%p1 bra UPPER; @!%p2 bra ONE; mov.u32 %d0, 10; bra JOIN; ONE: mov.u32 %d0, 11; bra JOIN;
        UPPER: @!%p3 bra THREE; mov.u32 %d0, 12; bra JOIN; THREE: mov.u32 %d0, 13;
        JOIN: add.u32 %d0, %d0, 100;"""
    d, _ = launch(body)
    assert d == [110 + t % 4 for t in range(THREADS)]


def test_loops_with_a_trip_count_for_each_thread():
    body = """mov.u32 %x1, 0; and.b32 %x2, %t, 15;
        LOOP: setp.ge.u32 %p1, %x1, %x2; @%p1 bra OUT;
        add.u32 %x1, %x1, 1; mad.lo.u32 %d0, %x1, %x1, %d0; bra LOOP;
        OUT: redux.sync.max.u32 %d1, %d0, -1;"""
    (d, most), report = launch(body, results=2)
    assert d == [sum(k * k for k in range(t % 16 + 1)) for t in range(THREADS)]
    assert most == [sum(k * k for k in range(16))] * THREADS
    assert report.hazards == []


def test_a_loop_with_a_shuffle_in_it():
    body = """mov.u32 %d0, %t; mov.u32 %x1, 16;
        LOOP: shfl.sync.bfly.b32 %x2, %d0, %x1, 31, -1; add.u32 %d0, %d0, %x2;
        shr.u32 %x1, %x1, 1; setp.ne.u32 %p1, %x1, 0; @%p1 bra LOOP;"""
    d, _ = launch(body)
    assert d == [sum(range(t - t % 32, t - t % 32 + 32)) for t in range(THREADS)]


def test_guards_leave_the_other_threads_registers():
    body = """mov.u32 %d0, 7; and.b32 %x1, %t, 1; setp.eq.u32 %p1, %x1, 1;
        @%p1 add.u32 %d0, %d0, %t; @!%p1 mov.u32 %d0, %t;"""
    d, _ = launch(body)
    assert d == [7 + t if t % 2 else t for t in range(THREADS)]


def test_a_barrier_orders_shared_memory():
    body = """st.shared.u32 [%s], %t; bar.sync 0; xor.b32 %x1, %t, 127; mov.u32 %x2, tile; mad.lo.u32 %x1, %x1, 4, %x2;
        ld.shared.u32 %d0, [%x1];"""
    d, report = launch(body, grid=3)
    assert d == [t ^ 127 for t in range(THREADS)] * 3
    assert report.hazards == []


def test_threads_that_exit_early_are_not_waited_for():
    """Half of warp 1 and all of warps 2 and 3 exit; the others pass two barriers."""
    body = """setp.ge.u32 %p1, %t, 48; @%p1 bra DONE; st.shared.u32 [%s], %t; bar.sync 0;
        xor.b32 %x1, %t, 15; mov.u32 %x2, tile; mad.lo.u32 %x1, %x1, 4, %x2; ld.shared.u32 %d0, [%x1];
        barrier.sync.aligned 0;"""
    d, report = launch(body)
    assert d == [t ^ 15 for t in range(48)] + [0xDEAD] * 80
    assert [hazard.kind for hazard in report.hazards] == ["barrier", "barrier"]  # CUDA does not allow it


def test_an_exit_completes_a_barrier_that_others_wait_at():
    """Warps 0 to 2 wait first; warp 3 runs a loop and exits without arriving."""
    body = """setp.lt.u32 %p1, %t, 96; @%p1 bra WAIT; mov.u32 %x1, 0;
        LOOP: add.u32 %x1, %x1, 1; setp.lt.u32 %p2, %x1, 10; @%p2 bra LOOP; ret;
        WAIT: bar.sync 0; mov.u32 %d0, 1;"""
    d, _ = launch(body)
    assert d == [1] * 96 + [0xDEAD] * 32


def test_barriers_with_a_reduction():
    body = """setp.lt.u32 %p1, %t, 5; setp.ge.u32 %p2, %i, 0; setp.eq.u32 %p3, %i, 200;
        bar.red.popc.u32 %d0, 0, %p1; bar.red.and.pred %p4, 0, %p2; selp.u32 %d1, 1, 0, %p4;
        barrier.red.or.pred %p5, 0, %p3; selp.u32 %d2, 1, 0, %p5; bar.red.popc.u32 %d3, 0, !%p1;"""
    (popc, conjunction, disjunction, others), _ = launch(body, grid=2, results=4)
    assert popc == [5] * 256
    assert conjunction == [1] * 256
    assert disjunction == [0] * 128 + [1] * 128
    assert others == [123] * 256


def test_a_reduction_over_divergent_arrivals():
    body = """and.b32 %x1, %t, 64; setp.eq.u32 %p1, %x1, 0; setp.lt.u32 %p2, %t, 70; @%p1 bra LATER;
        bar.red.popc.u32 %d0, 0, %p2; bra.uni STORE;
        LATER: bar.red.popc.u32 %d0, 0, %p2; add.u32 %d0, %d0, 1000;"""
    d, _ = launch(body)
    assert d == [1070] * 64 + [70] * 64


def test_named_barriers_synchronise_part_of_a_block():
    """Each half of the block passes its own barrier; neither waits for the other."""
    body = """shr.u32 %x1, %t, 6; add.u32 %x1, %x1, 1; st.shared.u32 [%s], %t; bar.sync %x1, 64;
        xor.b32 %x2, %t, 63; mov.u32 %x3, tile; mad.lo.u32 %x2, %x2, 4, %x3; ld.shared.u32 %d0, [%x2];"""
    d, report = launch(body, grid=2)
    assert d == [t ^ 63 for t in range(THREADS)] * 2
    assert report.hazards == []


def test_producers_arrive_and_do_not_wait():
    """Warps 2 and 3 fill the tile and arrive at barrier 1; warps 0 and 1 wait there for all 128 threads, then read."""
    body = """setp.lt.u32 %p1, %t, 64; @%p1 bra READ; mul.lo.u32 %x1, %t, 5; st.shared.u32 [%s], %x1; bar.arrive 1, 128;
        mov.u32 %d0, 1; bra.uni STORE;
        READ: bar.sync 1, 128; ld.shared.u32 %d0, [%s+256];"""
    d, report = launch(body)
    assert d == [5 * (t + 64) for t in range(64)] + [1] * 64
    assert report.hazards == []


def test_a_barrier_can_be_used_over_and_over():
    body = """mov.u32 %x1, 0;
        LOOP: add.u32 %x2, %t, %x1; st.shared.u32 [%s], %x2; bar.sync 0;
        xor.b32 %x3, %t, 96; mov.u32 %x4, tile; mad.lo.u32 %x3, %x3, 4, %x4; ld.shared.u32 %x5, [%x3];
        add.u32 %d0, %d0, %x5; bar.sync 0; add.u32 %x1, %x1, 1; setp.lt.u32 %p1, %x1, 5; @%p1 bra LOOP;"""
    d, _ = launch(body, grid=2)
    assert d == [5 * (t ^ 96) + 10 for t in range(THREADS)] * 2


def test_a_barrier_that_is_not_completed_is_a_deadlock_that_names_it():
    body = "bar.sync 3, 256;"
    where = r"bar\.sync on barrier 3 at PTX line \d+: block \(0, 0, 0\) has 128 of 256 threads"
    with pytest.raises(warpsan.Deadlock, match=where):
        launch(body)


def test_two_halves_at_different_barriers_deadlock():
    body = "setp.lt.u32 %p1, %t, 64; @%p1 bra LOW; bar.sync 1; bra.uni STORE; LOW: bar.sync 2;"
    with pytest.raises(warpsan.Deadlock, match=r"barrier 1 .* has 64 of 128 threads"):
        launch(body)


def test_an_endless_loop_hits_the_step_limit():
    with pytest.raises(warpsan.StepLimit, match=r"more than 1000 steps, now at PTX line \d+"):
        launch("LOOP: add.u32 %d0, %d0, 1; bra LOOP;", max_steps=1000)


def test_a_loop_within_the_step_limit_is_fine():
    body = "LOOP: add.u32 %d0, %d0, 1; setp.lt.u32 %p1, %d0, 200; @%p1 bra LOOP;"
    d, report = launch(body, max_steps=1000)
    assert d == [200] * THREADS
    warps = THREADS // 32
    assert 600 * warps <= report.steps <= 1000 * warps
    assert report.lane_instructions == report.steps * 32


TABLE = """and.b32 %x1, %t, 3; TARGETS: .branchtargets ZERO, ONE, TWO, ONE; brx.idx{} %x1, TARGETS;
    ZERO: mov.u32 %d0, 10; bra JOIN; ONE: mad.lo.u32 %d0, %x1, 100, 1; bra JOIN; TWO: mov.u32 %d0, 12;
    JOIN: redux.sync.add.u32 %d1, 1, -1;"""


@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
def test_a_branch_by_index_goes_to_the_label_of_its_index(schedule):
    (d, together), report = launch(TABLE.format(""), results=2, schedule=schedule)
    assert d == [(10, 101, 12, 301)[t % 4] for t in range(THREADS)]
    assert together == [32] * THREADS
    assert report.hazards == []


def test_a_guarded_branch_by_index():
    guarded = TABLE.replace("brx", "setp.ge.u32 %p1, %t, 64; @%p1 brx").format("")
    (d, _), _ = launch(guarded, results=2)
    assert d == [10] * 64 + [(10, 101, 12, 301)[t % 4] for t in range(64, THREADS)]


def test_an_index_without_a_target_is_an_illegal_state():
    with pytest.raises(
        warpsan.IllegalAccess, match=r"brx\.idx at PTX line \d+: index 4 of 4 targets, by .* thread \(4, 0"
    ):
        launch(TABLE.format("").replace("%t, 3", "%t, 7"), results=2)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("ZERO, ONE", "ZERO, NOWHERE", "'NOWHERE'"),
        ("%x1, TARGETS", "%x1, JOIN", "no .branchtargets at the label 'JOIN'"),
    ],
)
def test_indexed_branches_to_what_is_not_there(old, new, what):
    with pytest.raises(warpsan.PtxSyntaxError, match=what):
        launch(TABLE.format("").replace(old, new), results=2)


UNKNOWN = ["bar.sync.weird 0;", "bar.red.xor.pred %p1, 0, %p1;", "bra.hot STORE;", TABLE.format(".hot")]


@pytest.mark.parametrize("instruction", UNKNOWN)
def test_forms_that_are_not_modelled_are_refused_with_their_line(instruction):
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+: "):
        launch(instruction)


def test_a_barrier_without_operands_is_refused_with_its_line():
    text = ".version 8.0\n.target sm_89\n.address_size 64\n.entry k()\n{\nbar.sync ;\nret;\n}\n"
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"line 6.*too few operands"):
        warpsan.launch(text, "k", 1, 32, [])
