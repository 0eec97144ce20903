"""mbarrier: phases, arrivals, bytes; waits that block, order, and report impossible events."""

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, MODES, kernel, kinds
from warpsan.planting import replace_once

INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\nbar.sync 0;\n"
ADDRESSES = "shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; xor.b32 %r5, %r4, 128;\n"
STORE = "st.shared.u32 [%r4], %r0;\n"
ARRIVE = "mbarrier.arrive.shared::cta.b64 %rd5, [%r2];\n"
WAIT = CTA_WAIT.format(0, "%r2", 0)
LOAD = "ld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd2], %r6;\n"
GOOD = INIT + ADDRESSES + STORE + ARRIVE + WAIT + LOAD


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_what_came_before_an_arrival_is_seen_after_the_wait(mode, schedule):
    out = np.zeros(64, np.uint32)
    assert kinds(GOOD, [out], async_mode=mode, schedule=schedule) == []
    assert (out == np.arange(64) ^ 32).all()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (WAIT, "", "race"),
        (WAIT, CTA_WAIT.format(0, "%r2", 1), "Deadlock"),  # in lockstep all threads have arrived, so phase 1 has begun
        ("[%r2], 64", "[%r2], 65", "Deadlock"),
        ("[%r2], 64", "[%r2], 33", "mbarrier"),
        ("bar.sync 0;\n", "", "race"),
        (INIT, "", "mbarrier"),
        (".shared::cta.b64 %rd5", ".relaxed.cta.shared::cta.b64 %rd5", "race"),
        ("try_wait.parity.shared", "try_wait.parity.relaxed.cta.shared", "race"),
        (ARRIVE + WAIT, WAIT + ARRIVE, "Deadlock"),
        (STORE, STORE + "@%p1 " + ARRIVE + "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\n", "mbarrier"),
        ("mbarrier.arrive.shared", "mbarrier.arrive.noComplete.shared", "mbarrier"),
        (STORE, STORE + "bar.sync 0; @%p1 mbarrier.inval.shared::cta.b64 [%r2]; bar.sync 0;\n", "mbarrier"),
    ],
)
def test_each_mistake_is_found(old, new, expected):
    body = replace_once(GOOD, (old, new)).replace(
        "%rd5, [%r2];", "%rd5, [%r2]" + (", 1;" if "noComplete" in new else ";")
    )
    try:
        assert expected in kinds(body, [np.zeros(64, np.uint32)])
    except warpsan.Deadlock:
        assert expected == "Deadlock"


def test_waiting_for_the_phase_before_the_first_does_not_block_and_orders_nothing():
    body = GOOD.replace(ARRIVE, "").replace(WAIT, CTA_WAIT.format(0, "%r2", 1))
    assert kinds(body, [np.zeros(64, np.uint32)]) == ["race"]


def test_a_deadlock_names_the_barrier_its_phase_its_arrivals_and_its_bytes():
    body = GOOD.replace(ARRIVE, "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 96;\n")
    with pytest.raises(warpsan.Deadlock, match=r"offset 16384 .* phase 0, with 63 of 64 arrivals and 96 bytes"):
        kinds(body, [np.zeros(64, np.uint32)])


def test_bytes_hold_a_phase_up_until_they_have_come():
    expect = "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 32;\nbar.sync 0;\n"
    come = "@%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], {};\n"
    out = np.zeros(64, np.uint32)
    assert kinds(GOOD.replace(ARRIVE, expect + ARRIVE + come.format(32)), [out]) == []
    assert kinds(GOOD.replace(ARRIVE, expect + ARRIVE + come.format(48)), [out]) == ["mbarrier"]
    with pytest.raises(warpsan.Deadlock, match="with 0 of 64 arrivals and 16 bytes"):
        kinds(GOOD.replace(ARRIVE, expect + ARRIVE + come.format(16)), [out])


