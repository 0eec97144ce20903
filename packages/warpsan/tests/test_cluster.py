"""Clusters: shared memory of other blocks, the cluster's barrier, remote arrivals, multicast."""

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, MODES, kernel, kinds
from warpsan.planting import replace_once

GRID, THREADS = 8, 64
START = (
    "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;\n"
    "mad.lo.u32 %r6, %r3, 64, %r0; mul.wide.u32 %rd2, %r6, 4; add.u64 %rd3, %rd1, %rd2;\n"
    "shl.b32 %r7, %r0, 2; add.u32 %r8, %r1, %r7; mad.lo.u32 %r9, %r3, 1000, %r0;\n"
    "mapa.shared::cluster.u32 %r10, %r8, %r5;\n"
)
BARRIER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
STORE = "st.shared.u32 [%r8], %r9;\n"
LOAD = "ld.shared::cluster.u32 %r11, [%r10]; st.global.u32 [%rd3], %r11;\n"
WANT = (np.arange(GRID) ^ 1)[:, None] * 1000 + np.arange(THREADS)


def reported(body: str, out: np.ndarray | None = None, **options: object) -> list[str]:
    out = np.zeros((GRID, THREADS), np.uint32) if out is None else out
    return kinds(START + body, [out], **{"grid": GRID, "cluster": (2, 1, 1), **options})


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_reading_the_other_blocks_memory_between_two_barriers(mode, schedule):
    out = np.zeros((GRID, THREADS), np.uint32)
    assert reported(STORE + BARRIER + LOAD + BARRIER, out, async_mode=mode, schedule=schedule, counters=True) == []
    assert (out == WANT).all()


@pytest.mark.usefixtures("recorded_launches")
def test_writing_and_adding_to_the_other_blocks_memory_and_generic_addresses():
    fetch = "ld.shared.u32 %r11, [%r8]; st.global.u32 [%rd3], %r11;\n"
    out = np.zeros((GRID, THREADS), np.uint32)
    assert reported("st.shared::cluster.u32 [%r10], %r9;\n" + BARRIER + fetch, out) == []
    assert (out == WANT).all()
    add = STORE + BARRIER + "atom.shared::cluster.add.u32 %r12, [%r10], 5;\n" + BARRIER + fetch
    assert reported(add, out) == []
    assert (out == np.arange(GRID)[:, None] * 1000 + np.arange(THREADS) + 5).all()
    generic = "cvt.u64.u32 %rd4, %r8; cvta.shared.u64 %rd4, %rd4; mapa.u64 %rd5, %rd4, %r5;\n"
    read = "ld.u32 %r11, [%rd5]; st.global.u32 [%rd3], %r11;\n"
    assert reported(STORE + generic + BARRIER + read + BARRIER, out) == []
    assert (out == WANT).all()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (STORE + LOAD + BARRIER, "race"),
        (STORE + "bar.sync 0;\n" + LOAD + BARRIER, "race"),
        (STORE + BARRIER.replace("arrive", "arrive.relaxed") + LOAD + BARRIER, "race"),
        (STORE + BARRIER + LOAD, "cluster"),  # the other block may have exited
        (STORE + "barrier.cluster.wait.aligned;\n" + LOAD + BARRIER, "cluster"),
        (STORE + "barrier.cluster.arrive.aligned;\n" + BARRIER + LOAD + BARRIER, "cluster"),
        (STORE + BARRIER + LOAD + "st.shared.u32 [%r8], 7;\n" + BARRIER, "race"),
        (STORE + BARRIER + LOAD.replace("[%r10]", "[%r10+16416]") + BARRIER, "out-of-bounds"),
        (STORE + BARRIER + "mapa.shared::cluster.u32 %r10, %r8, 2;\n" + LOAD + BARRIER, "out-of-bounds"),
        (STORE + BARRIER + LOAD.replace("::cluster", "::cta") + BARRIER, "out-of-bounds"),
    ],
)
@pytest.mark.parametrize("schedule", ["lockstep", "forward"])
def test_each_mistake_is_found(body, kind, schedule):
    assert kind in reported(body, schedule=schedule)


