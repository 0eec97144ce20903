"""Atomics against a serial model: threads read, update and write one after the other, in some order."""

import random
import struct

import ml_dtypes
import numpy as np
import pytest

import warpsan

THREADS = 96


def launch(operation, type_name, slots, memory, operands, *, space="global", opcode="atom"):
    """Apply the operation to slot ``slots[t]`` of the memory for each thread t; returns the final memory and the
    results.
    """
    size = memory.dtype.itemsize if memory.ndim == 1 else 4
    bits = 8 * size
    names = [f"%o{k}" for k in range(len(operands))]

    def at(parameter, index, width):
        """Compute the address of an element of an argument in %addr."""
        return f"ld.param.u64 %addr, [{parameter}]; mul.wide.u32 %wide, {index}, {width}; add.u64 %addr, %addr, %wide;"

    where, address = {"global": (".global", "%m"), "shared": (".shared", "%s"), "generic": ("", "%g")}[space]
    lines = [
        ".reg .b64 %m, %g, %addr, %wide; .reg .b32 %t, %slot, %s;",
        *(f".reg .b{bits} {name};" for name in (*names, "%old", "%word")),
        f".shared .align 16 .b8 tile[{memory.nbytes}];",
        "mov.u32 %t, %tid.x;",
        at("slots", "%t", 4) + "ld.global.u32 %slot, [%addr];",
        at("memory", "%slot", size) + "mov.u64 %m, %addr;",
        f"mov.u32 %s, tile; mad.lo.u32 %s, %slot, {size}, %s; cvt.u64.u32 %g, %s; cvta.shared.u64 %g, %g;",
        *(at(f"operand{k}", "%t", size) + f"ld.global.b{bits} {name}, [%addr];" for k, name in enumerate(names)),
    ]
    if space != "global":  # every thread copies its slot in; threads of one slot copy the same value
        lines.append(f"ld.global.b{bits} %word, [%m]; st.shared.b{bits} [%s], %word; bar.sync 0;")
    result = "%old, " if opcode == "atom" else ""
    lines.append(f"{opcode}{where}.{operation}.{type_name} {result}[{address}], {', '.join(names)};")
    if space != "global":
        lines.append(f"bar.sync 0; ld.shared.b{bits} %word, [%s]; st.global.b{bits} [%m], %word;")
    if opcode == "atom":
        lines.append(at("out", "%t", size) + f"st.global.b{bits} [%addr], %old;")
    params = ["memory", "slots", "out", *(f"operand{k}" for k in range(len(operands)))]
    parameters = ", ".join(f".param .u64 {name}" for name in params)
    text = "\n".join([*lines, "ret;"])
    ptx = f".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry k({parameters})\n{{\n{text}\n}}\n"
    after, out = memory.copy(), np.zeros((len(slots), *memory.shape[1:]), memory.dtype)
    arguments = [after, np.array(slots, np.uint32), out, *operands]
    report = warpsan.launch(ptx, "k", 1, len(slots), [a.reshape(-1).view(np.uint8) for a in arguments])
    assert report.hazards == []
    return after, out


def serially(function, slots, memory, operands):
    """Final memory, and results of the lanes, in serial order."""
    after, seen = memory.tolist(), []
    for t, slot in enumerate(slots):
        seen.append(after[slot])
        after[slot] = function(after[slot], *[int(column[t]) for column in operands])
    return after, seen


PATTERNS = {
    "apart": list(range(THREADS)),
    "scrambled": random.Random(1).sample(range(THREADS), THREADS),
    "one": [5] * THREADS,
    "crowded": [random.Random(t).randrange(7) for t in range(THREADS)],
}
INTEGER_OPERATIONS = {
    "add.u32": lambda old, b: (old + b) % 2**32,
    "add.s32": lambda old, b: (old + b + 2**31) % 2**32 - 2**31,
    "add.u64": lambda old, b: (old + b) % 2**64,
    **{f"min.{t}": min for t in ("u32", "s32", "u64", "s64")},
    **{f"max.{t}": max for t in ("u32", "s32", "u64", "s64")},
    "and.b32": lambda old, b: old & b,
    "or.b32": lambda old, b: old | b,
    "xor.b64": lambda old, b: old ^ b,
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
}