@pytest.mark.usefixtures("recorded_launches")
def test_test_wait_says_whether_the_phase_of_a_token_is_over_and_does_not_block():
    body = (
        "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n@!%p1 bra END;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 0;\nselp.u32 %r6, 1, 0, %p2;\n"
        "mbarrier.arrive.shared::cta.b64 %rd5, [%r2];\nmbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd5;\n"
        "selp.u32 %r7, 2, 0, %p2;\nmbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 1;\nselp.u32 %r8, 4, 0, %p2;\n"
        "mbarrier.arrive.shared::cta.b64 _, [%r2]; mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 1;\n"
        "selp.u32 %r9, 8, 0, %p2; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8; add.u32 %r6, %r6, %r9;\n"
        "st.global.u32 [%rd1], %r6;\nEND:"
    )
    out = np.zeros(64, np.uint32)
    assert kinds(body, [out], counters=True) == []
    assert out[0] == 2 + 8


def test_a_token_of_more_than_one_phase_ago_is_reported():
    arrive = "mbarrier.arrive.shared::cta.b64 {}, [%r2];\n"
    body = (
        "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n@!%p1 bra END;\n"
        + arrive.format("%rd5")
        + arrive.format("_")
        + "mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd5;\nEND:"
    )
    assert kinds(body, [np.zeros(64, np.uint32)]) == ["mbarrier"]


def test_plain_accesses_to_an_mbarrier_until_it_is_invalid():
    free = "bar.sync 0;\n@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n"
    for touch in (
        "ld.shared.u32 %r6, [%r2+4];\n",
        "st.shared.u32 [%r2], 1;\n",
        "st.shared.v4.u32 [%r1+16384], {1, 2, 3, 4};\n",
    ):
        touch = "@%p1 " + touch.replace("%r6", "%r7")
        assert "mbarrier" in kinds(GOOD + touch, [np.zeros(64, np.uint32)])
        assert kinds(GOOD + free + touch, [np.zeros(64, np.uint32)]) == []


COPY = (
    "shl.b32 %r3, %r0, 4; add.u32 %r4, %r1, %r3; xor.b32 %r5, %r4, 512; mul.wide.u32 %rd3, %r0, 16;\n"
    "add.u64 %rd3, %rd1, %rd3;\ncp.async.cg.shared.global [%r4], [%rd3], 16;\n"
)
LOOK = "ld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd2+2048], %r6;\n"


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize(
    "arrive",
    [
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];\n",
        "cp.async.mbarrier.arrive.shared.b64 [%r2];\n" + ARRIVE,
    ],
)
def test_copies_arrive_when_they_have_landed(mode, schedule, arrive):
    data = np.arange(1024, dtype=np.uint32)
    assert kinds(INIT + COPY + arrive + WAIT + LOOK, [data], async_mode=mode, schedule=schedule) == []
    assert (data[512:576] == 4 * (np.arange(64) ^ 32)).all()
    assert set(kinds(INIT + COPY + arrive + LOOK, [data], async_mode=mode, schedule=schedule)) & {"async", "race"}
    only = INIT + COPY + ARRIVE + WAIT + LOOK
    assert set(kinds(only, [data], async_mode=mode, schedule=schedule)) & {"async", "race"}


@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse"])
@pytest.mark.parametrize(("fence", "expected"), [("", ["proxy"]), ("fence.proxy.async;\n", [])])
def test_what_copies_of_threads_wrote_needs_a_proxy_fence_before_a_bulk_copy_reads_it(fence, expected, schedule):
    arrive = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];\n"
    store = (
        "@!%p1 bra END;\nadd.u64 %rd4, %rd1, 2048;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd4], [%r1], 1024;\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nEND:"
    )
    body = INIT + COPY + arrive + WAIT + fence + store
    assert kinds(body, [np.zeros(1024, np.uint32)], schedule=schedule) == expected


@pytest.mark.usefixtures("recorded_launches")
def test_a_polling_loop_on_test_wait_ends():
    out = np.zeros(64, np.uint32)
    assert kinds(GOOD.replace("try_wait", "test_wait"), [out], schedule="forward") == []
    assert (out == np.arange(64) ^ 32).all()


def test_every_block_has_its_own_phases():
    """Block b completes b + 1 phases."""
    body = (
        INIT + "mov.u32 %r10, %ctaid.x; mov.u32 %r11, 0;\n"
        "LOOP: " + ARRIVE + "and.b32 %r12, %r11, 1;\n" + CTA_WAIT.format(0, "%r2", "%r12") + "add.u32 %r11, %r11, 1;\n"
        "setp.le.u32 %p3, %r11, %r10;\n@%p3 bra LOOP;\n"
        "mad.lo.u32 %r13, %r10, 256, 0; cvt.u64.u32 %rd6, %r13; add.u64 %rd2, %rd2, %rd6;\nst.global.u32 [%rd2], %r11;"
    )
    out = np.zeros((5, 64), np.uint32)
    assert kinds(body, [out], grid=5) == []
    assert (out == np.arange(1, 6)[:, None]).all()


