"""Asynchronous units: checks and counters against records.

Correct programs of the other tests with all checks and counters, in every order and mode; and erroneous variants.
"""

from __future__ import annotations

import numpy as np
import pytest

import test_async_store as stores
import test_cluster as clusters
import test_tensor_copy as copies
import test_wgmma as products
import warpsan
import wgmma_kernels as wgmma
from hopper_snippets import CTA_WAIT, MODES
from warpsan.planting import replace_once

pytestmark = pytest.mark.usefixtures("recorded_launches")


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_a_pipeline_of_copies_with_all_checks(mode: str, schedule: str) -> None:
    assert copies.pipeline(copies.PIPELINE, async_mode=mode, schedule=schedule) == ([], True)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_products_in_flight_with_all_checks_and_counters(mode: str, schedule: str) -> None:
    report, _ = products.run_chained(products.chained(), schedule=schedule, async_mode=mode, counters=True)
    assert report.counters is not None
    assert report.counters.tensor_flops == 3 * 2 * 64 * 16 * 16


@pytest.mark.parametrize("name", products.MUTATIONS)
def test_no_mistake_with_products_is_missed(name: str) -> None:
    products.run_chained(products.chained(**products.MUTATIONS[name]))


@pytest.mark.parametrize("changed", [None, 3, 39])
def test_forty_sets_of_registers_in_flight(changed: int | None) -> None:
    """More sets than bits in a word, as in FlashAttention-3: A of each product in its own registers."""
    sets, columns = 40, np.ones((8, 16), np.float16)
    addresses, matrix = wgmma.lay_out(columns, 0, "none", True)
    form = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    issued = "".join(
        f"{form} {wgmma.registers('d', 0, 4)}, {wgmma.registers('w', 4 * each, 4)}, %b, %yes, 1, 1, 0;\n"
        for each in range(sets)
    )
    change = "" if changed is None else f"mov.b32 %w{4 * changed}, 0;\n"
    zeros = "".join(f"mov.b32 %d{i}, 0;\n" for i in range(4))
    body = f"{zeros}wgmma.fence.sync.aligned;\n{issued}wgmma.commit_group.sync.aligned;\n{change}"
    memory = wgmma.image(4096, (columns, addresses))
    ones = np.ones((128, 8 * sets), np.float16)
    report, out = wgmma.run(f"{body}wgmma.wait_group.sync.aligned 0;", memory, ones, 4, b=matrix)
    assert {hazard.kind for hazard in report.hazards} == (set() if changed is None else {"wgmma"})
    if changed is None:
        assert (out.view(np.float32) == 16 * sets).all()


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_a_cluster_with_all_checks_and_counters(mode: str, schedule: str) -> None:
    out = np.zeros((stores.GRID, stores.THREADS), np.uint32)
    assert stores.reported(stores.STORE, out, async_mode=mode, schedule=schedule, counters=True) == []


ARRIVALS = (
    "mapa.shared::cluster.u32 %r12, %r2, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 128;\n"
    "fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\nmov.u32 %r4, %cluster_ctarank;\n"
    "setp.eq.u32 %p3, %r4, 0;\n@!%p3 bra END;\n"
    "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra W;\nEND:\n"
    "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("fence.mbarrier_init.release.cluster;\n", ""),
        ("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n", ""),
        (ARRIVALS[ARRIVALS.index("W:") :], "END:\n"),
        ("[%r2], 128", "[%r2], 127"),
        ("[%r2], 128", "[%r2], 129"),
    ],
)
def test_arrivals_at_another_blocks_mbarrier(old: str, new: str) -> None:
    body = replace_once(ARRIVALS, (old, new)) if old else ARRIVALS
    try:
        reported = clusters.reported(body)
    except warpsan.Deadlock:
        reported = ["deadlock"]
    assert bool(reported) == bool(old)


WAIT_FOR_ROOM, WAIT_FOR_DATA = CTA_WAIT.format(1, "%r17", "%r14"), CTA_WAIT.format(2, "%r16", "%r13")
FREED = "mbarrier.arrive.shared::cta.b64 _, [%r17];\n"


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (WAIT_FOR_ROOM, ""),
        (WAIT_FOR_DATA, ""),
        (WAIT_FOR_ROOM, CTA_WAIT.format(1, "%r17", "%r13")),
        (WAIT_FOR_DATA, CTA_WAIT.format(2, "%r16", "%r14")),
        ("bar.sync 0;\n", ""),
        (FREED, ""),
        ("mov.u32 %r25, 0;\n", f"mov.u32 %r25, 0;\n{FREED}"),
        ("st.global.u32 [%rd8], %r25;\n", "st.global.u32 [%rd8], %r25; st.shared.u32 [%r16], %r25;\n"),
        ("mov.u32 %r25, 0;\n", "ld.shared.u32 %r25, [%r16]; mov.u32 %r25, 0;\n"),
    ],
)
def test_no_mistake_in_a_pipeline_is_missed(old: str, new: str, mode: str) -> None:
    try:
        reported, _ = copies.pipeline(replace_once(copies.PIPELINE, (old, new)), async_mode=mode)
    except warpsan.Deadlock:
        reported = ["deadlock"]
    assert reported


@pytest.mark.parametrize("mode", ["late", "early"])
def test_a_store_is_written_when_all_of_it_is_waited_for_or_at_the_end(mode: str) -> None:
    """With ``.read`` it has read its source, which may be overwritten."""
    out = np.zeros((1, 16, 64), np.float16)
    good = copies.START + copies.WRITE + copies.FENCE + "bar.sync 0;\n" + copies.BACK.format("", "") + "\nbar.sync 0;\n"
    tensor = warpsan.TensorMap(out, (1, 16, 64))
    arguments = [warpsan.TensorMap(out.copy(), (1, 16, 64)), np.zeros(64, np.uint32), 0, 0, 0, tensor]
    options = {"params": copies.STORE_PARAMS, "async_mode": mode}
    assert copies.kinds(good + copies.OTHER, arguments, **options) == []
    wait, commit = "cp.async.bulk.wait_group.read 0;\n", "cp.async.bulk.commit_group;\n"
    for old, new in ((wait, ""), (commit, ""), ("bar.sync 0;\n" + copies.OTHER, copies.OTHER)):
        broken = (good + copies.OTHER).replace(old, new)
        assert set(copies.kinds(broken, arguments, **options)) & {"async", "race"}


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_a_multicast_with_all_checks(mode: str, schedule: str) -> None:
    assert clusters.multicast(clusters.MULTICAST, async_mode=mode, schedule=schedule) == ([], True)
