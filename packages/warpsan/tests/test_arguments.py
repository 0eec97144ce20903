"""Arguments other than numbers and arrays: structures, tables, pointers, and parameters by address."""

import ctypes

import numpy as np
import pytest

import warpsan

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
SIZE = 192


def kernel(body, params=f".param .align 64 .b8 p[{SIZE}], .param .u64 out"):
    return (
        f"{HEAD}.visible .entry k({params})\n{{\n.reg .b64 %d<9>; .reg .b32 %r<9>; .reg .b64 %o;\n"
        f"ld.param.u64 %o, [out];\n{body}\nret;\n}}\n"
    )


def run(body, argument, out=None, **options):
    out = np.zeros(4, np.uint32) if out is None else out
    assert warpsan.launch(kernel(body), "k", 1, 1, [argument, out], **options).hazards == []
    return out.tolist()


DATA = np.arange(SIZE, dtype=np.uint8).tobytes()


def word(offset):
    return int.from_bytes(DATA[offset : offset + 4], "little")


BY_ADDRESS = {
    "64 bits": "mov.b64 %d0, p; ld.param.u32 %r0, [%d0+68];",
    "a moved register": "mov.b64 %d0, p; add.s64 %d0, %d0, 60; ld.param.u32 %r0, [%d0+8];",
    "the qualifier": "mov.b64 %d0, p; ld.param::entry.u32 %r0, [%d0+68];",
    "generic": "mov.b64 %d0, p; cvta.param.u64 %d1, %d0; ld.u32 %r0, [%d1+68];",
    "32 bits": "mov.b32 %r1, p; ld.param.u32 %r0, [%r1+68];",
    "32 bits, generic": "mov.b32 %r1, p; cvt.u64.u32 %d0, %r1; cvta.param.u64 %d1, %d0; ld.u32 %r0, [%d1+68];",
    "an element of an array": "mov.b64 %d0, p; mov.u32 %r1, 17; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d0, %d1; "
    "ld.param.u32 %r0, [%d1];",
    "a vector": "mov.b64 %d0, p; ld.param.v2.u32 {%r1, %r0}, [%d0+64];",
}


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("body", BY_ADDRESS.values(), ids=BY_ADDRESS)
@pytest.mark.parametrize("big", [False, True])
def test_a_parameter_by_its_address(body, big):
    out = np.zeros(1 << 20 if big else 4, np.uint32)
    warpsan.launch(kernel(f"{body} st.global.u32 [%o], %r0;"), "k", 1, 1, [DATA, out])
    assert out[0] == word(68)


def test_a_load_beyond_the_parameters_is_out_of_bounds():
    body = f"mov.b64 %d0, p; ld.param.u32 %r0, [%d0+{SIZE + 8}]; st.global.u32 [%o], %r0;"
    report = warpsan.launch(kernel(body), "k", 1, 1, [DATA, np.zeros(4, np.uint32)])
    assert [hazard.kind for hazard in report.hazards] == ["out-of-bounds"]
    assert f"byte {SIZE + 8} of the parameters, which has {SIZE + 8} bytes" in report.hazards[0].message


@pytest.mark.usefixtures("recorded_launches")
def test_a_device_functions_parameter_by_its_address_is_its_own():
    """PTX ISA, "ld": in a device function .param is .param::func."""
    text = HEAD + (
        ".func (.reg .b32 r) get (.param .align 8 .b8 s[16])\n{ .reg .b64 %d;\n"
        "mov.b64 %d, s; ld.param.u32 r, [%d+4]; ret; }\n"
        ".visible .entry k(.param .align 8 .b8 p[16], .param .u64 out)\n"
        "{ .reg .b64 %o; .reg .b32 %r; .param .align 8 .b8 a[16];\n"
        "st.param.v2.b32 [a], {11, 22}; call (%r), get, (a); ld.param.u64 %o, [out]; st.global.u32 [%o], %r; ret; }"
    )
    out = np.zeros(1, np.uint32)
    warpsan.launch(text, "k", 1, 1, [bytes(16), out])
    assert out[0] == 22


class Inner(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint32), ("pointer", ctypes.c_void_p)]


class Outer(ctypes.Structure):
    _fields_ = [("head", ctypes.c_uint64 * 10), ("inner", Inner), ("tail", ctypes.c_uint8 * 96)]