DROP = (
    INIT
    + ADDRESSES
    + STORE
    + "setp.lt.u32 %p3, %r0, 32;\n@%p3 bra STAY;\nmbarrier.arrive_drop.shared::cta.b64 %rd6, [%r2];\nbra END;\nSTAY:\n"
    + ARRIVE
    + WAIT
    + ARRIVE.replace("%rd5", "_")
    + CTA_WAIT.format(1, "%r2", 1)
    + ARRIVE.replace("%rd5", "_")
    + CTA_WAIT.format(2, "%r2", 0)
    + "ld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd2], %r6;\nEND:"
)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_who_drops_out_counts_for_this_phase_and_not_for_later_ones(mode, schedule):
    """Half of the block drops out in phase 0; its stores are visible after it, and phases 1 and 2 end without it."""
    out = np.zeros(64, np.uint32)
    assert kinds(DROP, [out], async_mode=mode, schedule=schedule) == []
    assert (out[:32] == np.arange(32) + 32).all()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("arrive_drop", "arrive", "Deadlock"),
        ("arrive_drop.shared", "arrive_drop.relaxed.cta.shared", "race"),
        ("arrive_drop.shared::cta.b64 %rd6, [%r2]", "arrive_drop.expect_tx.shared::cta.b64 _, [%r2], 16", "Deadlock"),
        ("arrive_drop.shared::cta.b64 %rd6, [%r2]", "arrive_drop.shared::cta.b64 _, [%r2], 2", "mbarrier"),
        ("arrive_drop.shared::cta.b64 %rd6, [%r2]", "arrive_drop.shared::cta.b64 _, [%r2], 3", "mbarrier"),
    ],
)
def test_each_mistake_in_dropping_out_is_found(old, new, expected):
    try:
        assert expected in kinds(replace_once(DROP, (old, new)), [np.zeros(64, np.uint32)])
    except warpsan.Deadlock:
        assert expected in ("Deadlock", "mbarrier")


def test_an_mbarrier_that_all_have_dropped_out_of_ends_no_more_phases():
    body = (
        INIT + "mbarrier.arrive_drop.shared::cta.b64 %rd5, [%r2], 1;\nbar.sync 0;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 0; selp.u32 %r6, 1, 0, %p2;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r2], 1; selp.u32 %r7, 2, 0, %p2;\n"
        "add.u32 %r6, %r6, %r7; st.global.u32 [%rd2], %r6;\n"
    )
    out = np.zeros(64, np.uint32)
    assert kinds(body, [out]) == []
    assert (out == 1).all()
    assert kinds(body + ARRIVE, [out]) == ["mbarrier"]


def test_state_tokens_count_the_arrivals_still_expected():
    """The threads of a block arrive in sequence: each gets another count, from 64 down to 1."""
    body = (
        INIT + ARRIVE + "mbarrier.pending_count.b64 %r6, %rd5;\nmov.u32 %r7, %ctaid.x; mul.wide.u32 %rd6, %r7, 256;\n"
        "add.u64 %rd2, %rd2, %rd6; st.global.u32 [%rd2], %r6;\n"
        "mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd5; @!%p2 trap;\n"
    )
    out = np.zeros((2, 64), np.uint32)
    assert kinds(body, [out], grid=2) == []
    assert (np.sort(out, axis=1) == np.arange(1, 65)).all()


@pytest.mark.parametrize(
    "line",
    [
        "mbarrier.arrive_drop.shared::cluster.b64 %rd5, [%r2];",
        "mbarrier.arrive_drop.acquire.cta.shared::cta.b64 _, [%r2];",
        "mbarrier.pending_count.shared::cta.b64 %r6, %rd5;",
        "mbarrier.init.shared::cta.b32 [%r2], 1;",
    ],
)
def test_what_is_not_modelled_is_refused_with_its_line(line):
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+: mbarrier"):
        warpsan.launch(kernel(line), "k", 1, 32, [np.zeros(64, np.uint32)])
