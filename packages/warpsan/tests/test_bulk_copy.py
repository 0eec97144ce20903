"""cp.async.bulk without tensors: copies in and out, groups and mbarriers, reductions."""

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, MODES, kernel, kinds
from warpsan.planting import replace_once

PARAMS = ".param .u64 p, .param .u64 q, .param .u32 n"
START = "ld.param.u64 %rd3, [q]; ld.param.u32 %r20, [n];\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n"
LOAD = (
    "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r20;\n"
    "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3], %r20, [%r2];\n"
)
WAIT = CTA_WAIT.format(0, "%r2", 0)
STORE = (
    "@!%p1 bra END;\ncp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r20;\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nEND:"
)


def copy(body: str, size: int = 4096, **options: object) -> tuple[list[str], bool]:
    source = np.random.default_rng(0).integers(0, 1 << 30, 1024, dtype=np.int32)
    out = np.zeros(1024, np.int32)
    reported = kinds(body, [out, source, size], params=PARAMS, **options)
    return reported, bool((out[: size // 4] == source[: size // 4]).all() and (out[size // 4 :] == 0).all())


@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize("size", [16, 1008, 4096])
def test_bytes_come_and_go(mode, schedule, size):
    assert copy(START + LOAD + WAIT + STORE, size, async_mode=mode, schedule=schedule) == ([], True)


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (WAIT, "", {"race", "async"}),
        ("_, [%r2], %r20", "_, [%r2], 32", {"mbarrier"}),
        ("_, [%r2], %r20", "_, [%r2], 8192", {"Deadlock"}),
        ("wait_group 0", "wait_group 1", {"async"}),
        ("cp.async.bulk.commit_group;\n", "", {"async"}),
        ("[%r1], [%rd3]", "[%r1+8], [%rd3]", {"misaligned"}),
        ("[%r1], [%rd3]", "[%r1], [%rd3+4]", {"misaligned"}),
        ("[%r1], [%rd3]", "[%r1], [%rd3+16]", {"out-of-bounds"}),
        ("[%r1], [%rd3]", "[%r1+12800], [%rd3]", {"out-of-bounds"}),
    ],
)
def test_each_mistake_is_found(old, new, kind, mode):
    body = START + LOAD + WAIT + STORE
    try:
        assert set(copy(replace_once(body, (old, new)), async_mode=mode)[0]) & kind
    except warpsan.Deadlock:
        assert kind & {"Deadlock", "misaligned", "out-of-bounds"}  # a copy that was skipped never completes


def test_a_second_copy_to_the_same_place_is_still_in_flight_after_the_first_has_landed():
    copies = LOAD + LOAD.splitlines(keepends=True)[1]
    source = np.arange(1024, dtype=np.int32)
    report = warpsan.launch(
        kernel(START + copies + WAIT + STORE, PARAMS), "k", 1, 64, [np.zeros_like(source), source, 4096]
    )
    second, store = (hazard for hazard in report.hazards if hazard.kind == "async")
    place = "16 bytes of shared memory at offset 0 which {other} still writes"
    assert (second.what, store.what) == (f"overwrites {place}", f"reads {place}")
    assert second.other is not None
    assert store.other is not None
    assert (second.other.pc, store.other.pc) == (second.pc - 1, second.pc)


OVERWRITE = "setp.eq.u32 %p7, %r0, {};\n@%p7 st.global.u32 [%rd3], 7;\n"
"""A thread overwrites the first word of the source."""


@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize("thread", [0, 1, 40])
def test_the_source_may_be_overwritten_behind_the_wait(thread, mode, schedule):
    """After the wait a copy has read everything, whichever thread issued it."""
    body = START + LOAD + WAIT + OVERWRITE.format(thread)
    assert kinds(body, [0, np.zeros(1024, np.int32), 4096], params=PARAMS, async_mode=mode, schedule=schedule) == []


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("thread", [0, 1, 40])
def test_the_source_is_overwritten_while_a_copy_reads_it(thread, mode):
    """A race also for the issuing thread."""
    body = START + LOAD + OVERWRITE.format(thread) + WAIT
    report = warpsan.launch(kernel(body, PARAMS), "k", 1, 64, [0, np.zeros(1024, np.int32), 4096], async_mode=mode)
    assert [each.kind for each in report.hazards] == ["race"]
    assert "overwrites what cp.async.bulk" in report.hazards[0].message
    assert "usually a missing wait" in report.hazards[0].message


def test_blocks_may_not_overwrite_what_copies_of_others_read():
    body = START + LOAD + WAIT + "mov.u32 %r9, %ctaid.x; setp.eq.u32 %p7, %r9, 1;\n@%p7 st.global.u32 [%rd3], 7;\n"
    assert kinds(body, [0, np.zeros(1024, np.int32), 4096], params=PARAMS, grid=2) == ["race"]


def test_a_size_that_is_no_multiple_of_sixteen():
    assert "misaligned" in kinds(START + LOAD, [np.zeros(64, np.int32), np.zeros(64, np.int32), 40], params=PARAMS)


def test_the_weaker_wait_is_for_reading_only():
    """After wait_group.read the source may be overwritten; the destination has the earlier content."""
    again = "st.shared.u32 [%r1], 7;\n"
    body = START + LOAD + WAIT + STORE.replace("wait_group 0;\n", "wait_group.read 0;\n" + again)
    assert copy(body) == ([], True)
    assert "async" in copy(body.replace("cp.async.bulk.wait_group.read 0;\n", ""))[0]


def test_groups_are_waited_for_from_the_oldest():
    two = (
        "@!%p1 bra END;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 1024;\ncp.async.bulk.commit_group;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1+1024], [%r1+1024], 1024;\ncp.async.bulk.commit_group;\n"
        "cp.async.bulk.wait_group.read 1;\nst.shared.u32 [%r1+{}], 7;\ncp.async.bulk.wait_group.read 0;\nEND:"
    )
    assert copy(START + LOAD + WAIT + two.format(0), 2048)[0] == []
    assert copy(START + LOAD + WAIT + two.format(1024), 2048)[0] == ["async"]


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("form", "dtype", "ufunc"),
    [
        ("add.u32", np.uint32, np.add),
        ("add.f32", np.float32, np.add),
        ("add.noftz.f16", np.float16, np.add),
        ("min.s32", np.int32, np.minimum),
        ("max.u64", np.uint64, np.maximum),
        ("xor.b32", np.uint32, np.bitwise_xor),
    ],
)
def test_reductions_into_global_memory(form, dtype, ufunc):
    rng = np.random.default_rng(1)
    source, out = (rng.integers(0, 50, 256).astype(dtype) for _ in range(2))
    before, size = out.copy(), source.nbytes
    reduce = STORE.replace(
        "cp.async.bulk.global.shared::cta.bulk_group", f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{form}"
    )
    assert kinds(START + LOAD + WAIT + reduce, [out, source, size], params=PARAMS, grid=3) == []
    want = before
    for _ in range(3):  # in sequence from each block
        want = ufunc(want, source)
    np.testing.assert_array_equal(out, want)


