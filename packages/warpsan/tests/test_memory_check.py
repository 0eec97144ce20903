"""Out of bounds, misaligned and uninitialised accesses: detected, reported with their place, and without an effect."""

import numpy as np
import pytest

import warpsan
from warpsan.build.builder import build
from warpsan.build.source import Module
from warpsan.host.memory import Extent
from warpsan.report.illegal import element

HEAD = ".version 8.0\n.target sm_89\n.address_size 64\n"


def kernel(body: str) -> str:
    return (
        HEAD
        + ".entry k(.param .u64 a, .param .u64 b)\n{\n.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %h<3>;\n"
        + ".shared .align 16 .b8 buf[64];\nld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;\n"
        + "mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3; shl.b32 %r2, %r1, 2;\n"
        + body
        + "\nret;\n}\n"
    )


def run(body, size=32, threads=32, **options):
    a, b = np.arange(size, dtype=np.uint32), np.zeros(size, np.uint32)
    return warpsan.launch(kernel(body), "k", 1, threads, [a, b], **options), b


def test_a_correct_kernel_has_no_hazard():
    report, b = run("ld.global.u32 %r3, [%rd4]; st.global.u32 [%rd5], %r3;")
    assert report.hazards == []
    assert (b == np.arange(32)).all()


def test_one_row_too_far_is_found_and_does_not_touch_the_neighbour():
    report, b = run("mov.u32 %r3, 7; st.global.u32 [%rd4+4], %r3;")
    (hazard,) = report.hazards
    assert hazard.kind == "out-of-bounds"
    assert hazard.ptx_line == 10
    assert hazard.thread == (31, 0, 0)
    assert "byte 128 of argument 0" in hazard.message
    assert (b == 0).all()


def test_before_the_beginning_and_a_reading_far_away():
    report, _ = run("ld.global.u32 %r3, [%rd4+-4]; ld.global.u32 %r4, [%rd4+1000000];")
    assert [hazard.kind for hazard in report.hazards] == ["out-of-bounds"] * 2
    assert report.hazards[0].thread == (0, 0, 0)


def test_half_an_element_beyond_the_end():
    report, _ = run("ld.global.v2.u32 {%r3, %r4}, [%rd1+124];", threads=1)
    assert report.hazards[0].kind == "misaligned"
    report, _ = run("ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1+128];", threads=1, size=33)
    assert report.hazards[0].kind == "out-of-bounds"


def test_shared_memory_ends_at_the_block():
    report, _ = run("st.shared.u32 [%r2], %r1;")
    assert report.hazards[0].kind == "out-of-bounds"
    assert report.hazards[0].thread == (16, 0, 0)


def test_generic_addresses_are_checked_in_their_space():
    body = "mov.u64 %rd6, buf; cvta.shared.u64 %rd6, %rd6; add.u64 %rd6, %rd6, %rd3; st.u32 [%rd6], %r1;"
    report, _ = run(body, threads=16)
    assert report.hazards == []
    report, _ = run(body, threads=32)
    assert report.hazards[0].thread == (16, 0, 0)


def test_reading_uninitialised_shared_memory():
    report, b = run("ld.shared.u32 %r3, [%r2]; st.global.u32 [%rd5], %r3;", threads=16)
    (hazard,) = report.hazards
    assert hazard.kind == "uninitialised"
    assert (b[:16] == 0xFFFFFFFF).all()


def test_every_byte_of_a_wide_read_must_have_been_written():
    write = "mov.u16 %h1, 5; st.shared.u16 [buf], %h1; st.shared.u16 [buf+2], %h1; st.shared.u32 [buf+4], %r1;"
    assert run(write + "ld.shared.v2.u32 {%r3, %r4}, [buf];", threads=1)[0].hazards == []
    read = "ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [buf]; st.global.u32 [%rd5], "
    assert run(f"{write}{read}%r4;", threads=1)[0].hazards == []
    assert run(f"{write}{read}%r5;", threads=1)[0].hazards != []


def test_without_the_check_an_illegal_access_raises():
    with pytest.raises(warpsan.IllegalAccess, match=r"out-of-bounds .* PTX line 10"):
        run("mov.u32 %r3, 7;\nst.global.u32 [%rd4+4], %r3;".replace("\n", " "), checks=())


def test_source_lines_come_from_the_line_information():
    ptx = kernel(".loc 1 42 3\nld.shared.u32 %r3, [buf]; st.global.u32 [%rd5], %r3;") + '.file 1 "some/where/my.cu"\n'
    report = warpsan.launch(ptx, "k", 1, 1, [np.zeros(4, np.uint32), np.zeros(4, np.uint32)])
    assert report.hazards[0].source == "my.cu:42"
    assert "my.cu:42" in report.hazards[0].message