def test_a_fence_makes_a_relaxed_arrival_pass_on_what_came_before_it():
    relaxed = BARRIER.replace("arrive", "arrive.relaxed")
    assert reported(STORE + "fence.acq_rel.cluster;\n" + relaxed + LOAD + BARRIER) == []
    late = "fence.acq_rel.cluster;\n" + STORE + relaxed + LOAD + BARRIER
    assert reported(late) == ["race"]
    report = warpsan.launch(
        kernel(START + late), "k", GRID, THREADS, [np.zeros(GRID * THREADS, np.uint32)], cluster=(2, 1, 1)
    )
    assert "the arrival at the barrier of the cluster is .relaxed: use .release" in report.hazards[0].message


def test_a_deadlock_at_the_cluster_barrier():
    half = "setp.eq.u32 %p3, %r4, 0;\n@%p3 barrier.cluster.arrive;\n.loc 1 7 0\n@%p3 barrier.cluster.wait;\n"
    out = np.zeros((GRID, THREADS), np.uint32)
    assert reported(half, out) == []  # the other block exits, and no thread waits for it
    stuck = "@!%p3 mbarrier.init.shared::cta.b64 [%r2], 1;\n@!%p3 bra S;\nbra T;\nS: " + CTA_WAIT.format(0, "%r2", 0)
    ptx = kernel(START + half + stuck + "T:") + '.file 1 "cluster.cu"\n'
    with pytest.raises(
        warpsan.Deadlock, match=r"\(cluster\.cu:7\): the cluster .* 64 of 128 threads at its barrier in phase 0"
    ):
        warpsan.launch(ptx, "k", GRID, THREADS, [out], cluster=(2, 1, 1))


REMOTE = (
    "mapa.shared::cluster.u32 %r12, %r2, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 128;\n"
    "fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"
    + STORE
    + "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\nsetp.eq.u32 %p3, %r4, 0;\n@!%p3 bra END;\n"
    "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra W;\n"
    + LOAD
    + "END:\n"
    + BARRIER
)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_arriving_at_another_blocks_mbarrier(mode, schedule):
    out = np.zeros((GRID, THREADS), np.uint32)
    assert reported(REMOTE, out, async_mode=mode, schedule=schedule) == []
    assert (out[::2] == WANT[::2]).all()
    assert (out[1::2] == 0).all()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fence.mbarrier_init.release.cluster;\n", ""),
        ("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n", ""),
        ("arrive.release.cluster", "arrive.relaxed.cluster"),
        (".acquire.cluster", ".relaxed.cluster"),
        ("W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra W;\n", ""),
        ("END:\n" + BARRIER, "END:\n"),
    ],
)
def test_each_mistake_in_a_remote_arrival_is_found(old, new):
    assert set(reported(replace_once(REMOTE, (old, new)))) & {"race", "cluster"}


def test_special_registers_of_a_grid_of_clusters():
    names = ("cluster_ctaid.x", "cluster_ctaid.y", "clusterid.x", "clusterid.y", "cluster_ctarank", "cluster_nctarank")
    names += ("cluster_nctaid.x", "cluster_nctaid.y", "nclusterid.x", "nclusterid.y")
    body = (
        "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y; mad.lo.u32 %r3, %r4, 4, %r3; mul.wide.u32 %rd3, %r3, 64;\n"
        "add.u64 %rd3, %rd1, %rd3;\n"
        + "".join(f"mov.u32 %r5, %{name}; st.global.u32 [%rd3+{4 * i}], %r5;\n" for i, name in enumerate(names))
        + "mov.pred %p3, %is_explicit_cluster; selp.u32 %r5, 1, 0, %p3; st.global.u32 [%rd3+40], %r5;\n"
        "mapa.shared::cluster.u32 %r6, %r1, 1; getctarank.shared::cluster.u32 %r7, %r6; st.global.u32 [%rd3+44], %r7;\n"
        "getctarank.shared::cluster.u32 %r7, %r1; st.global.u32 [%rd3+48], %r7;"
    )
    out = np.zeros((6, 4, 16), np.uint32)
    assert kinds(body, [out], grid=(4, 6), block=1, cluster=(2, 3)) == []
    for y, x in np.ndindex(6, 4):
        rank = x % 2 + 2 * (y % 3)
        assert out[y, x, :13].tolist() == [x % 2, y % 3, x // 2, y // 3, rank, 6, 2, 3, 2, 2, 1, 1, rank]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": (3, 1, 1)}, "not a multiple"),
        ({"cluster": (32, 1, 1), "grid": 32}, "1 to 16 blocks"),
        ({"cluster": (0, 1, 1)}, "1 to 16"),
    ],
)
def test_clusters_that_no_gpu_would_launch(options, message):
    with pytest.raises(warpsan.LaunchError, match=message):
        reported("", **options)


