"""wgmma: every layout and type against exact products, and the rules of asynchronous execution."""

import sys

import ml_dtypes
import numpy as np
import pytest

import warpsan
from mma_fragments import SUBNORMALS
from warpsan.analysis.fusion import registers_read, registers_written
from warpsan.ptx.parser import parse
from wgmma_kernels import (
    ATOM,
    accumulator_fragment,
    descriptor,
    image,
    kernel,
    lay_out,
    packed_fragment,
    registers,
    run,
)

RNG = np.random.default_rng(11)
DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}


@pytest.fixture(autouse=True)
def _same_numbers(monkeypatch):
    """The same random numbers in every test, independent of earlier tests."""
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(11))


def random(kind, rows):
    """A matrix with rows of 32 bytes and values representable in the type."""
    dtype = DTYPES[kind]
    shape = rows, 32 // dtype.itemsize
    if kind in ("s8", "u8"):
        return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    values = RNG.normal(size=shape).astype(dtype)
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if kind == "tf32" else values


def instruction(n, kinds, d, a, scale="%yes", immediates="1, 1, 0, 0"):
    depth = 32 // DTYPES[kinds[1]].itemsize
    tail = f", {immediates}" if immediates else ""
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{depth}.{'.'.join(kinds)} {d}, {a}, %b, {scale}{tail};\n"


PROXY = "fence.proxy.async;\n"
FENCE, COMMIT, WAIT = (
    f"wgmma.{what};\n" for what in ("fence.sync.aligned", "commit_group.sync.aligned", "wait_group.sync.aligned 0")
)


def product(
    n,
    kind_a,
    kind_b,
    result="f32",
    *,
    swizzle="128B",
    k_major=(True, True),
    mode="late",
    in_registers=False,
    numerics="hardware",
):
    """One product with an accumulator: (got, exact, hazards)."""
    a, b = random(kind_a, 64), random(kind_b, n)
    if result == "s32":
        c = RNG.integers(-1000, 1000, (64, n)).astype(np.int32)
    else:
        c = RNG.normal(size=(64, n)).astype(np.float16 if result == "f16" else np.float32)
    form = kind_a, kind_b, result
    out, hazards = run_product(form, a, b, c, swizzle, k_major, in_registers, async_mode=mode, numerics=numerics)
    wide = np.int64 if result == "s32" else np.float64
    exact = a.astype(wide) @ b.astype(wide).T + c.astype(wide)
    if result == "f16":
        return out.view(np.float16), packed_fragment(exact.astype(np.float16)).view(np.float16), hazards
    want = accumulator_fragment(exact)
    return out.view(np.int32 if result == "s32" else np.float32), want, hazards