COPY = """extern "C" __global__ void copy(const unsigned *a, uint4 *b, int n) {
    int i = threadIdx.x;
    uint4 chunk =
        reinterpret_cast<const uint4 *>(a)[i + n];
    b[i] = chunk;
}"""


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (8, "a[1, 2, 0], one row past the end of a [2, 2, 64]"),
        (12, "a[1, 2, 0], one row past the end of a [2, 2, 64]"),
        (100_000, "a[1, 6248, 0], 6247 rows past the end of a [2, 2, 64]"),
        (-80, "a[0, -5, 0], 5 rows before the beginning of a [2, 2, 64]"),
    ],
)
def test_an_access_outside_a_named_array_has_its_index(start: int, says: str) -> None:
    """The index in the array whose address is computed, at any distance; and the load's own line."""
    ptx = build(Module("copy.cu", COPY, "copy")).ptx
    arrays = np.zeros((2, 2, 64), np.uint32), np.zeros((64, 4), np.uint32)
    (hazard,) = warpsan.launch(ptx, "copy", 1, 64, [*arrays, start], names=["a", "b", ""]).hazards
    assert f"16-byte access at {says}" in hazard.message
    assert hazard.other is not None
    assert hazard.other.source == "copy.cu:4"


def test_elements_of_a_vector_and_across_the_end() -> None:
    assert element(Extent("x", 100, 140, (10,), 4), 140, 4) == "x[10], one element past the end of x [10]"
    assert element(Extent("x", 100, 140, (10,), 4), 92, 4) == "x[-2], 2 elements before the beginning of x [10]"
    assert element(Extent("x", 0, 40, (2, 5), 4), 32, 16) == (
        "x[1, 3], whose last 8 bytes are past the end of x [2, 5]"
    )


# ---- provenance ------------------------------------------------------------------------------------------------------


def distance(checks=("memory",)):
    """Bytes from the first buffer of a launch to the second, in device addresses."""
    report, b = run("sub.u64 %rd6, %rd2, %rd1; st.global.u64 [%rd2], %rd6;", threads=1, checks=checks)
    assert report.hazards == []
    return int(b[:2].view(np.uint64)[0])


@pytest.mark.usefixtures("recorded_launches")
def test_an_index_that_lands_in_the_next_buffer_is_out_of_bounds_of_its_own():
    body = f"add.u64 %rd6, %rd4, {distance()}; ld.global.u32 %r3, [%rd6];"
    assert run(body)[0].hazards == []
    (hazard,) = run(body, checks=("provenance",))[0].hazards
    assert hazard.kind == "out-of-bounds"
    assert "of argument 0 (a), which has 128 bytes, and this place is in argument 1 (b)" in hazard.message


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    "body",
    [
        "sub.u64 %rd6, %rd2, %rd1; add.u64 %rd7, %rd4, %rd6; st.global.u32 [%rd7], 5;",  # by both pointers
        "setp.eq.u32 %p1, %r1, 3; selp.u64 %rd6, %rd4, %rd5, %p1; st.global.u32 [%rd6], %r1;",  # one or the other
        "st.global.u64 [%rd2], %rd1; ld.global.u64 %rd6, [%rd2]; st.global.u32 [%rd6], 1;",  # from memory
        "mad.lo.s64 %rd6, %rd3, 1, %rd2; st.global.u32 [%rd6], 1;",
        "cvta.to.global.u64 %rd6, %rd2; add.s64 %rd7, %rd6, 124; st.global.u32 [%rd7+-124], 1;",
        "or.b64 %rd6, %rd2, 4; st.global.u32 [%rd6], 1;",
    ],
)
def test_arithmetic_on_pointers_is_no_false_alarm(body):
    threads = 1 if "or.b64" in body or "st.global.u64" in body else 32
    text = kernel(body).replace(".reg .b16 %h<3>;", ".reg .b16 %h<3>; .reg .pred %p<3>;")
    arrays = [np.zeros(32, np.uint32), np.zeros(32, np.uint32)]
    assert warpsan.launch(text, "k", 1, threads, arrays, checks=("provenance",)).hazards == []


def test_tensors_of_one_allocation_are_one_buffer():
    both = np.zeros(64, np.uint32)
    text = kernel("st.global.u32 [%rd4+128], %r1;")
    report = warpsan.launch(text, "k", 1, 32, [both[:32], both], checks=("provenance",))
    assert report.hazards == []
    assert (both[32:] == np.arange(32)).all()
