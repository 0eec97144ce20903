"""Arguments as CUDA's driver takes them: parameter blocks byte for byte, and the description of tensor maps."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sdpalab.compile import build
from sdpalab.errors import UserError
from sdpalab.kernels.plan import Launch, Module, TiledMap
from sdpalab.run.gpu_arguments import Parameters, TensorMapFields, entry_of, parameter_bytes, tensor_map_fields
from warpsan import LaunchError, TensorMap

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
ADDRESSES = {"q": 0x7F12_3456_7800, "o": 0x7F00_0000_1000}
MAP = bytes(range(128))


def packed(params: str, *args: Any) -> bytes:
    entry = entry_of(f"{HEAD}.entry k({params}) {{ ret; }}", "k")
    return parameter_bytes(entry, Launch((1, 1, 1), (1, 1, 1), args), ADDRESSES, lambda tiled: MAP, "step 1")


@pytest.mark.parametrize(
    ("kind", "value", "form"),
    [
        *((f"u{bits}", (1 << bits) - 1, f"<{code}") for bits, code in zip((8, 16, 32, 64), "BHIQ", strict=True)),
        *((f"s{bits}", -(1 << bits - 1), f"<{code}") for bits, code in zip((8, 16, 32, 64), "bhiq", strict=True)),
        *((f"b{bits}", 3, f"<{code}") for bits, code in zip((8, 16, 32, 64), "BHIQ", strict=True)),
        *((f"f{bits}", -1.5, f"<{code}") for bits, code in zip((16, 32, 64), "efd", strict=True)),
        ("b32", 0.1, "<f"),
        ("b64", 0.1, "<d"),
        ("f32", 2, "<f"),
    ],
)
def test_numbers_take_the_parameters_type(kind: str, value: float, form: str) -> None:
    assert packed(f".param .{kind} x", value) == struct.pack(form, value)


def test_parameters_lie_where_a_c_struct_has_them() -> None:
    class Block(ctypes.Structure):
        _fields_ = [
            *(("a", ctypes.c_uint8), ("b", ctypes.c_uint64), ("c", ctypes.c_float), ("d", ctypes.c_uint16)),
            *(("e", ctypes.c_double), ("f", ctypes.c_uint64)),
        ]

    params = ".param .u8 a, .param .u64 b, .param .f32 c, .param .u16 d, .param .f64 e, .param .u64 .ptr .global f"
    expected = bytes(Block(7, ADDRESSES["q"], 0.5, 9, -2.25, ADDRESSES["o"]))
    assert packed(params, 7, "q", 0.5, 9, -2.25, "o") == expected


def test_a_tensor_map_lies_at_a_multiple_of_64() -> None:
    block = packed(".param .u32 n, .param .align 64 .b8 map[128], .param .u64 o", 5, TiledMap("q", (8, 8)), "o")
    assert len(block) == 64 + 128 + 8
    assert (block[:4], block[64:192], block[192:]) == (
        (5).to_bytes(4, "little"),
        MAP,
        ADDRESSES["o"].to_bytes(8, "little"),
    )


def test_what_nvrtc_declares_is_what_is_packed() -> None:
    source = """
    struct Pair { float a; double b; };
    __global__ void k(const float* x, int n, bool yes, Pair pair, float* y) { y[n] = yes ? x[n] : pair.a; }
    """
    built = build(Module("packing.cu", source, "k"))
    entry = entry_of(built.ptx, built.entry)
    assert [(param.offset, param.size) for param in entry.params] == [(0, 8), (8, 4), (12, 1), (16, 16), (32, 8)]


@pytest.mark.parametrize(
    ("params", "args", "words"),
    [
        (".param .u64 q", (), "takes 1 arguments, and 0 were given"),
        (".param .u64 q", ("z",), "step 1 names buffer 'z'; the plan has: q, o"),
        (".param .f64 q", ("q",), "argument 0 is buffer q, and the parameter is a .f64"),
        (".param .u32 q", ("q",), "argument 0 is buffer q, and the parameter is a .u32"),
        (".param .u64 q", (TiledMap("q", (8, 8)),), "has 128 bytes, and the parameter has 8"),
        (".param .u32 n", (1 << 32,), "does not fit a .u32"),
        (".param .u32 n", (0.5,), "is a float, and the parameter is a .u32"),
        (".param .align 8 .b8 pair[16]", (1,), "a structure of 16 bytes"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_in_one_sentence(params: str, args: Any, words: str) -> None:
    with pytest.raises(UserError, match=words.replace(".", r"\.")) as caught:
        packed(params, *args)
    assert "\n" not in str(caught.value)


def test_an_entry_that_there_is_not() -> None:
    with pytest.raises(UserError, match="no entry 'l'; it has: k"):
        entry_of(HEAD + ".entry k() { ret; }", "l")


def test_pointers_to_the_parameters() -> None:
    entry = entry_of(f"{HEAD}.entry k(.param .u8 a, .param .u64 b, .param .align 64 .b8 m[128]) {{ ret; }}", "k")
    block = bytes([7]) + bytes(7) + (1 << 40).to_bytes(8, "little") + bytes(48) + MAP
    parameters = Parameters(entry, block)
    pointers = (ctypes.c_void_p * 3).from_address(parameters.address)
    values = [ctypes.string_at(at, size) for at, size in zip(pointers, (1, 8, 128), strict=True)]
    assert values == [bytes([7]), (1 << 40).to_bytes(8, "little"), MAP]
    assert (pointers[0] or 0) % 128 == 0


def test_the_drivers_description_of_a_tensor_map() -> None:
    array = np.empty((4, 100, 64), ml_dtypes.bfloat16)
    shape, strides = (4, 2, 50, 64), (100 * 128, 50 * 128, 128, 2)
    tensor = TensorMap(array, (1, 2, 32, 64), "128B", shape=shape, strides=strides, oob_fill="nan")
    assert tensor_map_fields(tensor, 0x7F00_0000_0010) == TensorMapFields(
        data_type="BFLOAT16",
        address=0x7F00_0000_0010,
        dims=(64, 50, 2, 4),
        strides=(128, 6400, 12800),
        box=(64, 32, 2, 1),
        element_strides=(1, 1, 1, 1),
        swizzle="128B",
        oob_fill="NAN_REQUEST_ZERO_FMA",
    )


def test_the_driver_has_every_name_that_describes_a_tensor_map() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    for dtype in ("int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn"):
        array = np.empty((16, 16), getattr(ml_dtypes, dtype, dtype))
        fields = tensor_map_fields(TensorMap(array, (8, 16)), 0)
        assert hasattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{fields.data_type}")
        assert array.itemsize == {"8": 1, "6": 2, "2": 4, "4": 8}[fields.data_type[-1]]
    for swizzle in ("none", "32B", "64B", "128B"):
        fields = tensor_map_fields(TensorMap(np.empty((16, 16), np.uint8), (8, 16), swizzle), 0)
        assert hasattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{fields.swizzle}")
    for fill in ("NONE", "NAN_REQUEST_ZERO_FMA"):
        assert hasattr(driver.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}")


@pytest.mark.parametrize(
    ("dtype", "address", "words"),
    [("complex64", 0, "no elements of type complex64"), ("float16", 8, "multiple of 16 bytes, not at 0x8")],
)
def test_a_tensor_map_that_cannot_be(dtype: str, address: int, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        tensor_map_fields(TensorMap(np.empty((16, 16), dtype), (8, 16)), address)