def test_directives_decide_or_are_checked():
    out = np.zeros((GRID, THREADS), np.uint32)
    ptx = kernel(START + STORE + BARRIER + LOAD + BARRIER)
    fixed = ptx.replace("(.param .u64 p)", "(.param .u64 p) .explicitcluster .reqnctapercluster 2, 1, 1")
    assert warpsan.launch(fixed, "k", GRID, THREADS, [out]).hazards == []
    assert (out == WANT).all()
    with pytest.raises(warpsan.LaunchError, match="requires a cluster"):
        warpsan.launch(fixed, "k", GRID, THREADS, [out], cluster=(4, 1, 1))
    most = ptx.replace("(.param .u64 p)", "(.param .u64 p) .maxclusterrank 2")
    with pytest.raises(warpsan.LaunchError, match="at most 2 blocks"):
        warpsan.launch(most, "k", GRID, THREADS, [out], cluster=(4, 1, 1))
    with pytest.raises(warpsan.LaunchError, match="sm_90"):
        warpsan.launch(ptx.replace("sm_90a", "sm_89"), "k", GRID, THREADS, [out], cluster=(2, 1, 1))
    with pytest.raises(warpsan.LaunchError, match="explicitcluster"):
        warpsan.launch(ptx.replace("(.param .u64 p)", "(.param .u64 p) .explicitcluster"), "k", GRID, THREADS, [out])


def test_more_clusters_than_fit_into_one_chunk():
    out = np.zeros((600, THREADS), np.uint32)
    assert reported(STORE + BARRIER + LOAD + BARRIER, out, grid=600) == []
    assert (out == (np.arange(600) ^ 1)[:, None] * 1000 + np.arange(THREADS)).all()


MULTICAST = (
    "mov.b64 %rd3, a; cvta.param.u64 %rd4, %rd3;\nmov.u32 %r3, %clusterid.x; mov.u32 %r4, %cluster_ctarank;\n"
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nfence.mbarrier_init.release.cluster;\n"
    + BARRIER
    + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;\n"
    # Each of the two blocks loads half of the tile for both.
    "shl.b32 %r5, %r4, 4; shl.b32 %r6, %r4, 11; add.u32 %r6, %r6, %r1; mov.u32 %r7, 0; mov.u16 %h1, 3;\n"
    "@%p1 cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    " [%r6], [%rd4, {%r7, %r5, %r3}], [%r2], %h1;\n"
    + CTA_WAIT.format(0, "%r2", 0)
    + "mov.u32 %r8, %ctaid.x; mad.lo.u32 %r9, %r8, 1024, %r0; mul.wide.u32 %rd5, %r9, 4; add.u64 %rd5, %rd1, %rd5;\n"
    "shl.b32 %r10, %r0, 2; add.u32 %r10, %r10, %r1;\n"
    + "".join(f"ld.shared.u32 %r11, [%r10+{256 * i}]; st.global.u32 [%rd5+{256 * i}], %r11;\n" for i in range(16))
    + BARRIER
)
MULTICAST_PARAMS = ".param .align 64 .b8 a[128], .param .u64 p"


def multicast(body: str, **options: object) -> tuple[list[str], bool]:
    array = np.random.default_rng(0).integers(0, 1 << 30, (4, 32, 32), dtype=np.int32)
    out = np.zeros((4, 2, 32, 32), np.int32)
    tensor = warpsan.TensorMap(array, (1, 16, 32))
    what = kinds(body, [tensor, out], params=MULTICAST_PARAMS, grid=8, cluster=(2, 1, 1), **options)
    return what, bool((out == array[:, None]).all())


