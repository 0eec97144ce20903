"""Invalid asynchronous operations: illegal addresses, bad tensor maps, modified maps without fences, differing
descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import test_async_store as stores
import test_bulk_copy as bulk
import test_tensor_copy as tensors
import test_tensor_map_fences as maps
import test_wgmma as products
import warpsan
from hopper_snippets import CTA_WAIT, kernel
from warpsan.planting import replace_once
from wgmma_kernels import descriptor

pytestmark = pytest.mark.usefixtures("recorded_launches")

Edit = tuple[str, str]
Launch = Callable[[list[Any]], warpsan.Report]
MODES = ("late", "early")


def check(launch: Launch, args: Callable[[], list[Any]], *, clean: bool = False) -> None:
    """Check that a launch ends with an exception or has hazards, unless it is ``clean``."""
    try:
        assert (launch(args()).hazards == []) is clean
    except warpsan.SimError:
        assert not clean


# ---- illegal addresses -----------------------------------------------------------------------------------------------

BYTES: dict[str, Edit] = {
    "a misaligned target of a load": ("[%r1], [%rd3]", "[%r1+8], [%rd3]"),
    "a misaligned source of a load": ("[%r1], [%rd3]", "[%r1], [%rd3+4]"),
    "a source that is too short": ("[%r1], [%rd3]", "[%r1], [%rd3+16]"),
    "a target of a load that is too short": ("[%r1], [%rd3]", "[%r1+12800], [%rd3]"),
    "a target of a store that is too short": ("[%rd1], [%r1]", "[%rd1+16], [%r1]"),
    "a misaligned target of a store": ("[%rd1], [%r1]", "[%rd1+4], [%r1]"),
    "a source of a store that is too short": ("[%rd1], [%r1]", "[%rd1], [%r1+16000]"),
    "a misaligned mbarrier": ("%r20, [%r2];", "%r20, [%r2+4];"),
    "an mbarrier outside shared memory": ("%r20, [%r2];", "%r20, [%r2+65536];"),
    "a load of no whole chunks": ("[%rd3], %r20", "[%rd3], 40"),
    "a store of no whole chunks": ("[%r1], %r20", "[%r1], 40"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("edit", BYTES.values(), ids=BYTES)
def test_copies_of_bytes(edit: Edit, mode: str) -> None:
    body = replace_once(bulk.START + bulk.LOAD + bulk.WAIT + bulk.STORE, edit)
    check(
        lambda args: warpsan.launch(kernel(body, bulk.PARAMS), "k", 1, 64, args, async_mode=mode),
        lambda: [np.zeros(1024, np.int32), np.arange(1024, dtype=np.int32), 4096],
    )


def test_what_is_left_out_does_not_end_the_launch() -> None:
    """A second hazard, after an illegal copy, is also reported."""
    late = "bar.sync 0;\nst.shared.u32 [%r1], %r0;\n"
    body = bulk.START + bulk.LOAD + bulk.WAIT + bulk.STORE.replace("[%rd1]", "[%rd1+16]") + late
    check(
        lambda args: warpsan.launch(kernel(body, bulk.PARAMS), "k", 1, 64, args),
        lambda: [np.zeros(1024, np.int32), np.arange(1024, dtype=np.int32), 4096],
    )


BOXES: dict[str, Edit] = {
    "a target that is misaligned": ("[%r1], [%rd4", "[%r1+64], [%rd4"),
    "a target that is too short": ("[%r1], [%rd4", "[%r1+15360], [%rd4"),
    "a map that is misaligned": ("[%rd4, ", "[%rd4+4, "),
    "a map outside memory": ("[%rd4, ", "[%rd4+8192, "),
    "no map": ("[%rd4, ", "[%rd1, "),
    "a map of other axes": ("tensor.2d.shared::cluster.global.tile", "tensor.1d.shared::cluster.global.tile"),
}


@pytest.mark.parametrize("edit", BOXES.values(), ids=BOXES)
def test_copies_of_boxes(edit: Edit) -> None:
    body = replace_once(tensors.START + tensors.load_of(2, 2048) + CTA_WAIT.format(0, "%r2", 0), edit)
    body = body.replace("{%r20, %r21}", "{%r20}") if "tensor.1d" in body else body
    array = np.zeros((64, 32), np.int32)
    check(
        lambda args: warpsan.launch(kernel(body, tensors.PARAMS), "k", 1, 64, args),
        lambda: [warpsan.TensorMap(array, (16, 32)), np.zeros(1024, np.uint32), 0, 0, 0],
    )


@pytest.mark.parametrize("offset", [2, 20000])
def test_asynchronous_stores(offset: int) -> None:
    body = stores.STORE.replace("[%r11], %r9", f"[%r11+{offset}], %r9")
    check(
        lambda args: warpsan.launch(kernel(body), "k", stores.GRID, stores.THREADS, args, cluster=(2, 1, 1)),
        lambda: [np.zeros((stores.GRID, stores.THREADS), np.uint32)],
    )


def test_a_copy_into_the_memory_of_a_block_that_has_exited() -> None:
    """Block 1 of the cluster exits; block 0 copies to its memory, with an mbarrier of block 0."""
    body = (
        "ld.param.u64 %rd3, [q]; ld.param.u32 %r20, [n]; mov.u32 %r4, %cluster_ctarank; setp.eq.u32 %p3, %r4, 1;\n"
        "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n@%p3 ret;\n"
        "mapa.shared::cluster.u32 %r10, %r1, 1; mapa.shared::cluster.u32 %r12, %r2, 1; mov.u32 %r21, 0;\n"
        "L: add.u32 %r21, %r21, 1; setp.lt.u32 %p4, %r21, 99; @%p4 bra L;\n"
        + bulk.LOAD.splitlines()[1].replace("[%r1]", "[%r10]").replace("[%r2]", "[%r12]")
    )
    check(
        lambda args: warpsan.launch(kernel(body, bulk.PARAMS), "k", 2, 64, args, cluster=(2, 1, 1)),
        lambda: [np.zeros(1024, np.int32), np.arange(1024, dtype=np.int32), 64],
    )


# ---- tensor maps modified by a launch --------------------------------------------------------------------------------


def with_map(body: str, grid: int = 1, **options: Any) -> tuple[Launch, Callable[[], list[Any]]]:
    """A launch of :mod:`test_tensor_map_fences`, and its arguments."""
    matrix = np.arange(64 * 32, dtype=np.float16).reshape(64, 32)
    return (
        lambda args: warpsan.launch(kernel(maps.BEGIN + body, maps.PARAMS), "k", grid, 32, args, **options),
        lambda: [
            *(warpsan.TensorMap(matrix, (16, 32)), np.zeros(64, np.uint32)),
            *(np.zeros(128, np.uint8), np.zeros(1, np.uint32)),
        ],
    )


@pytest.mark.parametrize("schedule", ["lockstep", "reverse"])
@pytest.mark.parametrize("name", maps.RIGHT)
def test_maps_behind_both_fences(name: str, schedule: str) -> None:
    check(*with_map(maps.RIGHT[name], schedule=schedule), clean=True)


@pytest.mark.parametrize("schedule", ["lockstep", "reverse"])
@pytest.mark.parametrize("name", maps.WRONG)
def test_missing_fences(name: str, schedule: str) -> None:
    check(*with_map(maps.WRONG[name][0], schedule=schedule))


PASSED_ON = maps.split(maps.COPY + maps.EDIT + maps.RELEASE, maps.ACQUIRE)
BETWEEN_BLOCKS: dict[str, Edit] = {
    "no release": (maps.RELEASE, ""),
    "no acquire": (maps.ACQUIRE, ""),
    "a narrow release": ("release.gpu;", "release.cta;"),
    "a narrow acquire": ("acquire.gpu [", "acquire.cta ["),
    "no order": ("st.release.gpu", "st.relaxed.gpu"),
}


def test_a_map_that_one_block_writes_for_another() -> None:
    check(*with_map(PASSED_ON, grid=2), clean=True)


def test_a_map_that_nothing_orders_between_blocks() -> None:
    check(*with_map(PASSED_ON.replace("st.release.gpu", "st.relaxed.gpu").replace("ld.acquire", "ld.relaxed"), grid=2))


@pytest.mark.parametrize("edit", BETWEEN_BLOCKS.values(), ids=BETWEEN_BLOCKS)
def test_missing_fences_between_blocks(edit: Edit) -> None:
    check(*with_map(replace_once(PASSED_ON, edit), grid=2))


def test_a_map_that_becomes_none() -> None:
    body = maps.COPY + "@%p1 st.global.b32 [%rd6], 7;\n" + maps.RELEASE + maps.ACQUIRE + maps.USE
    check(*with_map(body))


# ---- descriptors of products -----------------------------------------------------------------------------------------

OUTSIDE = descriptor(len(products.MEMORY) - 64, 0, 512, "64B")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("edit", ["add.u64 %a, %a, 2;", "add.u64 %b, %b, 2;", "mov.pred %yes, %no;"])
def test_threads_of_a_warpgroup_that_disagree(edit: str, mode: str) -> None:
    body = f"setp.eq.u32 %p, %t, 37; @%p bra ONE; bra ALL; ONE: {edit} ALL:\n" + products.chained()
    check(lambda _: products.run_chained(body, async_mode=mode)[0], list)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", [0, 1])
def test_operands_outside_shared_memory(which: int, mode: str) -> None:
    both = [products.DESC_A, products.DESC_B]
    both[which] = OUTSIDE
    given = products.MEMORY, products.FRAGMENT, 16, *both
    check(lambda _: products.run(products.chained(), *given, async_mode=mode)[0], list)


# ---- counters --------------------------------------------------------------------------------------------------------

ELECTED = bulk.START + bulk.LOAD + "setp.ne.u32 %p3, %r0, 0;\n"
LANES_APART = {
    "others go on": ELECTED + "@%p3 bra GO;\n" + bulk.WAIT + "GO: st.global.u32 [%rd1], 3;\n",
    "halves of a warp": ELECTED
    + "setp.lt.u32 %p3, %r0, 16;\n@%p3 bra GO;\n"
    + bulk.WAIT
    + "bra BOTH;\nGO: add.u32 %r9, %r0, 1;\n"
    + CTA_WAIT.format(1, "%r2", 0)
    + "BOTH: st.global.u32 [%rd1], 3;\n",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("body", LANES_APART.values(), ids=LANES_APART)
def test_counters_where_lanes_wait_apart(body: str, mode: str) -> None:
    """The number of executions of code after the wait depends on the order."""
    args = [np.zeros(1024, np.int32), np.arange(1024, dtype=np.int32), 4096]
    warpsan.launch(kernel(body, bulk.PARAMS), "k", 3, 64, args, counters=True, checks=(), async_mode=mode)