def numbers(type_name, count, seed):
    dtype = np.dtype(f"{'i' if type_name[0] == 's' else 'u'}{int(type_name[1:]) // 8}")
    draw = random.Random(seed)
    raw = [draw.choice([draw.getrandbits(64), draw.randrange(4)]) for _ in range(count)]
    return np.array(raw, np.uint64).astype(dtype)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", INTEGER_OPERATIONS)
def test_integer_operations(name, pattern):
    operation, type_name = name.split(".")
    slots, memory = PATTERNS[pattern], numbers(type_name, THREADS, 1)
    operands = [numbers(type_name, THREADS, 2)]
    if operation in ("inc", "dec"):
        memory, operands = memory % np.uint32(5), [operands[0] % np.uint32(7)]
    expected, seen = serially(INTEGER_OPERATIONS[name], slots, memory, operands)
    after, out = launch(operation, type_name, slots, memory, operands)
    assert after.tolist() == expected
    assert out.tolist() == seen
    after, _ = launch(operation, type_name, slots, memory, operands, opcode="red")
    assert after.tolist() == expected


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap_and_exchange(bits, pattern):
    type_name, slots = f"b{bits}", PATTERNS[pattern]
    memory = numbers(type_name, THREADS, 3) % np.dtype(f"u{bits // 8}").type(3)
    expected, new = (numbers(type_name, THREADS, seed) % np.dtype(f"u{bits // 8}").type(3) for seed in (4, 5))
    after, out = launch("cas", type_name, slots, memory, [expected, new])
    swap = serially(lambda old, b, c: c if old == b else old, slots, memory, [expected, new])
    assert (after.tolist(), out.tolist()) == swap
    if bits > 16:
        after, out = launch("exch", type_name, slots, memory, [new])
        assert (after.tolist(), out.tolist()) == serially(lambda old, b: b, slots, memory, [new])


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_spaces(space):
    memory, operand = numbers("u32", THREADS, 6), numbers("u32", THREADS, 7)
    for slots in PATTERNS.values():
        expected, seen = serially(INTEGER_OPERATIONS["add.u32"], slots, memory, [operand])
        after, out = launch("add", "u32", slots, memory, [operand], space=space)
        assert (after.tolist(), out.tolist()) == (expected, seen)


FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@pytest.mark.parametrize("pattern", ["scrambled", "crowded"])
@pytest.mark.parametrize("type_name", FLOATS)
def test_float_addition_rounds_each_sum_once(type_name, pattern):
    dtype, slots = FLOATS[type_name], PATTERNS[pattern]
    draw = random.Random(8)
    memory, operand = (np.array([draw.gauss(0, 30) for _ in range(THREADS)]).astype(dtype) for _ in range(2))
    half = type_name in ("f16", "bf16")
    after, out = launch("add.noftz" if half else "add", type_name, slots, memory, [operand])
    expected, seen = memory.copy(), []
    for t, slot in enumerate(slots):
        seen.append(float(expected[slot]))
        expected[slot] = dtype(float(expected[slot]) + float(operand[t]))  # exact in float64 before the only rounding
    assert after.astype(float).tolist() == expected.astype(float).tolist()
    assert out.astype(float).tolist() == seen


