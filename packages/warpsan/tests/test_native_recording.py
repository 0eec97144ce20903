"""Recorders and counters of asynchronous operations."""

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, kernel
from outcomes import counted, digest
from warpsan.profile.recording import AccessRecorder

WAIT = CTA_WAIT.format(0, "%r2", 0)
SHARED = "mul.lo.u32 %r3, %r0, 4; add.u32 %r3, %r1, %r3; st.shared.u32 [%r3], %r0; fence.proxy.async.shared::cta;\n"
INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n"

BYTES = f"""{INIT}ld.param.u64 %rd3, [q];
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3], 512, [%r2];
{WAIT}@!%p1 bra END;
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 256;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1+256], [%r1], 128;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; mbarrier.inval.shared::cta.b64 [%r2];
END:"""
"""Copies in and out, some with a reduction."""

BOXES = f"""{INIT}ld.param.u64 %rd3, [q]; cvta.param.u64 %rd4, q; mov.u32 %r5, 0; mov.u32 %r6, 4;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1],
    [%rd4, {{%r5, %r6}}], [%r2];
{WAIT}@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {{%r6, %r5}}], [%r1];
@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"""
"""Boxes of a tensor, one partly outside."""

HALVES = BOXES.replace("{%r5, %r6}", "{%r5, %r6, %r5}").replace("{%r6, %r5}", "{%r5, %r6, %r5}").replace("2d", "3d")
"""Boxes whose lines are not in address order."""

CLUSTER = f"""mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1; {INIT}{SHARED}
mapa.shared::cluster.u32 %r6, %r1, %r5; mapa.shared::cluster.u32 %r7, %r2, %r5;
barrier.cluster.arrive; barrier.cluster.wait;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 640;
mul.lo.u32 %r8, %r0, 8; add.u32 %r8, %r8, %r6;
@%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r6+1024],
    [%r1], 128, [%r7];
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r8+2048], %rd1, [%r7];
{WAIT}barrier.cluster.arrive; barrier.cluster.wait;"""
"""Operations into the other block's shared memory: a reducing copy, and st.async of 64 lanes."""


PARTS = """ld.param.u64 %rd3, [q]; mul.wide.u32 %rd4, %r0, 16; add.u64 %rd3, %rd3, %rd4; shl.b32 %r3, %r0, 4;
add.u32 %r3, %r1, %r3; and.b32 %r4, %r0, 7; cp.async.cg.shared.global [%r3], [%rd3], 16, %r4;
cp.async.wait_all; ld.shared.u32 %r5, [%r3]; st.global.u32 [%rd1], %r5;"""
"""Copies with a number of bytes that differs by lane."""


def run(body: str, **options: object) -> list[object]:
    """Records of all lines, each with its access and places, and the counters."""
    out, source = np.zeros((64, 16), np.uint32), np.arange(1024, dtype=np.uint32).reshape(64, 16)
    params, args = ".param .u64 p, .param .u64 q", [out, source]
    if body in (BOXES, HALVES):
        tensor = warpsan.TensorMap(source, (8, 16))
        if body is HALVES:
            tensor = warpsan.TensorMap(source, (2, 8, 8), shape=(2, 64, 8), strides=(32, 64, 4))
        params, args[1] = ".param .u64 p, .param .align 64 .b8 q[128]", tensor
        body = body.replace("ld.param.u64 %rd3, [q]; ", "")
    text = kernel(body, params).replace(".address_size 64\n", '.address_size 64\n.file 1 "k.cu"\n')
    text = text.replace("mov.u32 %r0, %tid.x;", ".loc 1 7 1\nmov.u32 %r0, %tid.x;")
    recorder = AccessRecorder("k.cu:7")
    report = warpsan.launch(text, "k", 2, 64, args, counters=True, checks=(), watchers=[recorder], **options)
    records = [
        (each.pc, each.space, each.block, each.warp, each.width, each.cost, each.buffer and each.buffer.name)
        for each in recorder.records
    ]
    places = [digest(each.lanes, each.offset, each.touched) for each in recorder.records]
    return [*records, *places, counted(report.counters)]


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("name", ["bytes", "boxes", "halves", "cluster", "parts"])
def test_what_is_recorded_and_counted(name, mode, recorded):
    body = {"bytes": BYTES, "boxes": BOXES, "halves": HALVES, "cluster": CLUSTER, "parts": PARTS}[name]
    options = {"async_mode": mode, **({"cluster": (2, 1, 1)} if name == "cluster" else {})}
    records = run(body, **options)
    assert len(records) > 8 or name == "parts"
    recorded.check(records)
