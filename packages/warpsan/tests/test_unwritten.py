"""Reads of unwritten global memory: reported at the use of the value, and only there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT
from hopper_snippets import kernel as hopper_kernel
from test_wgmma import COMMIT, DESC_A, DESC_B, FENCE, FIRST, KINDS, MEMORY, WAIT, instruction
from warpsan.host.options import SCHEDULES
from wgmma_kernels import kernel as wgmma_kernel

HEAD = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 x, .param .u64 out)
{
.reg .b32 %r<32>; .reg .f32 %f<16>; .reg .b64 %d<9>; .reg .b16 %h<9>; .reg .pred %p<9>;
.shared .align 128 .b8 buf[4096];
mov.u32 %r0, %tid.x; ld.param.u64 %d1, [x]; ld.param.u64 %d2, [out]; mul.wide.u32 %d3, %r0, 16;
add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3; mov.u32 %r1, buf; mad.lo.u32 %r1, %r0, 16, %r1;
mov.u32 %r2, 7; mov.f32 %f0, 0f00000000;
"""
# %d1, %d2: 16 unwritten bytes of this thread in x and in out. %r1: 16 bytes of shared memory.
THREADS = 32
OUT = " st.global.u32 [%d2], %r3;"
LOAD = "ld.global.u32 %r3, [%d1];"
COPY = "cp.async.{0}.shared.global [%r1], [%d1], {1}; cp.async.wait_all; bar.sync 0; "
PRODUCT = (
    "mov.u32 %r7, 0x3C003C00; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r1];"
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r3, %r4, %r5, %r6}, {%r7, %r7}, "
    "{%f0, %f0, %f0, %f0};"
)
WRITTEN = "st.global.v2.u32 [%d1], {%r0, %r2}; "
"""The first half of the 16 bytes."""

CLEAN = {
    "never used": LOAD + " st.global.u32 [%d2], %r2;",
    "masked by a selection": LOAD + " setp.lt.u32 %p0, %r0, 40; selp.b32 %r3, %r2, %r3, %p0;" + OUT,
    "masked by a branch": LOAD + " setp.gt.u32 %p0, %r0, 40; @%p0" + OUT,
    "bits that are masked": "st.global.u32 [%d1], %r0; ld.global.u64 %d4, [%d1]; and.b64 %d4, %d4, 0xFFFFFFFF;"
    "st.global.u64 [%d2], %d4;",
    "the written half of a vector": WRITTEN + "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d1];" + OUT,
    "written by a store": "st.global.u32 [%d1], %r0; " + LOAD + OUT,
    "written by a vector store": "st.global.v4.u32 [%d1], {%r0, %r0, %r0, %r0}; ld.global.u32 %r3, [%d1+12];" + OUT,
    "written by generic addresses": "st.u32 [%d1], %r0; ld.u32 %r3, [%d1];" + OUT,
    "written by a release": "st.release.gpu.global.u32 [%d1], %r0; ld.acquire.gpu.global.u32 %r3, [%d1];" + OUT,
    "written and updated": "st.global.u32 [%d1], %r0; red.global.add.u32 [%d1], 1; atom.global.add.u32 %r3, [%d1], 1;"
    + OUT,
    "copied and not used": COPY.format("ca", 4),
    "copied and overwritten": COPY.format("ca", 4) + "st.shared.u32 [%r1], %r2; ld.shared.u32 %r3, [%r1];" + OUT,
    "no bytes copied": "cp.async.ca.shared.global [%r1], [%d1], 16, 0; cp.async.wait_all; ld.shared.u32 %r3, [%r1];"
    + OUT,
    "the written bytes copied": WRITTEN
    + "cp.async.ca.shared.global [%r1], [%d1], 16, 8; cp.async.wait_all; ld.shared.u32 %r3, [%r1+12];" + OUT,
    "rows of a product by wmma": COPY.format("cg", 16) + "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 "
    "{%r3, %r4, %r5, %r6, %r7, %r8, %r9, %r10}, [buf];" + OUT,
    "rows of a product by wmma from global memory": "ld.param.u64 %d5, [x];"
    "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r3, %r4, %r5, %r6, %r7, %r8, %r9, %r10}, [%d5];" + OUT,
    "rows of a product": "setp.lt.u32 %p0, %r0, 8; @%p0 st.global.v4.u32 [%d1], {%r2, %r2, %r2, %r2}; "
    "setp.lt.u32 %p1, %r0, 24; @%p1 setp.gt.u32 %p1, %r0, 15; @%p1 st.global.v4.u32 [%d1], {%r2, %r2, %r2, %r2};"
    + COPY.format("cg", 16) + PRODUCT + " st.global.f32 [%d2], %f1;",
}  # fmt: skip
"""x and out are unwritten before the launch."""

