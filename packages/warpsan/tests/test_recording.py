"""Recorder of accesses at a source line: first block, most expensive warp."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from warpsan.profile.recording import AccessRecorder

PTX = """.version 8.0
.target sm_89
.address_size 64
.file 1 "k.cu"
.entry k(.param .u64 p)
{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<2>;
.shared .align 16 .b8 buf[8192];
.loc 1 1 1
ld.param.u64 %rd1, [p];
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
shr.u32 %r2, %r0, 5;
add.u32 %r2, %r2, 2;
shl.b32 %r3, %r0, %r2;
setp.eq.u32 %p1, %r1, 0;
@%p1 bra OUT;
.loc 1 7 1
st.shared.u32 [%r3], %r0;
mad.lo.u32 %r4, %r1, 64, %r0;
mul.wide.u32 %rd2, %r4, 4;
add.u64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r0;
OUT:
ret;
}
"""
"""Warp 0 stores contiguous words and warp 1 every other word; block 0 branches around the line."""


def run(recorder: AccessRecorder | None, workers: int) -> warpsan.Report:
    data = np.zeros((4, 64), np.uint32)
    watchers = () if recorder is None else (recorder,)
    report = warpsan.launch(
        PTX, "k", 4, 64, [data], checks=(), counters=True, workers=workers, names=["p"], watchers=watchers
    )
    assert (data[1:] == np.arange(64)).all()
    assert not data[0].any()
    return report


def test_the_first_block_that_gets_there_and_its_costliest_warp() -> None:
    recorder = AccessRecorder("k.cu:7")
    run(recorder, 1)
    shared, out = recorder.records
    assert (shared.space, shared.text, shared.block, shared.places) == (
        "shared",
        "st.shared.u32",
        (1, 0, 0),
        ("k.cu:7",),
    )
    assert (shared.warp, shared.cost) == (1, 2)
    assert shared.offset.tolist() == [8 * thread for thread in range(32, 64)]
    assert shared.touched.tolist() == sorted({*range(0, 128, 4), *range(256, 512, 8)})
    assert shared.buffer is None
    assert (out.space, out.warp, out.cost) == ("global", 0, 4)  # both warps take 4 sectors: the first is recorded
    assert out.buffer is not None
    assert (out.buffer.name, out.buffer.shape) == ("p", (4, 64))
    assert out.touched.tolist() == [4 * element for element in range(64, 128)]


def test_a_line_without_accesses_has_no_record() -> None:
    recorder = AccessRecorder("k.cu:1")
    run(recorder, 1)
    assert recorder.records == ()


@pytest.mark.usefixtures("recorded_launches")
def test_watching_changes_no_count_whatever_the_number_of_workers() -> None:
    plain, watched = run(None, 2), run(AccessRecorder("k.cu:7"), 2)
    assert plain.counters == watched.counters
