"""Reads of unwritten shared memory: reported at the use of the value, once per cause, and only there."""

import numpy as np
import pytest

import warpsan
from warpsan.host.options import SCHEDULES

HEAD = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 out)
{
.reg .b32 %r<32>; .reg .f32 %f<16>; .reg .b64 %d<4>; .reg .b16 %h<9>; .reg .pred %p<9>;
.shared .align 128 .b8 buf[4096];
mov.u32 %r0, %tid.x; ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 64; add.u64 %d1, %d1, %d0;
mov.u32 %r1, buf; mad.lo.u32 %r1, %r0, 16, %r1; mov.u32 %r2, 7; mov.f32 %f0, 0f00000000; mov.f32 %f9, 0f40000000;
and.b32 %r20, %r0, 15; mov.u32 %r21, buf; mad.lo.u32 %r21, %r20, 32, %r21; shr.u32 %r22, %r0, 4;
mad.lo.u32 %r21, %r22, 16, %r21;
"""
# %r1: 16 unwritten bytes of this thread. %r21: this lane's row of a 16 x 16 tile of halves for ldmatrix.
LOAD = "ld.shared.f32 %f1, [%r1];\n"
OUT = "\nst.global.f32 [%d1], %f1;"


def report(body, schedule="lockstep", threads=32, **options):
    out = np.zeros(16 * threads, np.uint32)
    return warpsan.launch(f"{HEAD}{body}\nret;\n}}\n", "k", 1, threads, [out], schedule=schedule, **options)


def tile(rows):
    """Write the first rows of the tile (32 bytes per row), by the lanes of the rows."""
    return (
        f"setp.lt.u32 %p7, %r0, {2 * rows}; mov.u32 %r23, buf; mad.lo.u32 %r23, %r0, 16, %r23;\n"
        "@%p7 st.shared.v4.u32 [%r23], {%r0, %r2, %r0, %r2}; bar.sync 0;\n"
    )


FRAGMENT = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r21];\n"
COLUMNS = "mov.u32 %r7, 0x3C003C00; mov.u32 %r8, 0x3C003C00;\n"
PRODUCT = (
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r3, %r4, %r5, %r6}, {%r7, %r8}, "
    "{%f0, %f0, %f0, %f0};\n"
)
"""Rows 0 to 7 of the tile are in %f1 and %f2, 8 to 15 in %f3 and %f4."""
IN_PLACE_OF_A = PRODUCT.replace("{%r3, %r4, %r5, %r6}, {%r7, %r8}", "{%r7, %r8, %r7, %r8}, {%r3, %r5}")
HALVES = (
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r9, %r10}, {%r3, %r4, %r5, %r6}, {%r7, %r8}, {%r24, %r24};\n"
)

STORE_UNSET = "st.shared.f32 [%r1], %f7; "
FIRST_LANE = "setp.eq.u32 %p0, %r0, 0; @%p0 st.global.f32 [%d1], %f1;"

BENIGN = {
    "the first row of a tile of four": tile(4) + FRAGMENT + COLUMNS + PRODUCT + FIRST_LANE,
    "never used": LOAD,
    "masked by a selection": LOAD + "setp.ge.u32 %p0, %r0, 0; selp.f32 %f1, %f0, %f1, %p0;" + OUT,
    "overwritten under a guard": LOAD + "setp.ge.u32 %p0, %r0, 0; @%p0 mov.f32 %f1, %f0;" + OUT,
    "stored by no lane": LOAD + "add.f32 %f1, %f1, %f9; setp.gt.u32 %p0, %r0, 99; @%p0 " + OUT.strip(),
    "through shared memory and overwritten": LOAD + "st.shared.f32 [%r1+8], %f1; st.shared.f32 [%r1+8], %f0; "
    "ld.shared.f32 %f1, [%r1+8];" + OUT,
    "the other element of a vector": "st.shared.f32 [%r1+4], %f0; ld.shared.v2.f32 {%f2, %f1}, [%r1];" + OUT,
    "the other half of a register": "st.shared.u16 [%r1], %r2; ld.shared.u32 %r3, [%r1]; mov.b32 {%h1, %h2}, %r3; "
    "cvt.rn.f32.u16 %f1, %h1;" + OUT,
    "bits that are masked": "st.shared.u16 [%r1+2], %r2; ld.shared.u32 %r3, [%r1]; and.b32 %r3, %r3, 0xFFFF0000; "
    "cvt.rn.f32.u32 %f1, %r3;" + OUT,
    "the other half of packed sums": "st.shared.u16 [%r1], %r2; ld.shared.u32 %r3, [%r1]; add.rn.f16x2 %r3, %r3, %r3; "
    "mov.b32 {%h1, %h2}, %r3; cvt.f32.f16 %f1, %h1;" + OUT,
    "the other half of a conversion": LOAD + "cvt.rn.f16x2.f32 %r3, %f1, %f0; mov.b32 {%h1, %h2}, %r3; "
    "cvt.f32.f16 %f1, %h1;" + OUT,
    "a branch that only computes": LOAD + "mov.f32 %f2, %f0; setp.eq.f32 %p0, %f1, %f0; @%p0 bra OVER; "
    "div.full.f32 %f2, %f9, %f1; OVER: mov.f32 %f1, %f9;" + OUT,
    "rows of a product": tile(8) + FRAGMENT + COLUMNS + PRODUCT + "add.f32 %f1, %f1, %f2;" + OUT,
    "columns of a product": tile(4) + FRAGMENT + COLUMNS + IN_PLACE_OF_A
    + "and.b32 %r9, %r0, 3; setp.lt.u32 %p1, %r9, 2; @%p1 " + OUT.strip(),
    "rows of a product of halves": tile(8) + FRAGMENT + COLUMNS + "mov.u32 %r24, 0;" + HALVES
    + "cvt.rn.f32.u32 %f1, %r9;" + OUT,
    "rows through a shuffle": tile(8) + FRAGMENT + COLUMNS + PRODUCT + "mov.b32 %r9, %f1; "
    "shfl.sync.bfly.b32 %r9, %r9, 1, 31, -1; mov.b32 %f1, %r9;" + OUT,
    "never set, and not loaded": STORE_UNSET + "st.shared.f32 [%r1+4], %f0; ld.shared.f32 %f1, [%r1+4];" + OUT,
    "never set, and masked": STORE_UNSET + LOAD + "setp.ge.u32 %p0, %r0, 0; selp.f32 %f1, %f0, %f1, %p0;" + OUT,
    "never set, and overwritten": STORE_UNSET + "st.shared.f32 [%r1], %f0; " + LOAD + OUT,
}  # fmt: skip

WRONG = {
    "stored": (LOAD + OUT, "used as a stored value by st.global.f32"),
    "stored after arithmetic": (LOAD + "fma.rn.f32 %f1, %f1, %f0, %f9;" + OUT, "by st.global.f32"),
    "selected": (LOAD + "setp.ge.u32 %p0, %r0, 40; selp.f32 %f1, %f0, %f1, %p0;" + OUT, "by st.global.f32"),
    "a branch with an effect": (
        LOAD + "setp.eq.f32 %p0, %f1, %f0; @%p0 bra OVER; st.global.f32 [%d1], %f0; OVER:",
        "used as a predicate by bra",
    ),
    "a loop": (
        LOAD + "AGAIN: add.f32 %f1, %f1, %f9; setp.lt.f32 %p0, %f1, %f0; @%p0 bra AGAIN;",
        "used as a predicate by bra",
    ),
    "what a branch computed": (
        LOAD + "mov.f32 %f2, %f0; setp.eq.f32 %p0, %f1, %f0; @%p0 bra OVER; mov.f32 %f2, %f9; OVER: mov.f32 %f1, %f2;"
        + OUT,
        "by st.global.f32",
    ),
    "what a guard decided": (
        LOAD + "mov.f32 %f2, %f0; setp.eq.f32 %p0, %f1, %f0; @%p0 mov.f32 %f2, %f9; mov.f32 %f1, %f2;" + OUT,
        "by st.global.f32",
    ),
    "a guard of a store": (LOAD + "setp.eq.f32 %p0, %f1, %f0; @%p0 st.global.f32 [%d1], %f0;", "as a predicate by st"),
    "an address": (
        "ld.shared.u32 %r3, [%r1]; and.b32 %r3, %r3, 4; cvt.u64.u32 %d2, %r3; add.u64 %d2, %d2, %d1; "
        "st.global.f32 [%d2], %f0;",
        "used as an address by st.global.f32",
    ),
    "through shared memory": (
        LOAD + "mul.f32 %f1, %f1, %f9; st.shared.f32 [%r1+8], %f1; ld.shared.f32 %f1, [%r1+8];" + OUT,
        "by st.global.f32",
    ),
    "through generic addresses": (
        LOAD + "cvt.u64.u32 %d2, %r1; cvta.shared.u64 %d2, %d2; st.f32 [%d2+8], %f1; ld.f32 %f1, [%d2+8]; "
        "st.f32 [%d1], %f1;",
        "used as a stored value by st.f32",
    ),
    "an atomic update": ("ld.shared.u32 %r3, [%r1]; red.global.add.u32 [%d1], %r3;", "used as an operand by red"),
    "a vote": (LOAD + "setp.eq.f32 %p0, %f1, %f0; vote.sync.any.pred %p1, %p0, -1;", "used as an operand by vote"),
    "rows of a product": (
        tile(8) + FRAGMENT + COLUMNS + PRODUCT + "add.f32 %f1, %f1, %f3;" + OUT,
        "16 bytes of shared memory at offset 256 are read before they were written",
    ),
    "columns of a product": (
        tile(4) + FRAGMENT + COLUMNS + IN_PLACE_OF_A + OUT,
        "16 bytes of shared memory at offset 128 are read before they were written",
    ),
    "an addend": (
        LOAD + tile(16) + FRAGMENT + COLUMNS
        + PRODUCT.replace("{%f0, %f0, %f0, %f0}", "{%f1, %f0, %f0, %f0}") + OUT,
        "by st.global.f32",
    ),
    "rows of a product of halves": (
        tile(8) + FRAGMENT + COLUMNS + "mov.u32 %r24, 0;" + HALVES + "cvt.rn.f32.u32 %f1, %r10;" + OUT,
        "ldmatrix",
    ),
    "a transposed tile": (
        tile(4) + FRAGMENT.replace("x4.shared", "x4.trans.shared") + COLUMNS + PRODUCT + FIRST_LANE, "ldmatrix",
    ),
    "from another lane": (
        "st.shared.f32 [%r1], %f0; setp.eq.u32 %p0, %r0, 5; @%p0 ld.shared.f32 %f1, [%r1+8]; @!%p0 mov.f32 %f1, %f0; "
        "mov.b32 %r9, %f1; shfl.sync.idx.b32 %r9, %r9, 5, 31, -1; setp.eq.u32 %p1, %r0, 9; "
        "@%p1 st.global.u32 [%d1], %r9;",
        "thread (5, 0, 0)",
    ),
    "stored as matrices": (
        tile(8) + FRAGMENT + "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r21+1024], {%r3, %r4, %r5, %r6};"
        "ld.shared.u32 %r9, [%r1+1024]; st.global.u32 [%d1], %r9;",
        "ldmatrix",
    ),
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("body", BENIGN.values(), ids=BENIGN)
def test_what_does_not_matter_is_not_reported(body, schedule):
    assert [hazard.message for hazard in report(body, schedule).hazards] == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("body", "says"), WRONG.values(), ids=WRONG)
def test_what_matters_is_reported_with_the_read_and_the_use(body, says, schedule):
    hazards = report(body, schedule).hazards
    assert {hazard.kind for hazard in hazards} == {"uninitialised"}
    assert any(says in hazard.message for hazard in hazards), [hazard.message for hazard in hazards]
    for hazard in hazards:
        assert "read before they were written" in hazard.message
        assert hazard.other is not None
        assert hazard.other.ptx_line >= hazard.ptx_line > 10


def test_one_cause_is_one_hazard():
    """Many reads at one source line that reach many stores at one line."""
    reads = "".join(f"ld.shared.f32 %f{k}, [%r1+{4 * k % 16}];\n" for k in range(1, 9))
    stores = "".join(f"st.global.f32 [%d1+{4 * k}], %f{k};\n" for k in range(1, 9))
    body = f"{reads}{stores}"
    assert len(report(body).hazards) == 8
    located = HEAD + ".loc 1 7 1\n" + reads + ".loc 1 9 1\n" + stores + 'ret;\n}\n.file 1 "a.cu"\n'
    (hazard,) = warpsan.launch(located, "k", 1, 32, [np.zeros(512, np.uint32)]).hazards
    assert (hazard.source, hazard.other.source) == ("a.cu:7", "a.cu:9")


UNSET = {
    "loaded": (STORE_UNSET + LOAD + OUT, "%f7", "st.shared.f32", "st.global.f32"),
    "computed with": (STORE_UNSET + LOAD + "add.f32 %f1, %f1, %f9;" + OUT, "%f7", "st.shared.f32", "st.global.f32"),
    "through shared memory twice": (
        STORE_UNSET + LOAD + "st.shared.f32 [%r1+4], %f1; ld.shared.f32 %f2, [%r1+4]; st.global.f32 [%d1], %f2;",
        *("%f7", "st.shared.f32", "st.global.f32"),
    ),
    "the second of a vector": (
        "st.shared.v2.f32 [%r1], {%f0, %f7}; ld.shared.f32 %f1, [%r1+4];" + OUT,
        *("%f7", "st.shared.v2.f32", "st.global.f32"),
    ),
    "through generic addresses": (
        "cvt.u64.u32 %d2, %r1; cvta.shared.u64 %d2, %d2; st.f32 [%d2+8], %f7; ld.f32 %f1, [%d2+8]; st.f32 [%d1], %f1;",
        *("%f7", "st.f32", "st.f32"),
    ),
    "in matrices": (
        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r21], {%r0, %r25}; setp.lt.u32 %p0, %r0, 16; "
        "@%p0 ld.shared.u32 %r9, [%r21]; @%p0 st.global.u32 [%d1], %r9;",
        *("%r25", "stmatrix", "st.global.u32"),
    ),
}  # fmt: skip
"""An unset register that goes through shared memory: its name, its store and its use."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("body", "register", "stored", "used"), UNSET.values(), ids=UNSET)
def test_a_register_that_was_never_set_matters_behind_shared_memory(body, register, stored, used, schedule):
    (hazard,) = report(body, schedule).hazards
    assert f"register {register} is stored to shared memory, was never set, and is used as" in hazard.message
    assert f"a stored value by {used}" in hazard.message
    assert hazard.text.startswith(stored)
    assert hazard.other.ptx_line >= hazard.ptx_line > 10


def test_an_atomic_operation_on_a_register_that_was_never_set_is_reported_where_it_is_made():
    (hazard,) = report(STORE_UNSET + LOAD + "atom.shared.add.u32 %r9, [%r1], 1;").hazards
    assert hazard.kind == "uninitialised"
    assert hazard.text.startswith("atom")


def test_a_register_that_was_never_set_matters_at_once_where_it_cannot_be_followed():
    """Uses in a product, and in global memory by a generic address."""
    body = LOAD + "st.f32 [%d1], %f7; " + PRODUCT.replace("{%f0, %f0, %f0, %f0}", "{%f8, %f0, %f0, %f0}")
    assigned = "mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0;" + COLUMNS
    messages = [hazard.message for hazard in report(assigned + body).hazards]
    assert len(messages) == 2
    assert "register %f7 is used as a stored value, and was never set" in messages[0]
    assert "register %f8 is used as an operand, and was never set" in messages[1]


def test_a_race_does_not_hide_that_a_register_that_was_never_set_does_not_matter():
    body = STORE_UNSET + "mov.u32 %r3, buf; st.shared.u32 [%r3+2048], %r0; ld.shared.f32 %f1, [%r3+2048];" + OUT
    kinds = {hazard.kind for hazard in report(body, threads=64).hazards}
    assert "race" in kinds
    assert "uninitialised" not in kinds


def test_memory_and_counts_are_those_of_one_run():
    """The launch runs again after such a read: effects do not repeat."""
    add = "ld.global.u32 %r9, [%d1]; add.u32 %r9, %r9, 1; st.global.u32 [%d1], %r9;"
    text = f"{HEAD}{LOAD}{add}\nret;\n}}\n"
    gpu = warpsan.Device(1 << 24)
    out = gpu.array(np.zeros(512, np.uint32))
    function = gpu.module(text)["k"]
    for turn in (1, 2):
        assert function.launch(1, 32, [out]).hazards == []
        assert (out.reshape(32, 16)[:, 0] == turn).all()
    ours = np.zeros(512, np.uint32)
    assert warpsan.launch(text, "k", 1, 32, [ours]).steps == warpsan.launch(text, "k", 1, 32, [ours], checks=()).steps
    assert (ours.reshape(32, 16)[:, 0] == 2).all()