WRONG = {
    "stored": (LOAD + OUT, 4, 0, "as a stored value by st.global.u32"),
    "stored after arithmetic": (LOAD + " add.u32 %r3, %r3, %r0;" + OUT, 4, 0, "as a stored value by st.global.u32"),
    "a byte": ("ld.global.u8 %r3, [%d1+3];" + OUT, 1, 3, "as a stored value by st.global.u32"),
    "a half": ("ld.global.u16 %h1, [%d1+2]; st.global.u16 [%d2], %h1;", 2, 2, "as a stored value by st.global.u16"),
    "the other half of a vector": (
        WRITTEN + "ld.global.v4.u32 {%r4, %r5, %r6, %r3}, [%d1];" + OUT, 8, 8, "as a stored value by st.global.u32",
    ),
    "through the read-only cache": ("ld.global.nc.u32 %r3, [%d1];" + OUT, 4, 0, "as a stored value by st.global.u32"),
    "volatile": ("ld.volatile.global.u32 %r3, [%d1];" + OUT, 4, 0, "as a stored value by st.global.u32"),
    "acquired": ("ld.acquire.gpu.global.u32 %r3, [%d1];" + OUT, 4, 0, "as a stored value by st.global.u32"),
    "by generic addresses": ("ld.u32 %r3, [%d1]; st.u32 [%d2], %r3;", 4, 0, "as a stored value by st.u32"),
    "a branch with an effect": (
        LOAD + " setp.eq.u32 %p0, %r3, 0; @%p0 bra OVER; st.global.u32 [%d2], %r2; OVER:", 4, 0, "a predicate by bra",
    ),
    "an address": (
        "ld.global.u32 %r3, [%d1]; and.b32 %r3, %r3, 4; cvt.u64.u32 %d4, %r3; add.u64 %d4, %d4, %d2; "
        "st.global.u32 [%d4], %r2;", 4, 0, "as an address by st.global.u32",
    ),
    "added by another's operation": (
        LOAD + " st.global.u32 [%d1+4], %r0; red.global.add.u32 [%d1+4], %r3;", 4, 0, "as an operand by red",
    ),
    "accumulated": ("red.global.add.f32 [%d1], %f0;", 4, 0, ""),
    "updated": ("atom.global.add.u32 %r3, [%d1+8], 1;", 4, 8, ""),
    "exchanged by generic addresses": ("atom.exch.b64 %d4, [%d1], 1;", 8, 0, ""),
    "through shared memory": (
        LOAD + " st.shared.u32 [%r1], %r3; ld.shared.u32 %r4, [%r1]; st.global.u32 [%d2], %r4;", 4, 0, "by st.global",
    ),
    "copied": (COPY.format("ca", 4) + "ld.shared.u32 %r3, [%r1];" + OUT, 4, 0, "as a stored value by st.global.u32"),
    "copied in part": (
        WRITTEN + COPY.format("cg", 16) + "ld.shared.u32 %r3, [%r1+8];" + OUT, 8, 8, "a stored value by st.global.u32",
    ),
    "copied for an mbarrier": (
        "mov.u32 %r9, buf; add.u32 %r9, %r9, 2048; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r9], 32; "
        "bar.sync 0; cp.async.ca.shared.global [%r1], [%d1], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r9]; "
        + CTA_WAIT.format(0, "%r9", 0) + "ld.shared.u32 %r3, [%r1];" + OUT, 4, 0, "as a stored value by st.global.u32",
    ),
    "a product": (COPY.format("cg", 16) + PRODUCT + " st.global.f32 [%d2], %f1;", 16, 0, "by st.global.f32"),
}  # fmt: skip
"""The body; number and offset of the bytes of x that it reads; and their use, if it is another instruction."""