NUMPY = np.dtype(
    [("head", "u8", 10), ("inner", [("count", "u4"), ("pad", "u4"), ("pointer", "u8")]), ("tail", "u1", 96)]
)
assert ctypes.sizeof(Outer) == NUMPY.itemsize == SIZE
READ = (
    "ld.param.u64 %d0, [p+88]; ld.global.u32 %r0, [%d0+8]; ld.param.u32 %r1, [p+80]; st.global.v2.u32 [%o], {%r0, %r1};"
)


def structures(array):
    """One structure in every notation: 33 at offset 80, and the address of an array at 88."""
    raw = bytearray(SIZE)
    raw[80] = 33
    by_ctypes, by_numpy = Outer(), np.zeros((), NUMPY)
    by_ctypes.inner.count = 33
    by_numpy["inner"]["count"] = 33
    yield warpsan.Struct(bytes(raw), {88: array})
    yield warpsan.Struct(raw, {88: warpsan.Pointer(array, 0)})
    yield warpsan.Struct(by_ctypes, {"inner.pointer": array})
    yield warpsan.Struct(by_ctypes, {88: array})
    yield warpsan.Struct(by_numpy, {"inner.pointer": array})
    yield warpsan.Struct(by_numpy[()], {"inner.pointer": array})


@pytest.mark.parametrize("way", range(6))
def test_structures_that_hold_an_address(way):
    array = np.array([1, 2, 77, 4], np.uint32)
    assert run(READ, list(structures(array))[way])[:2] == [77, 33]


def test_a_structure_without_addresses_is_an_argument_itself():
    by_ctypes, by_numpy = Outer(), np.zeros((), NUMPY)
    by_ctypes.inner.count = by_numpy["inner"]["count"] = 34
    for value in (by_ctypes, by_numpy, by_numpy[()], bytearray(bytes(by_ctypes))):
        assert run("ld.param.u32 %r0, [p+80]; st.global.u32 [%o], %r0;", value)[0] == 34


def test_what_a_structure_points_to_is_changed_in_place_and_checked():
    array = np.zeros(4, np.uint32)
    body = "ld.param.u64 %d0, [p+8]; st.global.u32 [%d0+4], 5; st.global.u32 [%d0+16], 6;"
    report = warpsan.launch(kernel(body), "k", 1, 1, [warpsan.Struct(bytes(SIZE), {8: array}), np.zeros(4, np.uint32)])
    assert array.tolist() == [0, 5, 0, 0]
    assert [hazard.kind for hazard in report.hazards] == ["out-of-bounds"]
    assert "byte 16 of argument 0 (p), which has 16 bytes" in report.hazards[0].message


def test_tables_of_pointers():
    a, b, out = (np.full(4, value, np.uint32) for value in (3, 4, 0))
    body = (
        "ld.param.u64 %d0, [table]; ld.global.u64 %d1, [%d0+8]; ld.global.u32 %r0, [%d1+4]; ld.global.u64 %d2, [%d0];\n"
        "st.global.u32 [%d2], 9; st.global.u32 [%o], %r0; ld.global.u64 %d3, [%d0+16]; st.global.u64 [%o+8], %d3;"
    )
    for table in ([a, b, None], warpsan.Pointer(warpsan.Struct(bytes(24), {0: a, 8: b}))):
        a[:], out[:] = 3, 0
        text = kernel(body, ".param .u64 table, .param .u64 out")
        assert warpsan.launch(text, "k", 1, 1, [table, out]).hazards == []
        assert (out.tolist(), a.tolist()) == ([4, 0, 0, 0], [9, 3, 3, 3])


def test_a_table_in_a_structure_and_a_null_pointer():
    a = np.full(4, 3, np.uint32)
    body = "ld.param.u64 %d0, [p]; ld.global.u64 %d1, [%d0]; ld.global.u32 %r0, [%d1+12]; st.global.u32 [%o], %r0;"
    assert run(body, warpsan.Struct(b"\xff" * SIZE, {0: [a], 64: None}))[0] == 3