@pytest.mark.parametrize("type_name", ["f16x2", "bf16x2"])
def test_packed_addition(type_name):
    dtype, slots = FLOATS[type_name[:-2]], PATTERNS["crowded"]
    memory = np.arange(2 * THREADS).reshape(-1, 2).astype(dtype)
    operand = (np.arange(2 * THREADS) % 5 - 2).reshape(-1, 2).astype(dtype)
    after, out = launch("add.noftz", type_name, slots, memory, [operand])
    expected = memory.astype(float)
    for t, slot in enumerate(slots):
        assert out[t].astype(float).tolist() == expected[slot].tolist()
        expected[slot] += operand[t].astype(float)
    assert after.astype(float).tolist() == expected.tolist()


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("type_name", "canonical"), [("f16", 0x7FFF), ("bf16", 0x7FFF), ("f32", 0x7FFFFFFF)])
def test_the_sum_with_a_nan_is_the_canonical_one(type_name, canonical, space):
    words = np.dtype(f"u{np.dtype(FLOATS[type_name]).itemsize}")
    memory = np.invert(np.zeros(1, words)).view(FLOATS[type_name])
    name = "add" if type_name == "f32" else "add.noftz"
    after, _ = launch(name, type_name, [0], memory, [np.ones(1, memory.dtype)], space=space)
    assert after.view(words).tolist() == [canonical]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_global_float_addition_flushes_subnormals_and_shared_does_not(space):
    tiny = struct.unpack("<f", struct.pack("<I", 5))[0]
    memory = np.array([tiny, 2.0**-126, -(2.0**-126), 0.0], np.float32)
    operand = np.array([tiny, -(2.0**-127), 1.5 * 2.0**-126, -0.0], np.float32)
    after, _ = launch("add", "f32", [0, 1, 2, 3], memory, [operand], space=space)
    exact = [2 * tiny, 2.0**-127, 2.0**-127, 0.0]
    assert after.tolist() == ([0.0, 2.0**-126, 0.0, 0.0] if space == "global" else exact)


def test_orders_and_scopes_are_accepted():
    memory, operand = numbers("u32", THREADS, 6), numbers("u32", THREADS, 7)
    slots = PATTERNS["apart"]
    for order in ("relaxed", "acquire", "release", "acq_rel"):
        for scope in ("cta", "cluster", "gpu", "sys"):
            after, _ = launch(f"{order}.{scope}.or", "b32", slots, memory, [operand])
            assert after.tolist() == (memory | operand).tolist()


def test_out_of_bounds_atomics_are_reported_and_left_out():
    ptx = """.version 8.0
        .target sm_89
        .address_size 64
        .visible .entry k(.param .u64 p) { .reg .b64 %p, %w; .reg .b32 %t, %old;
        ld.param.u64 %p, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %w, %t, 4; add.u64 %p, %p, %w;
        atom.global.add.u32 %old, [%p], 1; ret; }"""
    memory = np.zeros(30, np.uint32)
    report = warpsan.launch(ptx, "k", 1, 32, [memory])
    assert memory.tolist() == [1] * 30
    assert [hazard.kind for hazard in report.hazards] == ["out-of-bounds"]


VECTOR = """.version 8.1
    .target sm_90
    .address_size 64
    .visible .entry k(.param .u64 p, .param .u64 values, .param .u64 out) {{ .reg .b64 %p, %v, %o, %w; .reg .b32 %t;
    .reg .f32 %x<4>, %y<4>; .reg .b32 %h<4>, %i<4>; .reg .pred %q; ld.param.u64 %p, [p]; ld.param.u64 %v, [values];
    ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %w, %t, 16; add.u64 %v, %v, %w; add.u64 %o, %o, %w;
    and.b32 %t, %t, 3; mul.wide.u32 %w, %t, 16; add.u64 %p, %p, %w; {update} ret; }}"""
"""Threads with the same two lowest bits update the same 16 bytes."""