def device() -> warpsan.Device:
    return warpsan.Device(1 << 24)


def launch(
    body: str, before: Callable[[warpsan.Device, warpsan.DeviceArray], object] | None = None, **options: object
) -> warpsan.Report:
    """Report of a kernel on two arrays of new memory; ``before`` is an operation of the host on the first."""
    gpu = device()
    x, out = gpu.empty(1024, np.uint32, name="x"), gpu.empty(1024, np.uint32, name="out")
    if before is not None:
        before(gpu, x)
    return gpu.module(f"{HEAD}{body}\nret;\n}}\n")["k"].launch(1, THREADS, [x, out], **options)


@pytest.mark.parametrize("body", CLEAN.values(), ids=CLEAN)
def test_what_is_written_or_does_not_matter_is_not_reported(body: str) -> None:
    assert [hazard.message for hazard in launch(body).hazards] == []


@pytest.mark.parametrize(("body", "size", "offset", "use"), WRONG.values(), ids=WRONG)
def test_what_matters_is_reported_with_the_read_and_the_use(body: str, size: int, offset: int, use: str) -> None:
    (hazard,) = launch(body).hazards
    assert hazard.kind == "uninitialised"
    plural = "byte of global memory" if size == 1 else "bytes of global memory"
    assert f"{size} {plural} at byte {offset} of x" in hazard.message
    assert "read before anything wrote" in hazard.message
    assert "a buffer that the host did not clear or copy to" in hazard.message
    assert (hazard.other is None) == (use == "")
    assert use in hazard.message


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["stored", "accumulated", "copied", "copied for an mbarrier"])
def test_in_every_order(name: str, schedule: str, mode: str) -> None:
    kinds = [hazard.kind for hazard in launch(WRONG[name][0], schedule=schedule, async_mode=mode).hazards]
    assert kinds == ["uninitialised"]


HOST = {
    "an assignment": (lambda gpu, x: x.__setitem__(slice(0, 128), 1), True),
    "an assignment of a part": (lambda gpu, x: x.__setitem__(slice(4, 128), 1), False),
    "elements one by one": (lambda gpu, x: [x.__setitem__(4 * k, 1) for k in range(32)], True),
    "one element less": (lambda gpu, x: [x.__setitem__(4 * k, 1) for k in range(31)], False),
    "columns of a view": (lambda gpu, x: x.reshape(-1, 4).__setitem__((..., 0), 0), True),
    "bytes of a view": (lambda gpu, x: x.view(np.uint8).reshape(-1, 4).__setitem__((slice(None), slice(3)), 0), False),
    "a mask": (lambda gpu, x: x.__setitem__(np.ones(1024, bool), 0), True),
    "a fill": (lambda gpu, x: gpu.fill(x, 0), True),
    "a fill of a part": (lambda gpu, x: gpu.fill(x[:64], 0), False),
    "a copy from the host": (lambda gpu, x: gpu.copy(x, np.zeros(1024, np.uint32)), True),
    "a copy of what is written": (lambda gpu, x: gpu.copy(x, gpu.array(np.zeros(1024, np.uint32))), True),
    "a copy of what nobody wrote": (lambda gpu, x: gpu.copy(x, gpu.empty(1024, np.uint32)), False),
    "an assignment of what nobody wrote": (lambda gpu, x: x.__setitem__(..., gpu.empty(1024, np.uint32)), False),
    "a sum of what nobody wrote": (lambda gpu, x: x.__setitem__(slice(None), gpu.empty(1024, np.uint32) + 1), True),
    "the array's own fill": (lambda gpu, x: x.fill(0xFFFFFFFF), True),
    "NumPy behind the device's back": (lambda gpu, x: np.copyto(np.asarray(x), 0), True),
    "written and taken back": (lambda gpu, x: (gpu.fill(x, 0), gpu.undefine(x)), False),
    "declared as written": (lambda gpu, x: gpu.define(x), True),
}  # fmt: skip
"""Host operations on x, and whether they write all bytes that the kernel reads."""


