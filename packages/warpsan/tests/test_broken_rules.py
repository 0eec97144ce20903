"""Violated rules of mbarriers and boxes in launches that continue: reports and rejections."""

import numpy as np
import pytest

import warpsan
from hopper_snippets import kernel, kinds

INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\nbar.sync 0;\n"


@pytest.mark.parametrize(
    ("body", "kind", "what"),
    [
        ("@%p1 mbarrier.init.shared::cta.b64 [%r2+32], 1;", "out-of-bounds", "which has 16416 bytes"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r2+4], 1;", "misaligned", "not a multiple of 8"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r2], 0;", "mbarrier", "expects 1 to 1048575 arrivals, not 0"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r2], -1;", "mbarrier", "not 4294967295"),
        (INIT + "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2], -1;", "mbarrier", "4294967295 arrivals at once"),
        (INIT + "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], -1;", "mbarrier", "at most 1048575 bytes"),
        (
            INIT + "cp.async.mbarrier.arrive.shared::cta.b64 [%r2+8];",
            "mbarrier",
            "there is no mbarrier at offset 16392",
        ),
        (INIT + "@%p1 mbarrier.arrive_drop.shared::cta.b64 _, [%r2], 65;", "mbarrier", "65 arrivals at once drop out"),
    ],
)
@pytest.mark.parametrize("schedule", ["lockstep", "forward"])
def test_a_wrong_use_of_an_mbarrier(body, kind, what, schedule):
    hazards = warpsan.launch(kernel(body), "k", 1, 64, [np.zeros(64, np.uint32)], schedule=schedule).hazards
    assert kind in {hazard.kind for hazard in hazards}
    assert any(what in hazard.message for hazard in hazards)


@pytest.mark.parametrize(
    "body",
    [
        "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;",
        "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];",
    ],
)
def test_a_kernel_that_makes_no_mbarrier(body):
    assert kinds(body, [np.zeros(64, np.uint32)]) == ["mbarrier"]


def test_more_arrivals_behind_copies_than_a_phase_expects():
    body = INIT + "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];\n" * 2
    out = np.zeros(64, np.uint32)
    assert kinds(body, [out]) == []  # a second phase
    assert kinds(body.replace(" 64;", " 24;"), [out]) == ["mbarrier"]


BOXES = ".param .align 64 .b8 a[128], .param .u64 p"
LOAD = (
    "mov.b64 %rd3, a; cvta.param.u64 %rd4, %rd3; mov.u32 %r3, 0;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"
    "bar.sync 0;\n@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;\n"
    "@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [%r1], [%rd4, {%r3, %r3}], [%r2];\n"
    "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra W;\n"
)


@pytest.mark.parametrize("operation", ["min", "max"])
def test_a_combination_that_does_not_exist_is_refused(operation):
    body = LOAD + (
        "fence.proxy.async.shared::cta;\n"
        f"@%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.bulk_group [%rd4, {{%r3, %r3}}], [%r1];"
    )
    tensor = warpsan.TensorMap(np.zeros((8, 16), np.float32), (8, 16))
    with pytest.raises(warpsan.UnsupportedInstruction, match="on float32 is not modelled"):
        kinds(body, [tensor, np.zeros(64, np.uint32)], params=BOXES)


@pytest.mark.parametrize(("stride", "sectors"), [(64, 16), (80, 20), (32, 9)])
def test_sectors_of_boxes_whose_lines_share_some(stride, sectors):
    """Eight lines of 64 bytes: contiguous, 16 bytes apart, and half overlapping."""
    tensor = warpsan.TensorMap(np.zeros(512, np.float32), (8, 16), shape=(8, 16), strides=(stride, 4))
    report = warpsan.launch(kernel(LOAD, BOXES), "k", 1, 64, [tensor, np.zeros(64, np.uint32)], counters=True)
    assert report.hazards == []
    assert (report.counters.total("sectors"), report.counters.total("ideal_sectors")) == (sectors, min(sectors, 16))
