"""Undefined bytes of shared memory on the native engine: followed there, and left to the reference engine only where
they may matter."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="the native engine needs llvmlite")

from differential import differential
from test_definedness import BENIGN, COLUMNS, LOAD, PRODUCT, report

from sdpalab import sim

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
FIRST_RUN, MAY_MATTER = "uninitialised", "a register that was never set"
BRANCHES = {"a branch that only computes"}
"""What native code does not follow: where the ways of a branch meet."""


@pytest.mark.parametrize("name", BENIGN)
def test_what_does_not_matter_stays_on_the_native_engine(name: str) -> None:
    with differential() as outcomes:
        assert report(BENIGN[name]).hazards == []
    assert outcomes == [FIRST_RUN, MAY_MATTER if name in BRANCHES else ""]


@pytest.mark.parametrize(
    "use", ["st.shared.f32 [%r1+4], %f7;", COLUMNS + PRODUCT.replace("{%f0, %f0, %f0, %f0}", "{%f7, %f0, %f0, %f0}")]
)
def test_a_register_that_was_never_set_matters_where_undefined_bytes_are_passed_on(use: str) -> None:
    body = "mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0;" + LOAD + use
    with differential() as outcomes:
        (hazard,) = report(body).hazards
    assert outcomes == [FIRST_RUN, MAY_MATTER]
    assert "register %f7" in hazard.message


@pytest.mark.parametrize(("stored", "matters"), [("%r4", False), ("%r3", True)])
def test_what_is_computed_under_an_undefined_condition_is_undefined(stored: str, matters: bool) -> None:
    """The condition itself does not matter before what it decides does."""
    body = LOAD + (
        "mov.u32 %r3, 1; mov.u32 %r4, 2; setp.gt.f32 %p1, %f1, 0f00000000; @%p1 add.u32 %r3, %r4, 3;"
        f"st.global.u32 [%d1], {stored};"
    )
    with differential() as outcomes:
        hazards = report(body).hazards
    assert outcomes == [FIRST_RUN, MAY_MATTER if matters else ""]
    assert bool(hazards) == matters


def random_program(draw: random.Random) -> str:
    """Loads from shared memory that is written in part, arithmetic, stores to it, and a store that counts."""

    def word() -> str:
        return f"%r{draw.randrange(2, 10)}"

    def half() -> str:
        return f"%h{draw.randrange(4)}"

    def long() -> str:
        return f"%q{draw.randrange(4)}"

    def predicate() -> str:
        return f"%p{draw.randrange(4)}"

    def at(size: int) -> str:
        return f"[%r1+{draw.randrange(0, 16, size)}]"

    def fragment(many: int) -> str:
        return "{" + ", ".join(word() for _ in range(many)) + "}"

    def stored() -> str:
        return draw.choice(
            [
                f"st.shared.u8 {at(1)}, {word()};",
                f"st.shared.u16 {at(2)}, {half()};",
                f"st.shared.u32 {at(4)}, {word()};",
            ]
        )

    def step() -> str:
        alone = [
            *(f"ld.shared.u32 {word()}, {at(4)};", f"ld.shared.s8 {word()}, {at(1)};"),
            *(f"ld.shared.u16 {half()}, {at(2)};", f"ld.shared.u64 {long()}, {at(8)};"),
            *(f"ld.shared.v2.u32 {fragment(2)}, {at(8)};", f"st.shared.v2.u32 {at(8)}, {fragment(2)};"),
            *(stored(), f"st.shared.u64 {at(8)}, {long()};"),
            *(f"{op}.b32 {word()}, {word()}, {word()};" for op in ("and", "or", "xor")),
            *(f"add.u32 {word()}, {word()}, {word()};", f"shl.b32 {word()}, {word()}, 8;"),
            *(f"selp.b32 {word()}, {word()}, {word()}, {predicate()};", f"shr.u32 {word()}, {word()}, 16;"),
            f"prmt.b32 {word()}, {word()}, {word()}, {draw.randrange(65536)};",
            *(f"cvt.u16.u32 {half()}, {word()};", f"cvt.u32.u16 {word()}, {half()};"),
            *(f"mov.b64 {long()}, {fragment(2)};", f"mov.b64 {fragment(2)}, {long()};"),
            *(
                f"setp.gt.u32 {predicate()}, {word()}, {word()};",
                f"fma.rn.f16x2 {word()}, {word()}, {word()}, {word()};",
            ),
            f"cvt.rn.f16x2.f32 {word()}, {word()}, {word()};",
        ]
        whole = [
            f"shfl.sync.bfly.b32 {word()}, {word()}, 16, 31, -1;",
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r2, %r3, %r4, %r5}, "
            f"{fragment(4)}, {fragment(2)}, {fragment(4)};",
            "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r2, %r3}, "
            f"{fragment(2)}, {fragment(1)}, {fragment(2)};",
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r10];",
            "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r6, %r7}, [%r10];",
        ]
        if draw.random() < 0.2:
            return draw.choice(whole)
        return (f"@{predicate()} " if draw.random() < 0.2 else "") + draw.choice(alone)

    code = [
        HEAD + ".entry k(.param .u64 a) { .reg .u64 %rd<3>; .reg .b32 %r<12>; .reg .b16 %h<4>; .reg .pred %p<4>;",
        ".reg .b64 %q<4>; .shared .align 16 .b8 s[512]; ld.param.u64 %rd1, [a]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;",
        "mul.wide.u32 %rd2, %r0, 16; add.u64 %rd2, %rd2, %rd1; mad.lo.u32 %r1, %r0, 16, %r1; mov.u32 %r10, %r1;",
        *(f"mov.u32 %r{k}, {draw.choice((0, 255, 65535, 0x3C003C00))};" for k in range(2, 10)),
        *(f"mov.b64 %q{k}, 5; mov.b16 %h{k}, 3; setp.lt.u32 %p{k}, %r0, {draw.randrange(33)};" for k in range(4)),
        *(stored() for _ in range(draw.randrange(4))),
        f"ld.shared.u32 {word()}, {at(4)};",
        *(step() for _ in range(draw.randrange(3, 14))),
        f"st.global.u{draw.choice((8, 32))} [%rd2], {word()}; ret; }}",
    ]
    return "\n".join(code)


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
def test_random_programs_matter_on_both_engines_or_on_neither(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = 0
    for seed in range(first, first + (6 if first == 0 else 300)):
        program = random_program(random.Random(seed))
        with differential() as outcomes:
            sim.launch(program, "k", 1, 32, [np.zeros(128, np.uint32)])
        with monkeypatch.context() as patch:
            patch.setenv("SDPALAB_SIM_ENGINE", "reference")
            hazards = sim.launch(program, "k", 1, 32, [np.zeros(128, np.uint32)]).hazards
        assert (outcomes[-1] == MAY_MATTER) == bool(hazards), f"seed {seed}"
        followed += outcomes == [FIRST_RUN, ""]
    assert followed > 2