def run_product(form, a, b, c, swizzle="128B", k_major=(True, True), in_registers=False, **options):
    """One product of A [64, k] and B [n, k] with an accumulator: the words of D, and hazards."""
    (kind_a, kind_b, result), n = form, len(b)
    at_a, desc_a = lay_out(a, 1024, swizzle, k_major[0])
    start_b = (int(at_a.max()) // 1024 + 1) * 1024
    at_b, desc_b = lay_out(b, start_b, swizzle, k_major[1])
    placed = [(b, at_b)] if in_registers else [(a, at_a), (b, at_b)]
    memory = image((int(at_b.max()) // 1024 + 1) * 1024, *placed)
    words = packed_fragment(c) if result == "f16" else accumulator_fragment(c).view(np.uint32)
    count = words.shape[1]
    immediates = ["1", "1"] if result != "s32" else []
    if kind_a in ("f16", "bf16"):
        immediates += [] if in_registers else [str(int(not k_major[0]))]
        immediates += [str(int(not k_major[1]))]
    fragment = packed_fragment(a)
    inputs = np.hstack([words, fragment])
    body = "".join(f"mov.b32 %d{i}, %w{i};\n" for i in range(count)) + FENCE
    operand = registers("w", count, 4) if in_registers else "%a"
    body += instruction(
        n, (result, kind_a, kind_b), registers("d", 0, count), operand, immediates=", ".join(immediates)
    )
    report, out = run(body + COMMIT + WAIT, memory, inputs, count, desc_a, desc_b, **options)
    return out, report.hazards


@pytest.mark.parametrize("swizzle", list(ATOM))
@pytest.mark.parametrize("k_major", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("n", [8, 72, 128])
def test_layouts(n, swizzle, k_major):
    got, want, hazards = product(n, "f16", "f16", swizzle=swizzle, k_major=k_major)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert hazards == []


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(
    ("kind_a", "kind_b", "result", "n"),
    [
        ("f16", "f16", "f32", 256),
        ("f16", "f16", "f16", 24),
        ("bf16", "bf16", "f32", 64),
        ("tf32", "tf32", "f32", 40),
        ("e4m3", "e4m3", "f32", 16),
        ("e4m3", "e5m2", "f32", 64),
        ("e5m2", "e4m3", "f16", 8),
        ("e5m2", "e5m2", "f32", 104),
        ("s8", "s8", "s32", 24),
        ("u8", "s8", "s32", 48),
        ("s8", "u8", "s32", 8),
        ("u8", "u8", "s32", 256),
    ],
)
def test_types(kind_a, kind_b, result, n, in_registers, mode):
    got, want, hazards = product(n, kind_a, kind_b, result, mode=mode, in_registers=in_registers, numerics="float32")
    if result == "s32":
        np.testing.assert_array_equal(got, want)
    elif result == "f16":  # rounded once, or next to a halfway point
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2.0**-10, atol=2.0**-10)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    assert hazards == []


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.sample
@pytest.mark.parametrize("numerics", ["hardware", "float32"])
@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(
    ("kind_a", "kind_b", "result"),
    [
        ("f16", "f16", "f32"),
        ("f16", "f16", "f16"),
        ("bf16", "bf16", "f32"),
        ("tf32", "tf32", "f32"),
        ("e4m3", "e4m3", "f32"),
        ("e5m2", "e4m3", "f16"),
        ("u8", "s8", "s32"),
    ],
)
def test_sums_are_those_that_are_recorded(kind_a, kind_b, result, in_registers, numerics):
    for mode in ("late", "early"):
        product(16, kind_a, kind_b, result, in_registers=in_registers, numerics=numerics, mode=mode)


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize(("kind_a", "kind_b", "a", "b", "result", "c", "bits"), SUBNORMALS)
def test_an_8_bit_subnormal_has_the_least_exponent_of_its_own_type(kind_a, kind_b, a, b, result, c, bits, in_registers):
    left, right = np.zeros((64, 32), DTYPES[kind_a]), np.zeros((8, 32), DTYPES[kind_b])
    left[:, 0], right[:, 0] = a, b
    added = np.full((64, 8), c, np.float16 if result == "f16" else np.float32)
    out, hazards = run_product((kind_a, kind_b, result), left, right, added, in_registers=in_registers)
    assert (out.view(np.uint16 if result == "f16" else np.uint32) == bits).all()
    assert hazards == []


def test_signs_and_scale_d():
    """imm-scale -1 negates a factor; without scale-d the accumulator is ignored, even poison."""
    a, b = random("f16", 64), random("f16", 16)
    (at_a, desc_a), (at_b, desc_b) = lay_out(a, 0, "32B", True), lay_out(b, 16384, "32B", True)
    memory = image(32768, (a, at_a), (b, at_b))
    exact = a.astype(float) @ b.astype(float).T
    for signs, sign in (("1, 1", 1), ("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)):
        body = FENCE + instruction(
            16, ("f32", "f16", "f16"), registers("d", 0, 8), "%a", "%no", immediates=f"{signs}, 0, 0"
        )
        report, out = run(body + COMMIT + WAIT, memory, np.zeros((128, 1), np.uint32), 8, desc_a, desc_b)
        np.testing.assert_allclose(out.view(np.float32), accumulator_fragment(sign * exact), rtol=1e-5, atol=1e-5)
        assert report.hazards == []


def test_integer_sums_wrap_or_saturate():
    a, b = np.full((64, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    (at_a, desc_a), (at_b, desc_b) = lay_out(a, 0, "none", True), lay_out(b, 32768, "none", True)
    memory = image(36864, (a, at_a), (b, at_b))
    start = np.full((128, 4), 2**31 - 10, np.int32)
    total = 2**31 - 10 + 32 * 127 * 127
    for kinds, want in ((("s32", "s8", "s8"), total - 2**32), (("satfinite", "s32", "s8", "s8"), 2**31 - 1)):
        body = "".join(f"mov.b32 %d{i}, %w{i};\n" for i in range(4)) + FENCE
        body += f"wgmma.mma_async.sync.aligned.m64n8k32.{'.'.join(kinds)} {registers('d', 0, 4)}, %a, %b, %yes;\n"
        _, out = run(body + COMMIT + WAIT, memory, start, 4, desc_a, desc_b)
        assert (out.view(np.int32) == want).all()


# ---- asynchrony -----------------------------------------------------------------------------------------------------

A, B = random("f16", 64), random("f16", 16)
AT_A, DESC_A = lay_out(A, 0, "64B", True)
AT_B, DESC_B = lay_out(B, 16384, "64B", True)
MEMORY = image(32768, (A, AT_A), (B, AT_B))
EXACT = accumulator_fragment(A.astype(float) @ B.astype(float).T)
FRAGMENT = packed_fragment(A)
FIRST, SECOND = registers("d", 0, 8), registers("d", 8, 8)
ZERO = "".join(f"mov.b32 %d{i}, 0;\n" for i in range(8))
"""Instructions of threads that store accumulators without a product."""
KINDS = "f32", "f16", "f16"


def twice(number):
    return "".join(f"add.f32 %d{i}, %d{i}, %d{i};\n" for i in range(8 * number, 8 * number + 8))


def chained(**change):
    """Two groups: a chain of two products on a tile, then one from registers on another, each used after its wait."""
    parts = {
        "fence": FENCE,
        "first": instruction(16, KINDS, FIRST, "%a", "%no") + instruction(16, KINDS, FIRST, "%a"),
        "commit": COMMIT,
        "second": instruction(16, KINDS, SECOND, registers("w", 0, 4), "%no", "1, 1, 0"),
        "commit again": COMMIT,
        "wait for one": "wgmma.wait_group.sync.aligned 1;\n",
        "use first": twice(0),
        "wait": WAIT,
        "use second": twice(1),
    }
    assert change.keys() <= parts.keys()
    return "".join((parts | change).values())


def run_chained(body, **options):
    return run(body, MEMORY, FRAGMENT, 16, DESC_A, DESC_B, **options)


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
def test_two_groups_in_flight(schedule, mode):
    report, out = run_chained(chained(), schedule=schedule, async_mode=mode)
    np.testing.assert_allclose(out[:, :8].view(np.float32), 4 * EXACT, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(out[:, 8:].view(np.float32), 2 * EXACT, rtol=1e-5, atol=1e-4)
    assert report.hazards == []


MUTATIONS = {
    "missing fence": {"fence": ""},
    "missing fence after a write": {"fence": FENCE + "mov.b32 %d0, 0;\n"},
    "missing fence after a write to A": {
        "second": "mov.b32 %w1, 0;\n" + instruction(16, KINDS, SECOND, registers("w", 0, 4), "%no", "1, 1, 0")
    },
    "missing commit": {"commit": ""},
    "missing last commit": {"commit again": ""},
    "missing first wait": {"wait for one": ""},
    "missing last wait": {"wait": ""},
    "wait for one group less": {"wait": "wgmma.wait_group.sync.aligned 1;\n"},
    "accumulator overwritten": {"wait for one": "mov.b32 %d3, 0;\nwgmma.wait_group.sync.aligned 1;\n"},
    "A registers overwritten": {"wait for one": "mov.b32 %w3, 0;\nwgmma.wait_group.sync.aligned 1;\n"},
    "overlapping tiles": {
        "fence": "".join(f"mov.b32 %d{i}, 0;\n" for i in range(12, 16)) + FENCE,
        "second": instruction(16, KINDS, registers("d", 4, 8), registers("w", 0, 4), "%no", "1, 1, 0"),
    },
}


@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("schedule", ["lockstep", "reverse"])
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_reported(name, schedule, mode):
    report, _ = run_chained(chained(**MUTATIONS[name]), schedule=schedule, async_mode=mode)
    assert {hazard.kind for hazard in report.hazards} == {"wgmma"}


def test_an_accumulator_is_poison_until_the_wait():
    zeros = "".join(f"mov.b32 %d{i}, 0;\n" for i in range(16))
    body = zeros + chained(**{"wait for one": "", "wait": "", "use first": "", "use second": ""})
    report, out = run_chained(body)
    assert np.isnan(out.view(np.float32)).all()
    assert "in flight" in report.hazards[0].message
    assert "wgmma.wait_group" in report.hazards[0].message


def test_reading_fragments_of_a_in_flight_is_harmless():
    report, _ = run_chained(chained(**{"wait for one": "mov.b32 %x, %w3;\nwgmma.wait_group.sync.aligned 1;\n"}))
    assert report.hazards == []


@pytest.mark.parametrize("schedule", ["lockstep", "random"])
@pytest.mark.parametrize("matrix", [AT_A, AT_B])
def test_overwriting_operands_in_shared_memory_too_early(matrix, schedule):
    """A thread overwrites a word of the matrix, before the last wait or after it and a barrier."""
    overwrite = f"setp.eq.u32 %p, %t, 96; @%p st.shared.b32 [{int(matrix[0, 0])}], %t;\n"
    report, _ = run_chained(chained(**{"wait for one": overwrite + WAIT}), schedule=schedule)
    assert {hazard.kind for hazard in report.hazards} == {"async"}
    report, _ = run_chained(chained(**{"use second": "bar.sync 0;\n" + overwrite + twice(1)}), schedule=schedule)
    assert report.hazards == []


@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse"])
@pytest.mark.parametrize("waits", [True, False])
def test_one_warp_that_waited_may_release_for_all(waits, schedule):
    """A fifth warp overwrites B after the first warp's arrival: the product and its end belong to the warpgroup."""
    release = "setp.lt.u32 %p, %t, 32; @%p bar.arrive 1, 64;\n"
    body = "setp.ge.u32 %p, %t, 128; @%p bra PRODUCER;\n" + FENCE + instruction(16, KINDS, FIRST, "%a", "%no") + COMMIT
    body += WAIT + release if waits else release + WAIT
    body += f"bra DONE;\nPRODUCER: bar.sync 1, 64;\nst.shared.b32 [{int(AT_B[9, 0])}], 305419896;\n{ZERO}DONE:\n"
    inputs = np.zeros((160, 1), np.uint32)
    report, out = run(body, MEMORY, inputs, 8, DESC_A, DESC_B, threads=160, schedule=schedule)
    if waits:
        np.testing.assert_allclose(out[:128].view(np.float32), EXACT, rtol=1e-5, atol=1e-4)
        assert report.hazards == []
    else:
        assert {hazard.kind for hazard in report.hazards} <= {"async", "race"}
        assert report.hazards


@pytest.mark.parametrize("thread", [0, 96])
def test_operands_written_without_a_barrier_are_a_race(thread):
    """One warp writes a row of B that all four warps read."""
    store = f"setp.eq.u32 %p, %t, {thread}; @%p st.shared.b32 [{int(AT_B[9, 0])}], 305419896;\n"
    for barrier, kinds in (("", {"race"}), ("bar.sync 0;\n", set())):
        report, _ = run_chained(store + PROXY + barrier + chained())
        assert {hazard.kind for hazard in report.hazards} == kinds


def test_blocks_with_different_trip_counts():
    """Block i accumulates i + 1 products, each in its own group; one final wait."""
    body = "mov.u32 %x, %ctaid.x;\n" + FENCE + instruction(16, KINDS, FIRST, "%a", "%no") + COMMIT
    body += "LOOP: setp.eq.u32 %p, %x, 0; @%p bra OUT;\n" + instruction(16, KINDS, FIRST, "%a") + COMMIT
    body += "wgmma.wait_group.sync.aligned 1;\nsub.u32 %x, %x, 1; bra LOOP;\nOUT:\n" + WAIT
    body += "mov.u32 %x, %ctaid.x; mul.wide.u32 %wide, %x, 4096; add.u64 %out, %out, %wide;\n"
    out = np.zeros((4, 128, 8), np.float32)
    ptx = kernel(body, threads=128, words=1, smem=len(MEMORY), outputs=8)
    inputs = np.zeros((128, 1), np.uint32)
    for schedule in ("lockstep", "random"):
        report = warpsan.launch(ptx, "k", 4, 128, [MEMORY, inputs, out, DESC_A, DESC_B], schedule=schedule)
        for block in range(4):
            np.testing.assert_allclose(out[block], (block + 1) * EXACT, rtol=1e-5, atol=1e-4)
        assert report.hazards == []


@pytest.mark.parametrize("schedule", ["lockstep", "reverse", "random"])
def test_two_warpgroups_beside_one_that_does_something_else(schedule):
    """Blocks of three warpgroups: the first exits, the others multiply different matrices A, in one block twice."""
    other = random("f16", 64)
    at_other, desc_other = lay_out(other, 32768, "64B", True)
    memory = image(65536, (A, AT_A), (B, AT_B), (other, at_other))
    body = f"{ZERO}setp.lt.u32 %p, %t, 128; @%p bra OUT;\nsetp.ge.u32 %p, %t, 256; "
    body += f"mov.b64 %wide, {desc_other}; selp.b64 %a, %wide, %a, %p;\n"
    body += FENCE + instruction(16, KINDS, FIRST, "%a", "%no")
    body += (
        f"mov.u32 %x, %ctaid.x; setp.eq.u32 %p, %x, 1; @%p {instruction(16, KINDS, FIRST, '%a')}{COMMIT}{WAIT}OUT:\n"
    )
    body += f"mov.u32 %x, %ctaid.x; mul.wide.u32 %wide, %x, {384 * 32}; add.u64 %out, %out, %wide;\n"
    out = np.zeros((3, 3, 128, 8), np.float32)
    ptx = kernel(body, threads=384, words=1, smem=len(memory), outputs=8)
    arguments = [memory, np.zeros((384, 1), np.uint32), out, DESC_A, DESC_B]
    report = warpsan.launch(ptx, "k", 3, 384, arguments, schedule=schedule)
    exact = [EXACT, accumulator_fragment(other.astype(float) @ B.astype(float).T)]
    for block in range(3):
        for group in range(2):
            want = exact[group] * (2 if block == 1 else 1)
            np.testing.assert_allclose(out[block, 1 + group], want, rtol=1e-5, atol=1e-4)
    assert report.hazards == []


def test_results_that_are_not_read_leave_other_registers_alone():
    """The second tile is dead after its issue; computations before the wait must not share its registers."""
    extra = "".join(f"add.u32 %d{i}, %t, {i};\n" for i in range(8, 16))
    scratch = registers("v", 0, 8)
    body = f".reg .b32 %v<8>;\n{FENCE}" + instruction(16, KINDS, scratch, "%a", "%no") + COMMIT + extra + WAIT
    body += "".join(f"mov.b32 %d{i}, 0;\n" for i in range(8))
    report, out = run_chained(body)
    assert (out[:, 8:] == np.arange(128)[:, None] + np.arange(8, 16)).all()
    assert report.hazards == []


def test_a_missing_proxy_fence_is_reported():
    """The barrier orders the writes of warp 3, which stay invisible to wgmma's proxy."""
    store = f"setp.eq.u32 %p, %t, 96; @%p st.shared.b32 [{int(AT_B[9, 0])}], 305419896;\n"
    report, _ = run_chained(store + "bar.sync 0;\n" + chained())
    assert {hazard.kind for hazard in report.hazards} == {"proxy"}


def test_an_accumulator_is_read_and_written():
    entry = parse(kernel(chained(), threads=128, words=4, smem=1024, outputs=16)).entries["k"]
    first, *_ = (each for each in entry.instructions if each.mods[:1] == ("mma_async",))
    names = {f"%d{i}" for i in range(8)}
    assert names <= set(registers_read(first))
    assert names == set(registers_written(first))


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_an_incomplete_warpgroup_is_a_deadlock():
    body = "setp.ge.u32 %p, %t, 96; @%p bra OUT;\n" + chained() + "OUT:\n"
    with pytest.raises(warpsan.Deadlock, match=r"96 of that of thread \(0, 0, 0\)|needs all 128 threads"):
        run_chained(body)


def test_threads_that_disagree_are_reported():
    report, _ = run_chained("cvt.u64.u32 %wide, %t; add.u64 %b, %b, %wide;\n" + chained())
    assert "wgmma" in {hazard.kind for hazard in report.hazards}
    assert any("descriptor of B is not the same" in hazard.message for hazard in report.hazards)


def test_operands_outside_shared_memory_are_reported():
    report, _ = run(chained(), MEMORY, FRAGMENT, 16, DESC_A, descriptor(len(MEMORY) - 64, 0, 512, "64B"))
    assert report.hazards[0].kind == "out-of-bounds"
    with pytest.raises(warpsan.IllegalAccess, match="out-of-bounds"):
        run(chained(), MEMORY, FRAGMENT, 16, DESC_A, descriptor(len(MEMORY) - 64, 0, 512, "64B"), checks=())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"wgmma.mma_async.sp.sync.aligned.m64n16k32.f32.f16.f16 {FIRST}, %a, %b, %x, 0, %yes, 1, 1, 0, 0;", "shape"),
        (f"wgmma.mma_async.sync.aligned.m64n16k256.s32.b1.b1.and.popc {FIRST}, %a, %b, %yes;", "shape"),
        (f"wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {FIRST}, %a, %b, %yes, 1, 1, 0, 0;", "no such shape"),
        (f"wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8 {FIRST}, %a, %b, %yes;", "no such shape"),
        (f"wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.bf16 {FIRST}, %a, %b, %yes, 1, 1, 0, 0;", "operand types"),
        (f"wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {FIRST}, %a, %b, %yes, 2, 1, 0, 0;", "imm-scale"),
        (f"wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 {FIRST}, %a, %b, %yes, 1, 1, 0, 0;", "6 operands"),
        (f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {FIRST}, %a, %b, %yes, 1, 1, 0, 0;", "4 32-bit"),
        ("wgmma.wait_group.sync.aligned 8;", "0 to 7"),
    ],
)
def test_what_is_not_modelled_is_refused(text, why):
    with pytest.raises(warpsan.UnsupportedInstruction, match=why):
        run_chained(text)


def test_a_base_offset_is_refused():
    with pytest.raises(warpsan.UnsupportedInstruction, match="base offset"):
        run(chained(), MEMORY, FRAGMENT, 16, DESC_A | 1 << 49, DESC_B)


def test_flops_are_counted():
    report, _ = run_chained(chained(), counters=True)
    assert report.counters.tensor_flops == 3 * 2 * 64 * 16 * 16