WRONG = [
    (lambda a: bytes(SIZE - 1), "argument 0 (p) has 191 bytes, and the parameter has 192"),
    (lambda a: warpsan.Struct(bytes(64), {0: a}), "argument 0 (p) has 64 bytes, and the parameter has 192"),
    (lambda a: warpsan.Struct(bytes(SIZE), {84: a}), "an address lies at a multiple of 8 bytes of a Struct, not at 84"),
    (lambda a: warpsan.Struct(bytes(SIZE), {192: a}), "an address at offset 192 reaches beyond the 192 bytes"),
    (lambda a: warpsan.Struct(bytes(SIZE), {-8: a}), "an address at offset -8 reaches beyond"),
    (
        lambda a: warpsan.Struct(bytes(SIZE), {32: warpsan.TensorMap(a, (4,))}),
        "a tensor map lies at a multiple of 64 bytes",
    ),
    (
        lambda a: warpsan.Struct(bytes(SIZE), {128: warpsan.TensorMap(a, (4,))}),
        "a tensor map at offset 128 reaches beyond",
    ),
    (
        lambda a: warpsan.Struct(bytes(SIZE), {0: warpsan.TensorMap(a, (4,)), 64: a}),
        "offsets 0 and 64 of a Struct overlap",
    ),
    (lambda a: warpsan.Struct(Outer(), {"inner.nothing": a}), "has no field 'inner.nothing'"),
    (lambda a: warpsan.Struct(np.zeros((), NUMPY), {"nothing": a}), "has no field 'nothing'"),
    (lambda a: warpsan.Struct(bytes(SIZE), {0: 5}), "takes an array, a Pointer, .* not int"),
    (lambda a: warpsan.Struct(5), "made of bytes, a ctypes structure or a NumPy structured scalar, not int"),
    (lambda a: a, "argument 0 (p) is an array, and the parameter is a structure of 192 bytes"),
    (lambda a: 5, "argument 0 (p) is a structure of 192 bytes; pass a Struct or bytes"),
]


@pytest.mark.parametrize(("value", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_structures_are_refused_in_one_sentence(value, words):
    array = np.zeros(4, np.uint32)
    pattern = words if ".*" in words else words.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(warpsan.LaunchError, match=pattern) as caught:
        warpsan.launch(kernel(""), "k", 1, 1, [value(array), np.zeros(4, np.uint32)])
    assert "\n" not in str(caught.value)
    assert "argument argument" not in str(caught.value)


def test_a_half_is_a_structure_of_two_bytes_and_none_a_null_pointer():
    text = kernel("ld.param.u16 %r0, [h]; ld.param.u64 %d0, [n]; st.global.u32 [%o], %r0; st.global.u64 [%o+8], %d0;",
                  ".param .align 2 .b8 h[2], .param .u64 n, .param .u64 out")  # fmt: skip
    out = np.ones(4, np.uint32)
    warpsan.launch(text, "k", 1, 1, [np.float16(1.5), None, out])
    assert out.tolist() == [np.float16(1.5).view(np.uint16), 1, 0, 0]


def test_a_deadlock_names_what_came_before_it():
    body = (
        "mov.u32 %r0, %tid.x; st.global.u32 [%o+400], %r0; setp.lt.u32 %p, %r0, 32; @%p bar.sync 1, 64; "
        "@!%p bar.sync 2, 64;"
    )
    text = kernel(body, ".param .u64 out").replace(".reg .b64 %o;", ".reg .b64 %o; .reg .pred %p;")
    with pytest.raises(warpsan.Deadlock, match=r"; before that, out-of-bounds: .*PTX line \d+") as caught:
        warpsan.launch(text, "k", 1, 64, [np.zeros(4, np.uint32)])
    assert [hazard.kind for hazard in caught.value.hazards] == ["out-of-bounds"]


def test_buffers_have_the_order_of_the_arguments_wherever_the_host_has_them():
    block, text = np.zeros(512, np.uint64), kernel(
        "ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; st.global.u64 [%o], %d0; st.global.u64 [%o+8], %d1;",
        ".param .u64 a, .param .u64 b, .param .u64 out",
    )  # fmt: skip
    addresses = []
    for first, second in ((block[:8], block[256:264]), (block[256:264], block[:8])):
        out = np.zeros(2, np.uint64)
        warpsan.launch(
            text, "k", 1, 1, [first, second, out], checks=()
        )  # no repetition on a GPU, because its addresses differ
        addresses.append(out.tolist())
    assert addresses[0] == addresses[1]
    assert addresses[0][0] < addresses[0][1]
