"""Hazards of mbarriers, bulk copies, wgmma and clusters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import test_bulk_copy as bulk
import test_mbarrier as mbarriers
import test_tensor_copy as tensors
import test_wgmma as products
import warpsan
from hopper_snippets import CTA_WAIT, kernel
from warpsan.planting import replace_once

pytestmark = pytest.mark.usefixtures("recorded_launches")

Edit = tuple[str, str]
Launch = Callable[[], warpsan.Report]


def check(launch: Launch) -> None:
    """Check that a launch has hazards, or ends with an exception."""
    with suppress(warpsan.Deadlock, warpsan.IllegalAccess):
        assert launch().hazards


def launched(body: str, args: Callable[[], list[Any]], params: str, grid: Any = 1, **options: Any) -> Launch:
    """A launch of a body of :mod:`hopper_snippets`, with new arrays each time."""
    return lambda: warpsan.launch(kernel(body, params), "k", grid, 64, args(), **options)


# ---- mbarriers -------------------------------------------------------------------------------------------------------

HAND_OVER: dict[str, Edit] = {
    "no wait": (mbarriers.WAIT, ""),
    "a wait for the phase before": (mbarriers.WAIT, CTA_WAIT.format(0, "%r2", 1)),
    "an arrival too few": ("[%r2], 64", "[%r2], 65"),
    "no barrier behind the initialisation": ("bar.sync 0;\n", ""),
    "a relaxed arrival": (".shared::cta.b64 %rd5", ".relaxed.cta.shared::cta.b64 %rd5"),
    "a relaxed wait": ("try_wait.parity.shared", "try_wait.parity.relaxed.cta.shared"),
    "a wait before the arrival": (mbarriers.ARRIVE + mbarriers.WAIT, mbarriers.WAIT + mbarriers.ARRIVE),
    "a write behind the arrival": (mbarriers.ARRIVE, mbarriers.ARRIVE + "st.shared.u32 [%r4], 7;\n"),
    "a write to the mbarrier": (mbarriers.LOAD, mbarriers.LOAD + "st.shared.u32 [%r2], 7;\n"),
    "more arrivals than expected": ("[%r2], 64", "[%r2], 33"),
    "an arrival that must not be the last": (
        "arrive.shared::cta.b64 %rd5, [%r2]",
        "arrive.noComplete.shared::cta.b64 %rd5, [%r2], 1",
    ),
}


@pytest.mark.parametrize("edit", HAND_OVER.values(), ids=HAND_OVER)
def test_hazards_of_threads_that_hand_over_through_an_mbarrier(edit: Edit) -> None:
    body = replace_once(mbarriers.GOOD, edit)
    check(launched(body, lambda: [np.zeros(64, np.uint32)], ".param .u64 p"))


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("arrives", ["cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];\n", mbarriers.ARRIVE])
def test_hazards_of_copies_that_arrive_when_they_have_landed(arrives: str, mode: str) -> None:
    """A correct arrival without a wait; and an arrival of the thread that does not wait for its copies."""
    right = arrives.startswith("cp")
    body = mbarriers.INIT + mbarriers.ADDRESSES + mbarriers.COPY + arrives
    body += ("" if right else mbarriers.WAIT) + mbarriers.LOOK
    check(launched(body, lambda: [np.arange(1024, dtype=np.uint32)], ".param .u64 p", async_mode=mode))


# ---- bulk copies and tensor copies -----------------------------------------------------------------------------------

THERE_AND_BACK: dict[str, Edit] = {
    "no wait": (bulk.WAIT, ""),
    "fewer bytes expected": ("_, [%r2], %r20", "_, [%r2], 32"),
    "more bytes expected": ("_, [%r2], %r20", "_, [%r2], 8192"),
    "no wait for the store": ("wait_group 0", "wait_group 1"),
    "no commit": ("cp.async.bulk.commit_group;\n", ""),
    "a write without a fence": (bulk.WAIT, bulk.WAIT + "st.shared.u32 [%r1], 7;\nbar.sync 0;\n"),
    "a write before the copy has landed": (bulk.WAIT, "st.shared.u32 [%r1], 7;\n" + bulk.WAIT),
    "a write before the store has read": (
        "cp.async.bulk.commit_group;\n",
        "st.shared.u32 [%r1], 7;\ncp.async.bulk.commit_group;\n",
    ),
}


def buffers() -> list[Any]:
    """New arguments of a copy in and out."""
    return [np.zeros(1024, np.int32), np.arange(1024, dtype=np.int32), 4096]


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("edit", THERE_AND_BACK.values(), ids=THERE_AND_BACK)
def test_hazards_of_bulk_copies(edit: Edit, mode: str) -> None:
    body = replace_once(bulk.START + bulk.LOAD + bulk.WAIT + bulk.STORE, edit)
    check(launched(body, buffers, bulk.PARAMS, async_mode=mode))


def test_an_mbarrier_without_the_fence_that_the_strict_check_needs() -> None:
    body = bulk.START + bulk.LOAD + bulk.WAIT + bulk.STORE
    check(launched(body, buffers, bulk.PARAMS, checks=(*warpsan.CHECKS, "strict")))


OTHER = "setp.eq.u32 %p7, %r0, 1;\n@%p7 "
"""Guard of the next instruction: lane 1 executes it, lane 0 issues the copies."""
THERE = bulk.START + bulk.LOAD + bulk.WAIT
REDUCE = bulk.STORE.replace("cp.async.bulk.global", "cp.reduce.async.bulk.global").replace(" [%rd1]", ".add.u32 [%rd1]")
OF_LANES = {
    "a write before the load": bulk.START + OTHER + "st.global.u32 [%rd3+16], 7;\n" + bulk.LOAD + bulk.WAIT,
    "a write behind the store": THERE + bulk.STORE + OTHER + "st.global.u32 [%rd1+2048], 7;\n",
    "a write before the store": THERE + OTHER + "st.global.u32 [%rd1+16], 7;\n" + bulk.STORE,
    "a read before the store": THERE + OTHER + "ld.global.u32 %r9, [%rd1+16];\n" + bulk.STORE,
    "a write before the reduction": THERE + OTHER + "st.global.u32 [%rd1+16], 7;\n" + REDUCE,
}


IN_ORDER = {
    "a write of another lane behind the load": THERE + OTHER + "st.global.u32 [%rd3], 7;\n",
    "a write of the same lane": THERE + OTHER.replace(", 1;", ", 0;") + "st.global.u32 [%rd3], 7;\n",
    "a write behind a meeting": THERE + "bar.warp.sync -1;\n" + OTHER + "st.global.u32 [%rd3], 7;\n",
    "a write before a meeting": THERE + OTHER + "st.global.u32 [%rd1+16], 7;\nbar.warp.sync -1;\n" + bulk.STORE,
    "a write before a meeting, and a reduction": THERE
    + OTHER
    + "st.global.u32 [%rd1+16], 7;\nbar.warp.sync -1;\n"
    + REDUCE,
}


@pytest.mark.parametrize("body", OF_LANES.values(), ids=OF_LANES)
def test_copies_and_other_lanes_of_their_warp(body: str) -> None:
    """Only the lane that issues a copy accesses global memory."""
    check(launched(body, buffers, bulk.PARAMS))


@pytest.mark.parametrize("body", IN_ORDER.values(), ids=IN_ORDER)
def test_copies_and_lanes_that_come_after_them(body: str) -> None:
    assert launched(body, buffers, bulk.PARAMS)().hazards == []


PIPELINE: dict[str, Edit] = {
    "the producer does not wait": (CTA_WAIT.format(1, "%r17", "%r14"), ""),
    "the consumer does not wait": (CTA_WAIT.format(2, "%r16", "%r13"), ""),
    "the producer waits for the wrong phase": (
        CTA_WAIT.format(1, "%r17", "%r14"),
        CTA_WAIT.format(1, "%r17", "%r13"),
    ),
    "the consumer waits for the wrong phase": (
        CTA_WAIT.format(2, "%r16", "%r13"),
        CTA_WAIT.format(2, "%r16", "%r14"),
    ),
    "fewer bytes expected": ("_, [%r16], 2048", "_, [%r16], 1024"),
    "more bytes expected": ("_, [%r16], 2048", "_, [%r16], 4096"),
    "no barrier behind the initialisation": ("bar.sync 0;\n", ""),
    "stages are not released": ("mbarrier.arrive.shared::cta.b64 _, [%r17];\n", ""),
    "the consumer waits for the first stage": ("%p2, [%r16]", "%p2, [%r2]"),
    "stages are released too early": (
        "mov.u32 %r25, 0;\n",
        "mov.u32 %r25, 0;\nmbarrier.arrive.shared::cta.b64 _, [%r17];\n",
    ),
}


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("edit", PIPELINE.values(), ids=PIPELINE)
def test_hazards_of_a_pipeline_of_tensor_copies(edit: Edit, mode: str) -> None:
    body = replace_once(tensors.PIPELINE, edit)
    array = np.random.default_rng(1).integers(0, 1 << 20, (3, 16 * tensors.TILES, 32), dtype=np.int32)
    tensor = warpsan.TensorMap(array, (1, 16, 32))

    def arguments() -> list[Any]:
        return [tensor, np.zeros((3, tensors.TILES, 32), np.uint32), 0, 0, 0]

    check(launched(body, arguments, tensors.PARAMS, grid=3, async_mode=mode))


# ---- wgmma -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("name", products.MUTATIONS)
def test_hazards_of_products_in_flight(name: str, mode: str) -> None:
    body = products.chained(**products.MUTATIONS[name])
    check(lambda: products.run_chained(body, async_mode=mode)[0])


def test_operands_that_are_overwritten_while_a_product_reads_them() -> None:
    overwrite = f"setp.eq.u32 %p, %t, 96; @%p st.shared.b32 [{int(products.AT_B[0, 0])}], %t;\n"
    check(lambda: products.run_chained(products.chained(**{"wait for one": overwrite + products.WAIT}))[0])