@pytest.mark.usefixtures("recorded_launches")
def test_from_one_blocks_shared_memory_to_anothers():
    body = (
        "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;\n"
        "mapa.shared::cluster.u32 %r6, %r1, %r5; add.u32 %r6, %r6, 1024; mapa.shared::cluster.u32 %r7, %r2, %r5;\n"
        "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nmad.lo.u32 %r8, %r3, 100, %r0; shl.b32 %r9, %r0, 2;\n"
        "add.u32 %r10, %r1, %r9; st.shared.u32 [%r10], %r8;\nfence.proxy.async.shared::cta;\n"
        "barrier.cluster.arrive; barrier.cluster.wait;\n"
        "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;\n"
        "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r1], 256, [%r7];\n"
        + WAIT
        + "ld.shared.u32 %r11, [%r10+1024]; mad.lo.u32 %r12, %r3, 64, %r0; mul.wide.u32 %rd4, %r12, 4;\n"
        "add.u64 %rd4, %rd1, %rd4; st.global.u32 [%rd4], %r11;\nbarrier.cluster.arrive; barrier.cluster.wait;\n"
    )
    for mode, schedule in MODES:
        out = np.zeros((4, 64), np.uint32)
        options = {"grid": 4, "cluster": (2, 1, 1), "async_mode": mode, "schedule": schedule}
        assert kinds(body, [out], **options) == []
        assert (out == (np.arange(4) ^ 1)[:, None] * 100 + np.arange(64)).all()
        assert "proxy" in kinds(body.replace("fence.proxy.async.shared::cta;\n", ""), [out], **options)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize(
    ("form", "combine"), [("add.u32", np.add), ("max.s32", np.maximum), ("xor.b32", np.bitwise_xor)]
)
def test_reductions_into_another_blocks_shared_memory(form, combine, mode, schedule, recorded):
    """Two copies of one source to one destination: each is combined with the destination, in either order."""
    reduce = "@%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes." + form
    body = (
        "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;\n"
        "mapa.shared::cluster.u32 %r6, %r1, %r5; add.u32 %r6, %r6, 1024; mapa.shared::cluster.u32 %r7, %r2, %r5;\n"
        "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nmad.lo.u32 %r8, %r3, 100, %r0; shl.b32 %r9, %r0, 2;\n"
        "add.u32 %r10, %r1, %r9; st.shared.u32 [%r10], %r8; st.shared.u32 [%r10+1024], 70;\n"
        "fence.proxy.async.shared::cta; barrier.cluster.arrive; barrier.cluster.wait;\n"
        "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 384;\n"
        f"{reduce} [%r6], [%r1], 256, [%r7];\n{reduce} [%r6], [%r1], 128, [%r7];\n"
        + WAIT
        + "ld.shared.u32 %r11, [%r10+1024]; mad.lo.u32 %r12, %r3, 64, %r0; mul.wide.u32 %rd4, %r12, 4;\n"
        "add.u64 %rd4, %rd1, %rd4; st.global.u32 [%rd4], %r11;\nbarrier.cluster.arrive; barrier.cluster.wait;\n"
    )
    out = np.zeros((4, 64), np.uint32)
    options = {"grid": 4, "cluster": (2, 1, 1), "async_mode": mode, "schedule": schedule}
    with recorded.launches():
        assert kinds(body, [out], **options) == []
    source = ((np.arange(4) ^ 1)[:, None] * 100 + np.arange(64)).astype(np.uint32)
    once = combine(np.uint32(70), source)
    want = np.concatenate([combine(once, source)[:, :32], once[:, 32:]], axis=1)
    np.testing.assert_array_equal(out, want)
    assert set(kinds(body.replace(WAIT, ""), [out], **options)) & {"race", "async"}