def test_a_multicast_reads_global_memory_once():
    array, out = np.zeros((4, 32, 32), np.int32), np.zeros((4, 2, 32, 32), np.int32)
    ptx = kernel(MULTICAST, MULTICAST_PARAMS)
    arguments = [warpsan.TensorMap(array, (1, 16, 32)), out]
    counters = warpsan.launch(ptx, "k", 8, 64, arguments, cluster=(2, 1, 1), counters=True).counters
    assert counters is not None
    assert counters.total("sectors", "async") == array.nbytes // 32


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_a_multicast_fills_both_blocks_and_tells_both_mbarriers(mode, schedule):
    assert multicast(MULTICAST, async_mode=mode, schedule=schedule) == ([], True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%h1, 3", "%h1, 1"),
        ("[%r2], 4096", "[%r2], 2048"),
        ("[%r2], 4096", "[%r2], 8192"),
        (CTA_WAIT.format(0, "%r2", 0), ""),
        (CTA_WAIT.format(0, "%r2", 0), CTA_WAIT.format(0, "%r2", 1)),
        ("fence.mbarrier_init.release.cluster;\n" + BARRIER, "bar.sync 0;\n"),
    ],
)
@pytest.mark.parametrize("schedule", ["lockstep", "reverse"])
def test_each_mistake_in_the_multicast_is_found(old, new, schedule):
    try:
        what, _ = multicast(replace_once(MULTICAST, (old, new)), schedule=schedule)
    except warpsan.Deadlock:
        return
    assert set(what) & {"race", "async", "mbarrier", "cluster"}


def test_a_block_that_never_waits_for_a_multicast_may_be_gone_when_it_comes():
    # The first block waits for its own copy, and the second for the first's: the second's copy stays unordered.
    leave = "setp.eq.u32 %p3, %r4, 0;\n@!%p3 bra LAST;\n"
    what, _ = multicast(
        MULTICAST.replace(CTA_WAIT.format(0, "%r2", 0), leave + CTA_WAIT.format(0, "%r2", 0) + "LAST:\n")
    )
    assert "cluster" in what


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_two_multicasts_to_one_place_race(mode, schedule):
    body = replace_once(MULTICAST, ("[%r6], [%rd4", "[%r1], [%rd4"))
    what, _ = multicast(body, async_mode=mode, schedule=schedule)
    # The blocks issue them in one step only in lockstep; otherwise the first may still be in flight.
    assert "race" in what or (schedule != "lockstep" and "async" in what)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_the_clusters_of_a_cooperative_launch(mode, schedule):
    """All clusters are resident; each has its own barrier, and block ranks refer to its own memory."""
    options = {"async_mode": mode, "schedule": schedule, "cooperative": True}
    out, remote = np.zeros((GRID, THREADS), np.uint32), np.zeros((GRID, THREADS), np.uint32)
    assert reported(STORE + BARRIER + LOAD + BARRIER, out, counters=True, **options) == []
    assert reported(REMOTE, remote, **options) == []
    assert multicast(MULTICAST, **options) == ([], True)
    assert (out == WANT).all()
    assert (remote[::2] == WANT[::2]).all()


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("scope", "found"), [("gpu", set()), ("cluster", {"race"})], ids=["of the grid", "of the cluster"]
)
def test_the_scope_of_a_flag_between_clusters_of_a_cooperative_launch(scope, found):
    """Block 0 passes a word to block 1 in its cluster, and to block 2 in another."""
    body = f"""@!%p1 bra END; mov.u32 %r3, %ctaid.x; setp.eq.u32 %p3, %r3, 0; @%p3 bra SET; setp.gt.u32 %p3, %r3, 2;
    @%p3 bra END; WAIT: ld.acquire.{scope}.global.u32 %r4, [%rd1+4]; setp.eq.u32 %p3, %r4, 0; @%p3 bra WAIT;
    ld.global.u32 %r5, [%rd1]; bra END;
    SET: st.global.u32 [%rd1], 7; st.release.{scope}.global.u32 [%rd1+4], 1; END:"""
    out = np.zeros(8, np.uint32)
    options = {"grid": 4, "cluster": (2, 1, 1), "cooperative": True}
    assert set(kinds(body, [out], **options)) == found