@pytest.mark.parametrize(("before", "written"), HOST.values(), ids=HOST)
def test_what_the_host_writes_and_copies(before: Callable[..., object], written: bool) -> None:
    assert [each.kind for each in launch(LOAD + OUT, before).hazards] == ([] if written else ["uninitialised"])


@pytest.mark.parametrize("fill", ["poison", "zeros"])
def test_what_a_launch_writes_is_written_in_the_next(fill: str) -> None:
    gpu = warpsan.Device(1 << 24, fill=fill)
    x, out = gpu.empty(1024, np.uint32, name="x"), gpu.empty(1024, np.uint32, name="out")
    module = gpu.module(HEAD + "st.global.u32 [%d1], %r0;\nret;\n}\n")
    assert module["k"].launch(1, 16, [x, out]).hazards == []
    assert x.unwritten.reshape(-1, 16).sum(axis=1).tolist() == 16 * [12] + 240 * [16]
    add = gpu.module(HEAD + LOAD + OUT + "\nret;\n}\n")["k"]
    assert add.launch(1, 16, [x, out]).hazards == []
    (hazard,) = add.launch(1, 32, [x, out]).hazards
    assert "4 bytes of global memory at byte 256 of x" in hazard.message
    assert add.launch(1, 32, [out, out[512:]], stream=gpu.stream()).hazards == []


def test_a_launch_without_the_check_counts_as_writing_everything() -> None:
    gpu = device()
    x, out = gpu.empty(1024, np.uint32), gpu.empty(1024, np.uint32)
    load = gpu.module(HEAD + LOAD + OUT + "\nret;\n}\n")["k"]
    assert load.launch(1, 32, [x, out], checks=()).hazards == []
    assert not x.unwritten.any()
    assert load.launch(1, 32, [x, out]).hazards == []


def test_memory_of_device_code_is_unwritten_until_it_is_written() -> None:
    text = """.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b64 r) malloc(.param .b64 n);
.entry k(.param .u64 x, .param .u32 writes)
{
.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<9>;
ld.param.u64 %d1, [x]; ld.param.u32 %r1, [writes]; setp.ne.u32 %p1, %r1, 0;
{ .param .b64 n; .param .b64 r; st.param.b64 [n], 64; call (r), malloc, (n); ld.param.b64 %d2, [r]; }
@%p1 st.global.u32 [%d2+4], %r1; ld.global.u32 %r2, [%d2+4]; st.global.u32 [%d1], %r2; ret;
}
"""
    assert warpsan.launch(text, "k", 1, 1, [np.zeros(4, np.uint32), 1]).hazards == []
    (hazard,) = warpsan.launch(text, "k", 1, 1, [np.zeros(4, np.uint32), 0]).hazards
    assert "4 bytes of global memory at byte 4 of allocation 0 of the device heap" in hazard.message


def test_arrays_of_the_host_are_written_but_for_those_that_are_declared() -> None:
    text = HEAD + LOAD + OUT + "\nst.global.u32 [%d1], %r2; ret;\n}\n"
    x, out = np.zeros((8, 16), np.uint32), np.zeros(128, np.uint32)
    assert warpsan.launch(text, "k", 1, 32, [x, out]).hazards == []
    unwritten = warpsan.Unwritten(x)
    unwritten.bytes[:64] = 0
    given = {"names": ["x", "out"], "unwritten": [unwritten, warpsan.Unwritten(np.zeros(3))]}
    (hazard,) = warpsan.launch(text, "k", 1, 32, [x, out], **given).hazards
    assert "4 bytes of global memory at byte 64 of x, in x[1, 0]," in hazard.message
    assert unwritten.bytes[64:].reshape(-1, 16).sum(axis=1).tolist() == 28 * [12]
    assert warpsan.launch(text, "k", 1, 32, [x, out], **given).hazards == []


# ---- bulk copies -----------------------------------------------------------------------------------------------------