def test_prefetches_and_cache_hints_change_nothing():
    hint = LOAD.replace("::bytes [", "::bytes.L2::cache_hint [").replace(", [%r2];\n", ", [%r2], %rd3;\n", 2)
    hint = hint.replace("_, [%r2], %r20", "_, [%r2], %r20")
    assert copy(START + "cp.async.bulk.prefetch.L2.global [%rd3], %r20;\n" + hint + WAIT + STORE) == ([], True)


@pytest.mark.parametrize(
    "line",
    [
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], 16, %h1;",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f32 [%r1], [%r1], 8, [%r2];",
        "cp.reduce.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.add.u32 [%r1], [%rd1], 16, [%r2];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.inc.u32 [%rd1], [%r1], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%rd1], [%r1], 16;",
        "cp.async.bulk.wait_group %r1;",
    ],
)
def test_what_is_not_modelled_is_refused_with_its_line(line):
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+: cp"):
        warpsan.launch(kernel(line), "k", 1, 32, [np.zeros(64, np.uint32)])


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("fence", "clean"),
    [
        ("", False),
        ("@%p1 fence.mbarrier_init.release.cluster;\n", True),
        ("@%p1 fence.proxy.async;\n", True),
        ("@%p1 fence.acq_rel.cluster;\n", True),
        ("@%p1 fence.acq_rel.cta;\n", False),
        ("@!%p1 fence.mbarrier_init.release.cluster;\n", False),
    ],
)
def test_strict_needs_a_fence_behind_the_initialisation_of_an_mbarrier(fence, clean):
    start = START.replace("bar.sync 0;", fence + "bar.sync 0;")
    body = start + LOAD + WAIT + STORE
    assert copy(body) == ([], True)
    assert copy(body, checks=("race", "memory", "async", "strict")) == ([] if clean else ["mbarrier"], True)


@pytest.mark.parametrize(
    ("fence", "kinds_of"),
    [
        ("", ["proxy"]),
        ("fence.proxy.async;\n", []),
        ("fence.proxy.async.global;\n", []),
        ("fence.proxy.async.shared::cta;\n", ["proxy"]),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_what_a_kernel_writes_to_global_memory_needs_a_proxy_fence_before_it_copies_it(fence, kinds_of, behind):
    """A fence by the writing threads before the barrier, or by the copying thread after it."""
    body = START.replace("bar.sync 0;", f"st.global.u32 [%rd2], %r0;\n{fence * (not behind)}bar.sync 0;", 1)
    body += (fence and f"@%p1 {fence}") * behind + LOAD.replace("[%rd3]", "[%rd1]") + WAIT
    for schedule in ("lockstep", "reverse"):
        assert (
            kinds(body, [np.zeros(64, np.uint32), np.zeros(64, np.uint32), 256], params=PARAMS, schedule=schedule)
            == kinds_of
        )


MANY = (
    "mov.u32 %r21, 0; cvta.to.global.u64 %rd1, %rd1; @!%p1 bra END;\n"
    "AGAIN: {wait}st.shared.u32 [%r1], %r21; fence.proxy.async.shared::cta;\n"
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], {size}; cp.async.bulk.commit_group;\n"
    "add.u64 %rd1, %rd1, {size}; add.u32 %r21, %r21, 1; setp.lt.u32 %p5, %r21, {times}; @%p5 bra AGAIN;\n"
    "cp.async.bulk.wait_group 0;\nEND:"
)
"""Stores of one buffer, which is refilled after a wait for the reads only."""


@pytest.mark.sample
@pytest.mark.parametrize(("mode", "schedule"), MODES)
@pytest.mark.parametrize(("size", "times"), [(2048, 40), (16, 20_000)])
def test_more_stores_than_there_is_room_for(mode: str, schedule: str, size: int, times: int) -> None:
    out, filled = np.zeros((times, size // 4), np.int32), np.ones(size // 4, np.int32)
    modes = {"params": PARAMS, "async_mode": mode, "schedule": schedule}
    wait = "cp.async.bulk.wait_group.read 0;\n"
    body = START + LOAD + WAIT + MANY.format(wait=wait, size=size, times=times)
    assert kinds(body, [out, filled, size], **modes) == []
    assert (out[:, 0] == np.arange(times)).all()
    if times < 100:  # the source is overwritten before it is read
        assert "async" in kinds(body.replace(wait, ""), [out, filled, size], **modes)
