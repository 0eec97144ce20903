"""Tensor memory: the cells of each shape of move, products against float64, copies, pairs of CTAs, and hazards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensor_snippets import COMMIT, WAIT, descriptor, instruction, k_major, kernel, run

RNG = np.random.default_rng(0)

# ---- moves -----------------------------------------------------------------------------------------------------------


def cells(shape: str, many: int) -> Any:
    """Row and column of each register of each thread [many, 32, 2] (PTX ISA, "Data Movement Shape"), by the layouts of
    CuTe's copies."""
    register, thread = np.meshgrid(np.arange(many), np.arange(32), indexing="ij")
    low, high = thread % 4, thread // 4
    rows, columns = {
        "32x32b": (thread, register),
        "16x64b": (thread % 2 * 8 + high, 2 * register + thread // 2 % 2),
        "16x128b": (high + register % 2 * 8, register // 2 * 4 + low),
        "16x256b": (high + register // 2 % 2 * 8, register // 4 * 8 + low * 2 + register % 2),
    }[shape]
    return np.stack([rows, columns], axis=-1)


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize(("shape", "many"), [("32x32b", 4), ("16x64b", 4), ("16x128b", 4), ("16x256b", 8)])
def test_stores_go_to_the_cells_of_their_shape(shape: str, many: int, packs: bool) -> None:
    repeats = many // {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    names = [f"%r{40 + k}" for k in range(many)]
    body = "add.u32 %r21, %r20, %r6;\n"
    zeros = ", ".join(["%r39"] * 64)
    body += f"mov.u32 %r39, 0;\ntcgen05.st.sync.aligned.32x32b.x64.b32 [%r21], {{{zeros}}};\n"
    body += "tcgen05.wait::st.sync.aligned;\n"
    body += "".join(f"mul.lo.u32 {name}, %r0, 65599; add.u32 {name}, {name}, {k}000;\n" for k, name in enumerate(names))
    kind = f"{shape}.x{repeats}{'.unpack::16b' if packs else ''}"
    body += f"tcgen05.st.sync.aligned.{kind}.b32 [%r21], {{{', '.join(names)}}};\ntcgen05.wait::st.sync.aligned;\n"
    out, hazards = run(kernel(body), np.zeros(16, np.uint8))
    assert hazards == []
    want = np.zeros((128, 64), np.uint32)
    for warp in range(4):
        for k, line in enumerate(cells(shape, many)):
            for lane, (row, column) in enumerate(line):
                value = (32 * warp + lane) * 65599 + k * 1000
                if packs:
                    want[32 * warp + row, 2 * column : 2 * column + 2] = value & 0xFFFF, value >> 16 & 0xFFFF
                else:
                    want[32 * warp + row, column] = value
    np.testing.assert_array_equal(out[0], want)


# ---- products --------------------------------------------------------------------------------------------------------


def product(kind: str, idesc: int, steps: int, step: int, *, more: str = "", offset: int = 16384, a: str = "") -> str:
    """Thread 0 multiplies along K; a step of K has ``step`` bytes."""
    body = ""
    for k in range(steps):
        body += descriptor(step * k).format(10) + descriptor(offset + step * k).format(11)
        body += f"mov.u32 %r32, {idesc}; mov.u32 %r33, {k}; setp.ne.u32 %p5, %r33, 0;\n"
        left = a.format(k) or "%rd10"
        body += f"@%p1 tcgen05.mma.cta_group::1.kind::{kind} [%r20], {left}, %rd11, %r32, {more}%p5;\n"
    return body + COMMIT + WAIT


def floats(out: Any, rows: int, columns: int, *, half: bool = False) -> Any:
    """Sums from the cells: of M = 64, each warp has 16 rows."""
    lanes = np.arange(128) if rows == 128 else np.concatenate([np.arange(16) + 32 * k for k in range(4)])
    words = out[0][lanes][:, :columns]
    return words.astype(np.uint16).view(np.float16) if half else words.view(np.float32)


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize(("m", "n"), [(128, 64), (128, 16), (64, 64), (64, 8)])
def test_products_of_halves(m: int, n: int, mode: str) -> None:
    a, b = (RNG.standard_normal((rows, 64)).astype(np.float16) for rows in (m, n))
    image = np.concatenate([np.pad(k_major(a), (0, 16384 - a.nbytes)), k_major(b)])
    text = kernel(product("f16", instruction(m, n), 4, 32), read=n)
    out, hazards = run(text, image, read=n, async_mode=mode)
    assert hazards == []
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(floats(out, m, n), want, atol=2e-5 * 8)


def rounded(values: Any, kind: str) -> tuple[Any, Any]:
    """Bytes of elements of a type, and their values in float64."""
    if kind == "tf32":
        words = values.astype(np.float32).view(np.uint32) & 0xFFFFE000
        return words.view(np.float32), words.view(np.float32).astype(np.float64)
    if kind == "bf16":
        words = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return words, (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind in ("s8", "u8"):
        numbers = (values * 20).astype(np.int8 if kind == "s8" else np.uint8)
        return numbers, numbers.astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        numbers = RNG.integers(0, 2, values.shape, np.uint8) << 7 | RNG.integers(0x18, 0x48, values.shape, np.uint8)
        bits, bias = (3, 7) if kind == "e4m3" else (2, 15)
        size = numbers & 0x7F
        exact = (1 + (size & (1 << bits) - 1) / (1 << bits)) * 2.0 ** ((size >> bits).astype(np.int64) - bias)
        return numbers, np.where(numbers >> 7, -exact, exact)
    return values.astype(np.float16), values.astype(np.float16).astype(np.float64)


KINDS = {
    "f16": ("f16", "f16", "f16", 0, 0, 1, 32),
    "f16 with sums in f16": ("f16", "f16", "f16", 0, 0, 0, 32),
    "bf16": ("f16", "bf16", "bf16", 1, 1, 1, 32),
    "tf32": ("tf32", "tf32", "tf32", 2, 2, 1, 32),
    "e4m3": ("f8f6f4", "e4m3", "e4m3", 0, 0, 1, 32),
    "e5m2 and e4m3": ("f8f6f4", "e5m2", "e4m3", 1, 0, 1, 32),
    "s8 and u8": ("i8", "s8", "u8", 1, 0, 2, 32),
}


@pytest.mark.parametrize("name", KINDS)
def test_products_of_each_type(name: str) -> None:
    """128 bytes of K."""
    family, kind_a, kind_b, number_a, number_b, number_d, step = KINDS[name]
    deep = 128 // {"f16": 2, "bf16": 2, "tf32": 4}.get(kind_a, 1)
    (raw_a, a), (raw_b, b) = (
        rounded(RNG.standard_normal((rows, deep)) if kind_b != "u8" else RNG.uniform(0, 6, (rows, deep)), kind)
        for rows, kind in ((128, kind_a), (32, kind_b))
    )
    text = kernel(product(family, instruction(128, 32, number_a, number_b, number_d), 4, step), read=32)
    out, hazards = run(text, np.concatenate([k_major(raw_a), k_major(raw_b)]), read=32)
    assert hazards == []
    want = a @ b.T
    if number_d == 2:
        np.testing.assert_array_equal(out[0].view(np.int32), want)
    else:
        half = number_d == 0
        np.testing.assert_allclose(floats(out, 128, 32, half=half), want, atol=(4e-3 if half else 4e-6) * deep)


def test_a_comes_from_tensor_memory() -> None:
    """A of 16 columns of K, two elements to a cell."""
    a, b = (RNG.standard_normal((rows, 64)).astype(np.float16) for rows in (128, 64))
    cells_of_a = a.view(np.uint32)  # [128, 32]
    image = np.concatenate([cells_of_a.reshape(-1).view(np.uint8), k_major(b)])
    body = "add.u32 %r21, %r20, %r6; mul.lo.u32 %r23, %r0, 128; add.u32 %r23, %r23, %r1;\n"
    for k in range(32):
        body += f"ld.shared.u32 %r{40 + k}, [%r23+{4 * k}];\n"
    names = ", ".join(f"%r{40 + k}" for k in range(32))
    body += f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r21+64], {{{names}}};\ntcgen05.wait::st.sync.aligned;\n"
    body += "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"
    body += "".join(f"add.u32 %r{34 + k}, %r20, {64 + 8 * k};\n" for k in range(4))
    for k in range(4):
        body += descriptor(16384 + 32 * k).format(11) + f"mov.u32 %r33, {k}; setp.ne.u32 %p5, %r33, 0;\n"
        body += f"mov.u32 %r32, {instruction(128, 64)};\n"
        body += f"@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r20], [%r{34 + k}], %rd11, %r32, %p5;\n"
    out, hazards = run(kernel(body + COMMIT + WAIT), image)
    assert hazards == []
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(floats(out, 128, 64), want, atol=2e-4)


def test_b_is_transposed_and_lanes_are_left_out() -> None:
    """B has N contiguous: one core matrix of 64 columns by 8 k, and 128 bytes to the next; lanes 0 to 7 and 40 stay."""
    a, b = RNG.standard_normal((128, 64)).astype(np.float16), RNG.standard_normal((64, 64)).astype(np.float16)
    image = np.concatenate([k_major(a), k_major(b)])  # rows of B are along K
    body = "add.u32 %r21, %r20, %r6;\n" + "mov.u32 %r39, 0x40000000;\n"
    zeros = ", ".join(["%r39"] * 64)
    body += f"tcgen05.st.sync.aligned.32x32b.x64.b32 [%r21], {{{zeros}}};\ntcgen05.wait::st.sync.aligned;\n"
    body += "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"
    body += "mov.u32 %r36, 255; mov.u32 %r37, 256; mov.u32 %r38, 0; setp.ne.u32 %p5, %r38, 1;\n"
    for k in range(4):
        body += descriptor(32 * k).format(10) + descriptor(16384 + 2048 * k).format(11)
        body += f"mov.u32 %r32, {instruction(128, 64, more=1 << 16)};\n"
        lanes = "{%r36, %r37, %r38, %r38}, %p5"
        body += f"@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd10, %rd11, %r32, {lanes};\n"
    out, hazards = run(kernel(body + COMMIT + WAIT), image)
    assert hazards == []
    want = a.astype(np.float64) @ b.astype(np.float64) + 2
    left_out = [*range(8), 40]
    want[left_out] = 2
    np.testing.assert_allclose(floats(out, 128, 64), want, atol=2e-4)


# ---- elements of four and six bits, and scales -----------------------------------------------------------------------

SMALL = {"e2m3": (3, 6), "e3m2": (2, 6), "e2m1": (1, 4)}
"""Mantissa bits and bits of each type."""


def small(kind: str, rows: int, deep: int) -> tuple[Any, Any]:
    """Codes of elements, and their values."""
    narrow, bits = SMALL[kind]
    codes = RNG.integers(0, 1 << bits, (rows, deep))
    exponent, mantissa = codes >> narrow & (1 << bits - 1 - narrow) - 1, codes & (1 << narrow) - 1
    bias = (1 << bits - 2 - narrow) - 1
    size = np.where(
        exponent == 0,
        mantissa * 2.0 ** (1 - bias - narrow),
        (1 + mantissa / (1 << narrow)) * 2.0 ** (exponent - bias),
    )
    return codes, np.where(codes >> bits - 1, -size, size)


def packed(codes: Any, bits: int, each: int) -> Any:
    """Bytes of codes: ``each`` in 16 bytes, without gaps between them."""
    rows, deep = codes.shape
    flags = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(rows, deep // each, each * bits)
    chunks = np.zeros((rows, deep // each, 128), np.uint8)
    chunks[..., : each * bits] = flags
    return np.packbits(chunks, axis=-1, bitorder="little").reshape(rows, -1)


@pytest.mark.parametrize(("kind_a", "number_a"), [("e2m3", 3), ("e3m2", 4), ("e2m1", 5)])
def test_products_of_small_floats(kind_a: str, number_a: int) -> None:
    """128 elements along K, 16 of them in 16 bytes; B is e4m3."""
    codes, a = small(kind_a, 128, 128)
    raw_b, b = rounded(RNG.standard_normal((32, 128)), "e4m3")
    image = np.concatenate([k_major(packed(codes, SMALL[kind_a][1], 16)), k_major(raw_b)])
    text = kernel(product("f8f6f4", instruction(128, 32, number_a, 0), 4, 32), read=32)
    out, hazards = run(text, image, read=32)
    assert hazards == []
    np.testing.assert_allclose(floats(out, 128, 32), a @ b.T, atol=1e-3)


def test_the_sum_of_the_largest_products() -> None:
    """32 equal products of the largest significands of e4m3: in units of the last digit they exceed 31 bits."""
    codes = np.full((160, 128), 0x57, np.uint8)  # 15
    image = np.concatenate([k_major(codes[:128]), k_major(codes[128:])])
    out, hazards = run(kernel(product("f8f6f4", instruction(128, 32, 0, 0), 4, 32), read=32), image, read=32)
    assert hazards == []
    assert (floats(out, 128, 32) == 128 * 225).all()


SCALED = {
    "mxf8f6f4": ("mxf8f6f4.block_scale.scale_vec::1X", 32, 1, 1),
    "mxf4": ("mxf4.block_scale.scale_vec::2X", 64, 2, 1),
    "mxf4nvf4": ("mxf4nvf4.block_scale.scale_vec::4X", 64, 4, 0),
}
"""Modifiers, K, scales of a product along K, and the number of the format of scales."""


@pytest.mark.parametrize("family", SCALED)
def test_products_with_scales(family: str) -> None:
    """128 bytes along K; the scales of 32 rows lie in a column, a byte for each block along K."""
    kind, deep, many, format_ = SCALED[family]
    total = 128 if family == "mxf8f6f4" else 256
    if family == "mxf8f6f4":
        (raw_a, a), (raw_b, b) = (rounded(np.zeros((rows, 128)), "e4m3") for rows in (128, 32))
    else:
        (codes_a, a), (codes_b, b) = (small("e2m1", rows, total) for rows in (128, 32))
        raw_a, raw_b = packed(codes_a, 4, 32), packed(codes_b, 4, 32)
    blocks = total // deep * many
    if format_:
        low = 120 if family == "mxf8f6f4" else 80  # far below the least exponent of an element
        exponents = [RNG.integers(low, low + 14, (rows, blocks)) for rows in (128, 32)]
        scales, values = exponents, [2.0 ** (each - 127.0) for each in exponents]
    else:
        scales = [RNG.integers(0x30, 0x48, (rows, blocks)) for rows in (128, 32)]
        values = [(1 + (each & 7) / 8) * 2.0 ** ((each >> 3) - 7) for each in scales]
    image = np.zeros(65536, np.uint8)
    image[:16384], image[16384 : 16384 + 4096] = k_major(raw_a), k_major(raw_b)
    body, steps = "mov.u32 %r33, 0;\n", total // deep
    for operand, bytes_ in enumerate(scales):
        for step in range(steps):  # a tile of scales for each product: 32 lanes of 16 bytes
            words = np.zeros((32, 4, 4), np.uint8)
            for row in range(len(bytes_)):
                words[row % 32, row // 32, :many] = bytes_[row, many * step : many * step + many]
            place = 32768 + 512 * (4 * operand + step)
            image[place : place + 512] = words.reshape(-1)
            body += f"add.u32 %r30, %r1, {place}; shr.u32 %r30, %r30, 4; or.b32 %r30, %r30, {8 << 16};\n"
            body += f"mov.u32 %r31, {8 | 1 << 14}; mov.b64 %rd12, {{%r30, %r31}};\n"
            body += f"add.u32 %r{40 + 4 * operand + step}, %r20, {64 + 4 * (4 * operand + step)};\n"
            copy = "@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4"
            body += f"{copy} [%r{40 + 4 * operand + step}], %rd12;\n"
    types = 0 if family == "mxf8f6f4" else 1
    for step in range(steps):
        body += descriptor(32 * step).format(10) + descriptor(16384 + 32 * step).format(11)
        body += f"mov.u32 %r{50 + step}, {instruction(128, 32, types, types, 0, more=format_ << 23)};\n"
        body += f"mov.u32 %r33, {step}; setp.ne.u32 %p5, %r33, 0;\n"
        operands = f"[%r20], %rd10, %rd11, %r{50 + step}, [%r{40 + step}], [%r{44 + step}], %p5"
        body += f"@%p1 tcgen05.mma.cta_group::1.kind::{kind} {operands};\n"
    out, hazards = run(kernel(body + COMMIT + WAIT, read=32), image, read=32)
    assert hazards == []
    a, b = (each * np.repeat(scale, total // blocks, axis=1) for each, scale in zip((a, b), values, strict=True))
    np.testing.assert_allclose(floats(out, 128, 32), a @ b.T, rtol=1e-5, atol=1e-6 * np.abs(a @ b.T).max())