def updated(update, dtype, *, memory=64):
    """Memory, results, and values of 40 threads after a vector operation of each."""
    values = np.arange(160 * 4 // np.dtype(dtype).itemsize).astype(dtype) % dtype(13)
    arrays = np.zeros(memory, np.uint8), values, np.zeros(640, np.uint8)
    report = warpsan.launch(VECTOR.format(update=update), "k", 1, 40, list(arrays))
    return arrays[0].view(dtype), arrays[2].view(dtype), values, report


def test_each_element_of_a_vector_is_updated():
    each = "ld.global.v4.f32 {%x0, %x1, %x2, %x3}, [%v];"
    after, _, values, report = updated(f"{each} red.global.add.v4.f32 [%p], {{%x0, %x1, %x2, %x3}};", np.float32)
    assert report.hazards == []
    assert after.reshape(4, 4).tolist() == values.reshape(10, 4, 4).sum(axis=0).tolist()
    two = f"{each} atom.add.v2.f32 {{%y0, %y1}}, [%p+8], {{%x2, %x3}}; st.global.v2.f32 [%o+8], {{%y0, %y1}};"
    after, before, values, report = updated(two, np.float32)
    assert report.hazards == []
    sums = np.cumsum(values.reshape(10, 4, 4), axis=0)[..., 2:]
    assert after.reshape(4, 4)[:, 2:].tolist() == sums[-1].tolist()
    assert not after.reshape(4, 4)[:, :2].any()
    assert before.reshape(10, 4, 4)[1:, :, 2:].tolist() == sums[:-1].tolist()


def test_each_half_of_a_vector_of_pairs_is_updated():
    each = "ld.global.v4.b32 {%h0, %h1, %h2, %h3}, [%v];"
    update = f"{each} red.relaxed.gpu.global.max.noftz.v4.bf16x2 [%p], {{%h0, %h1, %h2, %h3}};"
    after, _, values, _ = updated(update, ml_dtypes.bfloat16)
    assert after.astype(float).reshape(4, 8).tolist() == values.astype(float).reshape(10, 4, 8).max(axis=0).tolist()


def test_a_vector_is_aligned_as_a_whole_and_lies_within_memory():
    update = "red.global.add.v2.f32 [%p+{at}], {{%x0, %x1}};"
    first = "mov.f32 %x0, 0f3F800000; mov.f32 %x1, %x0;"
    after, *_, report = updated(first + update.format(at=4), np.float32)
    assert {each.kind for each in report.hazards} == {"misaligned"}
    assert not after.any()
    after, *_, report = updated(first + update.format(at=8), np.float32, memory=56)
    assert {each.kind for each in report.hazards} == {"out-of-bounds"}
    assert after.tolist() == [0, 0, 10, 10] * 3 + [0, 0]


def test_a_vector_update_orders_and_races_as_an_atomic_operation():
    first = "mov.f32 %x0, 0f3F800000; mov.f32 %x1, %x0; setp.eq.u32 %q, %t, 0;"
    update = "red.global.add.v2.f32 [%p], {%x0, %x1};"
    *_, report = updated(f"{first} {update} st.global.f32 [%p+4], %x0;", np.float32)
    assert {each.kind for each in report.hazards} == {"race"}
    *_, report = updated(f"{first} {update} st.global.f32 [%o+8], %x0;", np.float32)
    assert report.hazards == []


@pytest.mark.parametrize(
    ("update", "why"),
    [
        ("red.shared.add.v2.f32 [%t], {%x0, %x1};", "of global memory"),
        ("red.global.add.v8.f32 [%p], {%x0, %x1, %x2, %x3, %x0, %x1, %x2, %x3};", "32 bytes"),
        ("red.global.add.v4.f32 [%p], {%x0, %x1};", "expected 4 values"),
        ("red.global.min.v2.f32 [%p], {%x0, %x1};", "expected one of"),
        ("red.global.add.v2.u32 [%p], {%h0, %h1};", "expected one of"),
    ],
)
def test_vectors_that_do_not_exist(update, why):
    with pytest.raises(warpsan.UnsupportedInstruction, match=why):
        updated(update, np.float32)


@pytest.mark.parametrize(
    ("operation", "type_name", "opcode", "count"),
    [
        ("add", "f16", "atom", 1),
        ("add", "s64", "atom", 1),
        ("min", "f32", "atom", 1),
        ("and", "u32", "atom", 1),
        ("exch", "b32", "red", 1),
        ("cas", "b32", "atom", 1),
        ("sub", "u32", "atom", 1),
        ("add.weak", "u32", "atom", 1),
        ("add.v2", "f32", "atom", 1),
    ],
)
def test_forms_that_are_not_modelled_are_refused_with_their_line(operation, type_name, opcode, count):
    memory = np.zeros(4, np.dtype(f"u{int(type_name[1:]) // 8}"))
    with pytest.raises(warpsan.UnsupportedInstruction, match=r"PTX line \d+: " + opcode):
        launch(operation, type_name, [0, 1, 2, 3], memory, [memory.copy()] * count, opcode=opcode)
