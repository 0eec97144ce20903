"""PTX of kernels on tensor memory: an image of shared memory, a product or a copy, and all lanes of some columns."""

from __future__ import annotations

from typing import Any

import numpy as np

import warpsan

BYTES = 65536
"""Bytes of the image of shared memory."""

_HEAD = """.version 8.7
.target sm_100a
.address_size 64
.entry k(.param .u64 image, .param .u64 out) {cluster}
{{
.reg .b32 %r<300>; .reg .b64 %rd<40>; .reg .pred %p<9>; .reg .b16 %h<4>;
.shared .align 1024 .b8 buf[65536]; .shared .align 8 .b64 bar[4]; .shared .align 4 .b32 place;
ld.param.u64 %rd1, [image]; ld.param.u64 %rd2, [out];
mov.u32 %r0, %tid.x; mov.u32 %r1, buf; mov.u32 %r2, bar; mov.u32 %r3, place; mov.u32 %r9, %ctaid.x;
shr.u32 %r4, %r0, 5; and.b32 %r5, %r4, 3; shl.b32 %r6, %r5, 21;
setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r4, 0;
mul.wide.u32 %rd3, %r9, 65536; add.u64 %rd1, %rd1, %rd3;
shl.b32 %r7, %r0, 4;
L: cvt.u64.u32 %rd4, %r7; add.u64 %rd5, %rd1, %rd4; add.u32 %r8, %r1, %r7;
ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd5]; st.shared.v4.u32 [%r8], {{%r10, %r11, %r12, %r13}};
add.u32 %r7, %r7, 2048; setp.lt.u32 %p3, %r7, 65536;
@%p3 bra L;
@%p1 mbarrier.init.shared::cta.b64 [%r2], {arrivals};
@%p1 fence.mbarrier_init.release.cluster;
fence.proxy.async;
{alloc}
tcgen05.fence::before_thread_sync;
{sync}
tcgen05.fence::after_thread_sync;
ld.shared.u32 %r20, [%r3];
"""
_ALLOC = """@!%p2 bra M;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r3], {columns};
tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
M:
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r2], 0;\n@!%p4 bra W;\ntcgen05.fence::after_thread_sync;\n"
COMMIT = "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];\n"
_CLUSTER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def kernel(body: str, *, columns: int = 128, group: int = 1, read: int = 64, arrivals: int = 1) -> str:
    """PTX of an entry ``k`` with 128 threads: %r20 is the address of the allocated columns, %r6 that of the warp's
    lanes, %p1 true for thread 0, %r1 the image, %r2 an mbarrier of ``arrivals``. After the body each thread writes
    ``read`` columns of its lane to ``out`` [CTAs, 128, read]; with 0 it does not."""
    sync = _CLUSTER if group == 2 else "bar.sync 0;\n"
    alloc = _ALLOC.format(group=group, columns=columns)
    cluster = ".reqnctapercluster 2, 1, 1" if group == 2 else ""
    text = _HEAD.format(cluster=cluster, alloc=alloc, sync=sync, arrivals=arrivals) + body
    text += f"add.u32 %r21, %r20, %r6; mul.lo.u32 %r22, %r0, {4 * read}; cvt.u64.u32 %rd6, %r22;\n"
    text += f"mul.wide.u32 %rd3, %r9, {4 * 128 * read}; add.u64 %rd2, %rd2, %rd3; add.u64 %rd2, %rd2, %rd6;\n"
    for column in range(0, read, 8):
        names = [f"%r{100 + k}" for k in range(8)]
        text += f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{', '.join(names)}}}, [%r21+{column}];\n"
        text += "tcgen05.wait::ld.sync.aligned;\n"
        text += "".join(f"st.global.u32 [%rd2+{4 * (column + k)}], {name};\n" for k, name in enumerate(names))
    text += f"tcgen05.fence::before_thread_sync;\n{sync}@!%p2 bra N;\n"
    return text + f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r20, {columns};\nN: ret;\n}}\n"


def run(text: str, image: Any, *, read: int = 64, ctas: int = 1, **options: Any) -> tuple[Any, list[str]]:
    """The columns that a kernel has read, uint32 [ctas, 128, read], and its hazards' messages."""
    raw = np.zeros(BYTES * ctas, np.uint8)
    raw[: image.nbytes] = np.ascontiguousarray(image).view(np.uint8).reshape(-1)
    out = np.zeros((ctas, 128, max(read, 1)), np.uint32)
    report = warpsan.launch(text, "k", ctas, 128, [raw, out], **options)
    return out, [hazard.message for hazard in report.hazards]


def k_major(matrix: Any, width: int = 128) -> Any:
    """The bytes of a matrix [rows, width bytes] in core matrices of 8 rows with the swizzle of that width."""
    lines = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), -1)
    assert lines.shape[1] == width
    chunks, rows = lines.reshape(len(matrix), width // 16, 16), np.arange(len(matrix))
    shift = {128: 0, 64: 1, 32: 2, 16: 3}[width]
    out = np.empty_like(chunks)
    for chunk in range(width // 16):
        out[rows, chunk ^ ((rows % 8) >> shift) % (width // 16)] = chunks[:, chunk]
    return out.reshape(-1)


def descriptor(offset: int, width: int = 128, leading: int = 16) -> str:
    """PTX that sets %rd10 plus the number of the operand to a descriptor; ``{}`` is the register's number."""
    mode = {16: 0, 32: 6, 64: 4, 128: 2}[width]
    high = (8 * width >> 4) | 1 << 14 | mode << 29
    return (
        f"add.u32 %r30, %r1, {offset}; shr.u32 %r30, %r30, 4; or.b32 %r30, %r30, {leading >> 4 << 16};\n"
        f"mov.u32 %r31, {high}; mov.b64 %rd{{}}, {{{{%r30, %r31}}}};\n"
    )


def instruction(m: int, n: int, a: int = 0, b: int = 0, d: int = 1, more: int = 0) -> int:
    """An instruction descriptor: M, N, the numbers of the types, and further bits."""
    return d << 4 | a << 7 | b << 10 | n >> 3 << 17 | m >> 4 << 24 | more