BYTES = ".param .u64 p, .param .u64 q, .param .u32 n"
BYTES_START = (
    "ld.param.u64 %rd3, [q]; ld.param.u32 %r20, [n];\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n"
)
BYTES_LOAD = (
    "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r20;\n"
    "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd3], %r20, [%r2];\n"
    + CTA_WAIT.format(0, "%r2", 0)
)
READ = "ld.shared.u32 %r7, [%r1+{0}]; @%p1 st.global.u32 [%rd1], %r7;\n"
STORE = (
    "@!%p1 bra END;\ncp.{0}async.bulk.global.shared::cta.bulk_group{1} [%rd3], [%r1], %r20;\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nEND:"
)
FILL = "st.shared.u32 [%r1], 1; st.shared.u32 [%r1+4], 1; st.shared.u32 [%r1+8], 1; st.shared.u32 [%r1+12], 1;\n"
FILL += "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
BULK = {
    "loaded and not used": (BYTES_LOAD, ""),
    "the written bytes used": (BYTES_LOAD + READ.format(4), ""),
    "the others used": (BYTES_LOAD + READ.format(8), "used as a stored value by st.global.u32"),
    "written out": (BYTES_LOAD + STORE.format("", ""), "used as an operand by cp.async.bulk"),
    "stored": (FILL + STORE.format("", "") + "@%p1 ld.global.u32 %r7, [%rd3+12]; @%p1 st.global.u32 [%rd1], %r7;", ""),
    "accumulated": (FILL + STORE.format("reduce.", ".add.u32"), "anything wrote them (cp.reduce.async.bulk"),
}  # fmt: skip
"""16 bytes, the first 8 of them written: operations of a bulk copy, and the expected reports."""


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize(("body", "says"), BULK.values(), ids=BULK)
def test_bulk_copies(body: str, says: str, mode: str) -> None:
    gpu = device()
    out, source = gpu.empty(64, np.uint32, name="out"), gpu.empty(64, np.uint32, name="source")
    source[:2] = 5
    module = gpu.module(hopper_kernel(BYTES_START + body, BYTES))
    hazards = module[module.entries[0]].launch(1, 32, [out, source, 16], async_mode=mode).hazards
    assert [each.kind for each in hazards] == (["uninitialised"] if says else [])
    for hazard in hazards:
        assert "8 bytes of global memory at byte 8 of source" in hazard.message
        assert says in hazard.message


TENSOR = ".param .align 64 .b8 a[128], .param .u64 p"
TENSOR_START = (
    "mov.b64 %rd3, a; cvta.param.u64 %rd4, %rd3;\n@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n"
)
TENSOR_LOAD = (
    "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512; mov.u32 %r20, 0; mov.u32 %r21, {0};\n"
    "@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [%r1], [%rd4, {{%r20, %r21}}], [%r2];\n" + CTA_WAIT.format(0, "%r2", 0)
)


@pytest.mark.parametrize(("row", "read", "wrong"), [(0, 0, False), (2, 128, False), (2, 256, True), (6, 256, False)])
@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_boxes_of_a_tensor(row: int, read: int, wrong: bool, swizzle: str) -> None:
    """The first four of eight 128-byte rows are written; a box has four rows, and zeros beyond the tensor."""
    gpu = device()
    tensor, out = gpu.empty((8, 32), np.uint32, name="tensor"), gpu.empty(64, np.uint32, name="out")
    tensor[:4] = 3
    module = gpu.module(hopper_kernel(TENSOR_START + TENSOR_LOAD.format(row) + READ.format(read), TENSOR))
    arguments = [warpsan.TensorMap(tensor, (4, 32), swizzle), out]
    hazards = module[module.entries[0]].launch(1, 32, arguments).hazards
    assert [each.kind for each in hazards] == (["uninitialised"] if wrong else [])
    if wrong:
        assert "16 bytes of global memory at byte 512 of tensor" in hazards[0].message
        assert "used as a stored value by st.global.u32" in hazards[0].message


def test_products_of_wgmma_take_what_nobody_has_written_as_written() -> None:
    """The reads of a product are not tracked, because their use is unknown."""
    body = FENCE + instruction(16, KINDS, FIRST, "%a", "%no") + COMMIT + WAIT
    ptx = wgmma_kernel(body, threads=128, words=1, smem=len(MEMORY), outputs=8)
    memory, out = MEMORY.copy(), np.zeros((128, 8), np.float32)
    arguments = [memory, np.zeros((128, 1), np.uint32), out, DESC_A, DESC_B]
    assert warpsan.launch(ptx, "k", 1, 128, arguments, unwritten=[warpsan.Unwritten(memory)]).hazards == []
