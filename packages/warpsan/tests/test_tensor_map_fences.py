"""A tensor map written by a kernel, and the fences between the generic and the tensor map proxy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, kernel

PARAMS = ".param .align 64 .b8 a[128], .param .u64 p, .param .u64 g, .param .u64 f"
BEGIN = """
mov.b64 %rd3, a; cvta.param.u64 %rd4, %rd3; ld.param.u64 %rd6, [g]; ld.param.u64 %rd8, [f];
cvta.to.global.u64 %rd8, %rd8; shl.b32 %r5, %r0, 2; cvt.u64.u32 %rd7, %r5;
add.u64 %rd9, %rd4, %rd7; add.u64 %rd10, %rd6, %rd7;
mov.u32 %r10, %ctaid.x; setp.eq.u32 %p3, %r10, 0;
"""
COPY = "ld.b32 %r7, [%rd9]; st.global.b32 [%rd10], %r7; bar.warp.sync -1;\n"
"""A warp copies the parameter's map to global memory, word by word."""
EDIT = "@%p1 tensormap.replace.tile.global_dim.global.b1024.b32 [%rd6], 1, 12;\n"
SHARED_EDIT = """add.u32 %r8, %r1, 8192; add.u32 %r6, %r8, %r5;
ld.b32 %r7, [%rd9]; st.shared.b32 [%r6], %r7; bar.warp.sync -1;
@%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r8], 1, 12; bar.warp.sync -1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd6], [%r8], 128;
"""
RELEASE = "fence.proxy.tensormap::generic.release.gpu;\n"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd6], 128;\n"
USE = (
    """
@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd6, {0, 4}], [%r2];
"""
    + CTA_WAIT.format(0, "%r2", 0)
    + "add.u32 %r6, %r1, %r5; ld.shared.u32 %r7, [%r6]; @%p3 st.global.u32 [%rd2], %r7;\n"
)
GIVE = "@%p1 st.release.gpu.global.u32 [%rd8], 1;\n"
TAKE = "T0: ld.acquire.gpu.global.u32 %r9, [%rd8]; setp.eq.u32 %p4, %r9, 0; @%p4 bra T0;\n"


def hazards(body: str, *, grid: int = 1, block: int = 32, **options: Any) -> list[warpsan.Hazard]:
    """Hazards of a launch with a map of a float16 matrix of 64 x 32, in boxes of 16 x 32."""
    matrix = np.zeros((64, 32), np.float16)
    arguments = [warpsan.TensorMap(matrix, (16, 32)), np.zeros(64, np.uint32), np.zeros(128, np.uint8)]
    report = warpsan.launch(
        kernel(BEGIN + body, PARAMS), "k", grid, block, [*arguments, np.zeros(1, np.uint32)], **options
    )
    return list(report.hazards)


def split(writer: str, reader: str) -> str:
    """Block 0 writes the map and sets a flag; block 1 waits for the flag, and uses the map."""
    return f"@!%p3 bra READER;\n{writer}{GIVE}bra END;\nREADER:\n{TAKE}{reader}{USE}END:"


RIGHT = {
    "a copy with a fence": SHARED_EDIT + ACQUIRE + USE,
    "an edit in global memory": COPY + EDIT + RELEASE + ACQUIRE + USE,
    "stores, and no edit": COPY + RELEASE + ACQUIRE + USE,
    "narrow fences within a block": (COPY + RELEASE + ACQUIRE + USE).replace(".gpu", ".cta"),
    "the map is a parameter": USE.replace("%rd6", "%rd4"),
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_a_map_behind_both_fences_is_silent(body: str) -> None:
    assert hazards(body) == []


WRONG = {
    "no acquire behind the copy": (SHARED_EDIT + USE, "without an acquire of it", ".acquire.cta [map], 128"),
    "no acquire": (COPY + EDIT + RELEASE + USE, "without an acquire of it", ".acquire.cta [map], 128"),
    "no release": (COPY + EDIT + ACQUIRE + USE, "without a release of it", ".release.cta between the write"),
    "no fence": (COPY + USE, "without an acquire of it", ".acquire.cta [map], 128"),
    "a release before the write": (COPY + RELEASE + EDIT + ACQUIRE + USE, "without a release of it", "cp_fenceproxy"),
    "an acquire before the release": (
        COPY + EDIT + ACQUIRE + RELEASE + USE,
        "without a release of it",
        "cp_fenceproxy",
    ),
    "an acquire of another map": (
        COPY + EDIT + RELEASE + "fence.proxy.tensormap::generic.acquire.gpu [%rd4+0], 128;\n" + USE,
        "without an acquire of it",
        ".acquire.cta",
    ),
    "a memory fence": (
        COPY + EDIT + "fence.acq_rel.gpu;\nfence.proxy.async;\n" + USE,
        "without an acquire",
        ".acquire.cta",
    ),
}


@pytest.mark.parametrize(("body", "what", "advice"), WRONG.values(), ids=WRONG)
def test_a_missing_fence_is_named(body: str, what: str, advice: str) -> None:
    (hazard,) = hazards(body)
    assert (hazard.kind, hazard.text.split(".")[0]) == ("proxy", "cp")
    assert what in hazard.message
    assert advice in hazard.message
    assert hazard.other is not None
    assert hazard.other.text.split(".")[0] in ("st", "tensormap")


def test_another_warp_may_acquire_it_before_a_barrier() -> None:
    """The fence must lie between the write and the use, in any thread."""
    write = "setp.lt.u32 %p5, %r0, 32;\n@!%p5 bra OTHER;\n" + COPY + EDIT + RELEASE + "OTHER: bar.sync 0;\n"
    for who, missing in (("setp.ge.u32 %p6, %r0, 32;", False), ("setp.gt.u32 %p6, %r0, 99;", True)):
        acquire = f"{who}\n@%p6 {ACQUIRE}"
        assert [each.kind for each in hazards(write + acquire + USE, block=64)] == ["proxy"] * missing


@pytest.mark.parametrize("schedule", ["lockstep", "reverse"])
def test_between_blocks(schedule: str) -> None:
    right = split(COPY + EDIT + RELEASE, ACQUIRE)
    assert hazards(right, grid=2, schedule=schedule) == []
    for change, what in (
        ((RELEASE, ""), "without a release of it"),
        ((ACQUIRE, ""), "without an acquire of it"),
        (("release.gpu;", "release.cta;"), "its release is .cta"),
        (("acquire.gpu [", "acquire.cta ["), "its acquire is .cta"),
    ):
        assert change[0] in right
        (hazard,) = hazards(right.replace(*change), grid=2, schedule=schedule)
        assert (hazard.kind, what in hazard.message) == ("proxy", True), hazard.message
        assert "block" in hazard.message
    unordered = right.replace("st.release.gpu", "st.relaxed.gpu").replace("ld.acquire.gpu", "ld.relaxed.gpu")
    assert "race" in [each.kind for each in hazards(unordered, grid=2, schedule=schedule)]
