"""Launches: arguments, geometry, limits, and one sentence for each error."""

import sys

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"
IOTA = (
    HEAD
    + """.visible .entry iota(.param .u64 out, .param .u32 step, .param .f32 scale)
{
    .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [step];
    ld.param.f32 %f1, [scale];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mad.lo.u32 %r6, %r5, %r1, 0;
    mul.wide.u32 %rd2, %r5, 8;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r6;
    st.global.f32 [%rd3+4], %f1;
    ret;
}
"""
)


def run(args, grid=2, block=40, ptx=IOTA, entry="iota", **options):
    return warpsan.launch(ptx, entry, grid, block, args, **options)


def test_every_thread_of_every_block_runs_once():
    out = np.zeros((80, 2), np.uint32)
    report = run([out, 3, 0.5])
    assert (out[:, 0] == 3 * np.arange(80)).all()
    assert (out[:, 1].view(np.float32) == 0.5).all()
    assert report.hazards == []
    assert report.lane_instructions == 80 * 13


def test_a_grid_of_many_chunks_is_complete():
    out = np.zeros((300 * 256, 2), np.uint32)
    run([out, 1, 0.0], grid=300, block=256)
    assert (out[:, 0] == np.arange(300 * 256)).all()


def test_block_and_grid_of_three_dimensions():
    ptx = (
        HEAD
        + """.entry k(.param .u64 out) { .reg .b32 %r<16>; .reg .b64 %rd<4>;
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ctaid.z;
        mad.lo.u32 %r6, %r3, 2, %r2; mad.lo.u32 %r6, %r6, 4, %r1;
        mad.lo.u32 %r7, %r5, 3, %r4; mad.lo.u32 %r8, %r7, 24, %r6;
        ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r8, 4; add.u64 %rd3, %rd1, %rd2;
        st.global.u32 [%rd3], %r8; ret; }"""
    )
    out = np.zeros(24 * 6, np.uint32)
    warpsan.launch(ptx, "k", (1, 3, 2), (4, 2, 3), [out])
    assert (out == np.arange(24 * 6)).all()


def read_only():
    array = np.zeros(8, np.uint32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"entry": "nothing"}, "no entry 'nothing'; it has: iota"),
        ({"args": [np.zeros(160, np.uint32), 1]}, "takes 3 arguments, and 2 were given"),
        ({"args": [5.0, 1, 0.5]}, "argument 0"),
        ({"args": [np.zeros(160, np.uint32), np.zeros(2), 0.5]}, "argument 1 .* is an array"),
        ({"args": [np.zeros(160, np.uint32), 2**32, 0.5]}, "does not fit"),
        ({"args": [np.zeros((160, 2), np.uint32)[:, 0], 1, 0.5]}, "not contiguous"),
        ({"args": [read_only(), 1, 0.5]}, "read-only"),
        ({"args": [np.zeros(160, np.uint32), "one", 0.5]}, "is a str"),
        ({"block": 1025}, "block.x must be 1 to 1024"),
        ({"block": (64, 32)}, "at most 1024 threads"),
        ({"grid": 0}, "grid.x must be 1"),
        ({"grid": "many"}, "one to three integers"),
        ({"dynamic_smem": 100 * 1024}, "at most 101376"),
        ({"dynamic_smem": -1}, "dynamic_smem"),
        ({"checks": ("everything",)}, "check 'everything'"),
        ({"schedule": "sideways"}, "schedule"),
        ({"numerics": "float16"}, "numerics is one of .*, not 'float16'"),
        ({"cluster": (2, 1, 1)}, "cluster"),
        ({"async_mode": "never"}, "async_mode"),
        ({"ptx": IOTA.replace("sm_89", "sm_12")}, "sm_12"),
    ],
)
def test_a_wrong_launch_is_refused_in_one_sentence(change, words):
    options = {"args": [np.zeros(160, np.uint32), 1, 0.5]} | change
    with pytest.raises(warpsan.LaunchError, match=words) as caught:
        run(**options)
    assert "\n" not in str(caught.value)


def test_arrays_that_share_bytes_share_a_buffer():
    ptx = (
        HEAD
        + ".entry k(.param .u64 a, .param .u64 b) { .reg .b64 %rd<3>; .reg .pred %p;\n"
        + "ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; sub.u64 %rd2, %rd2, %rd1; st.global.u64 [%rd1], %rd2; ret; }"
    )
    array = np.ones(4, np.uint64)
    warpsan.launch(ptx, "k", 1, 1, [array, array])
    assert array.tolist() == [0, 1, 1, 1]
    warpsan.launch(ptx, "k", 1, 1, [array[:3], array[1:]])
    assert array.tolist() == [8, 1, 1, 1]
    apart = array[:2], array[2:]  # neighbours share no bytes
    warpsan.launch(ptx, "k", 1, 1, apart)
    assert apart[0][0] > 1 << 15


COPY_FOUR = (
    HEAD
    + ".entry k(.param .u64 a, .param .u64 b) { .reg .b64 %rd<3>; .reg .b32 %r1;\n"
    + "ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1; ret; }"
)


def test_pointers_into_one_array_share_it_and_reach_all_of_it():
    array = np.arange(8, dtype=np.uint32)
    report = warpsan.launch(COPY_FOUR, "k", 1, 1, [warpsan.Pointer(array, 28), warpsan.Pointer(array, 4)])
    assert array.tolist() == [0, 7, 2, 3, 4, 5, 6, 7]
    assert report.hazards == []
    report = warpsan.launch(COPY_FOUR, "k", 1, 1, [warpsan.Pointer(array, 32), warpsan.Pointer(array)])
    assert [hazard.kind for hazard in report.hazards] == ["out-of-bounds"]


def test_a_pointer_beyond_its_array_is_refused():
    array = np.zeros(8, np.uint32)
    for offset in (-1, 33):
        with pytest.raises(warpsan.LaunchError, match=f"points at byte {offset} of an array of 32"):
            warpsan.launch(COPY_FOUR, "k", 1, 1, [array, warpsan.Pointer(array, offset)])


def test_required_block_size_is_enforced():
    ptx = HEAD + ".entry k() .reqntid 64, 1, 1 { ret; }"
    warpsan.launch(ptx, "k", 1, 64, [])
    with pytest.raises(warpsan.LaunchError, match="requires a block"):
        warpsan.launch(ptx, "k", 1, 32, [])


def test_unknown_opcodes_and_modifiers_raise_with_their_line():
    for text in ("frobnicate.u32 %r1, %r2;", "add.sideways.u32 %r1, %r2, %r2;", "mov.u32 %r1, %smid;"):
        with pytest.raises(warpsan.UnsupportedInstruction, match="line 6") as caught:
            warpsan.launch(HEAD + ".entry k() { .reg .u32 %r<3>;\n\n" + text + " ret; }", "k", 1, 1, [])
        assert caught.value.line == 6


def test_a_launch_beyond_the_memory_budget_is_refused_before_it_begins(monkeypatch):
    ptx = HEAD + ".entry k() { .local .align 16 .b8 depot[65536]; .reg .b64 %rd<2>; mov.u64 %rd1, depot; ret; }"
    warpsan.launch(ptx, "k", 1, 32, [])
    # the name also refers to the function
    monkeypatch.setattr(sys.modules["warpsan.host.launch"], "MEMORY_BUDGET", 1 << 20)
    with pytest.raises(warpsan.LaunchError, match=r"would need about 1\.\d GiB .* at most 0 GiB"):
        warpsan.launch(ptx, "k", 4096, 32, [])
