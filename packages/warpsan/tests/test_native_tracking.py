"""Undefined bytes of shared memory: tracked, and reported at their use."""

from __future__ import annotations

import random

import numpy as np
import pytest

import warpsan
from outcomes import digest
from recorded import Recorded
from test_definedness import BENIGN, COLUMNS, LOAD, PRODUCT, UNSET, WRONG, report

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize("name", BENIGN)
def test_what_does_not_matter_is_not_reported(name: str) -> None:
    assert report(BENIGN[name]).hazards == []


@pytest.mark.parametrize("body", [body for body, *_ in (*WRONG.values(), *UNSET.values())], ids=[*WRONG, *UNSET])
def test_what_matters_is_reported(body: str, recorded: Recorded) -> None:
    recorded.check(messages(report(body)))


@pytest.mark.parametrize(
    "use", ["st.f32 [%d1], %f7;", COLUMNS + PRODUCT.replace("{%f0, %f0, %f0, %f0}", "{%f7, %f0, %f0, %f0}")]
)
def test_a_register_that_was_never_set_matters_where_undefined_bytes_are_passed_on(use: str) -> None:
    body = "mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0;" + LOAD + use
    (hazard,) = report(body).hazards
    assert "register %f7" in hazard.message


@pytest.mark.parametrize(("stored", "matters"), [("%r4", False), ("%r3", True)])
def test_what_is_computed_under_an_undefined_condition_is_undefined(stored: str, matters: bool) -> None:
    """The condition itself is reported only with an effect of its branch."""
    body = LOAD + (
        "mov.u32 %r3, 1; mov.u32 %r4, 2; setp.gt.f32 %p1, %f1, 0f00000000; @%p1 add.u32 %r3, %r4, 3;"
        f"st.global.u32 [%d1], {stored};"
    )
    assert bool(report(body).hazards) == matters


ALL_OR_NOTHING = {
    "an mma of doubles": "mov.b64 %q1, {%r3, %r4}; mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%q1, %q2}, {%q1}, "
    "{%q1}, {%q1, %q1}; st.global.b64 [%d1], %q2;",
    "an mma under a condition": "setp.lt.u32 %p1, %r0, 99; @%p1 "
    + PRODUCT
    + "st.global.f32 [%d1], %f1; st.global.f32 [%d1+4], %f3;",
    "many operands": "mov.b32 %r5, %r3; mov.b32 %r6, %r3; mov.b32 %r7, %r3; mov.b32 %r8, %r3;"
    "dp4a.u32.u32 %r4, %r5, %r6, %r7; st.shared.v4.u32 [%r1+16], {%r4, %r5, %r6, %r7};"
    "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r1+16]; st.global.v4.u32 [%d1], {%r4, %r5, %r6, %r7};",
    "memory of the cluster": "mapa.shared::cluster.u32 %r9, %r1, 0; st.shared::cluster.u32 [%r9+16], %r3;"
    "ld.shared::cluster.u32 %r4, [%r9+16]; st.global.u32 [%d1], %r4;",
    "an atomic operation": "atom.shared.add.u32 %r4, [%r1+4], 1; st.global.u32 [%d1], %r3;",
}


@pytest.mark.parametrize("name", ALL_OR_NOTHING)
def test_less_common_instructions_are_followed(name: str, recorded: Recorded) -> None:
    body = (
        ".reg .b64 %q<3>; mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0;"
        + COLUMNS
        + "ld.shared.u32 %r3, [%r1];"
        + ALL_OR_NOTHING[name]
    )
    reported = messages(report(body))
    assert reported
    recorded.check(reported)


def messages(report: warpsan.Report) -> list[str]:
    """Messages of a launch."""
    return [each.message for each in report.hazards]


def random_program(draw: random.Random, *, branches: bool = False) -> str:
    """Loads from partly written shared memory, arithmetic, stores to it, and an observable store.

    ``branches`` adds branches on possibly undefined values, registers set in some lanes, and generic addresses.
    """
    labels = iter(range(100))

    def word() -> str:
        return f"%r{draw.randrange(2, 10)}"

    def source() -> str:
        return f"%n{draw.randrange(3)}" if branches and draw.random() < 0.1 else word()

    def half() -> str:
        return f"%h{draw.randrange(4)}"

    def long() -> str:
        return f"%q{draw.randrange(4)}"

    def predicate() -> str:
        return f"%p{draw.randrange(4)}"

    def at(size: int) -> str:
        return f"[%r1+{draw.randrange(0, 16, size)}]"

    def generic(size: int) -> str:
        return f"[%rd4+{draw.randrange(0, 16, size)}]"

    def fragment(many: int) -> str:
        return "{" + ", ".join(source() for _ in range(many)) + "}"

    def stored() -> str:
        return draw.choice(
            [
                f"st.shared.u8 {at(1)}, {word()};",
                f"st.shared.u16 {at(2)}, {half()};",
                f"st.shared.u32 {at(4)}, {source()};",
            ]
        )

    def alone() -> str:
        choices = [
            *(f"ld.shared.u32 {word()}, {at(4)};", f"ld.shared.s8 {word()}, {at(1)};"),
            *(f"ld.shared.u16 {half()}, {at(2)};", f"ld.shared.u64 {long()}, {at(8)};"),
            *(f"ld.shared.v2.u32 {{%r2, {word()}}}, {at(8)};", f"st.shared.v2.u32 {at(8)}, {fragment(2)};"),
            *(stored(), f"st.shared.u64 {at(8)}, {long()};"),
            *(f"{op}.b32 {word()}, {source()}, {source()};" for op in ("and", "or", "xor")),
            *(f"add.u32 {word()}, {source()}, {word()};", f"shl.b32 {word()}, {source()}, 8;"),
            *(f"selp.b32 {word()}, {source()}, {word()}, {predicate()};", f"shr.u32 {word()}, {word()}, 16;"),
            f"prmt.b32 {word()}, {word()}, {source()}, {draw.randrange(65536)};",
            *(f"cvt.u16.u32 {half()}, {word()};", f"cvt.u32.u16 {word()}, {half()};"),
            *(f"mov.b64 {long()}, {fragment(2)};", f"mov.b64 {{%r8, %r9}}, {long()};"),
            *(
                f"setp.gt.u32 {predicate()}, {source()}, {word()};",
                f"fma.rn.f16x2 {word()}, {word()}, {source()}, {word()};",
            ),
            f"cvt.rn.f16x2.f32 {word()}, {source()}, {word()};",
            *((f"ld.u32 {word()}, {generic(4)};", f"st.u32 {generic(4)}, {source()};") if branches else ()),
        ]
        return (f"@{predicate()} " if draw.random() < 0.2 else "") + draw.choice(choices)

    def branch() -> str:
        inside = "".join(alone() for _ in range(draw.randrange(1, 4)))
        label = f"L{next(labels)}"
        if draw.random() < 0.3:
            return f"@{predicate()} bra {label}; {inside} bra M{label}; {label}: {alone()} M{label}:"
        return f"@{predicate()} bra {label}; {inside} {label}:"

    def step() -> str:
        whole = [
            f"shfl.sync.bfly.b32 {word()}, {source()}, 16, 31, -1;",
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r2, %r3, %r4, %r5}, "
            f"{fragment(4)}, {fragment(2)}, {fragment(4)};",
            "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r2, %r3}, "
            f"{fragment(2)}, {fragment(1)}, {fragment(2)};",
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r10];",
            "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r6, %r7}, [%r10];",
            *((f"stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r10], {fragment(2)};",) if branches else ()),
            *((f"stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r10], {fragment(1)};",) if branches else ()),
        ]
        chance = draw.random()
        return draw.choice(whole) if chance < 0.2 else branch() if branches and chance < 0.4 else alone()

    code = [
        HEAD + ".entry k(.param .u64 a) { .reg .u64 %rd<6>; .reg .b32 %r<12>; .reg .b16 %h<4>; .reg .pred %p<4>;",
        ".reg .b32 %n<3>; .reg .b64 %q<4>; .shared .align 16 .b8 s[1024];",
        "ld.param.u64 %rd1, [a]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;",
        "mov.u32 %r11, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r11, %r11, %r2, %r0;",
        "mul.wide.u32 %rd2, %r11, 16; add.u64 %rd2, %rd2, %rd1; mad.lo.u32 %r1, %r0, 16, %r1; mov.u32 %r10, %r1;",
        "cvt.u64.u32 %rd3, %r1; cvta.shared.u64 %rd4, %rd3;",
        *(f"mov.u32 %r{k}, {draw.choice((0, 255, 65535, 0x3C003C00))};" for k in range(2, 10)),
        *(f"mov.b64 %q{k}, 5; mov.b16 %h{k}, 3; setp.lt.u32 %p{k}, %r0, {draw.randrange(33)};" for k in range(4)),
        *(f"@%p{k} mov.b32 %n{k}, 7;" for k in range(3)),
        *(stored() for _ in range(draw.randrange(4))),
        f"ld.shared.u32 {word()}, {at(4)};",
        *(step() for _ in range(draw.randrange(3, 14))),
        f"st.global.u{draw.choice((8, 32))} [%rd2], {word()}; ret; }}",
    ]
    return "\n".join(code)


@pytest.mark.parametrize("branches", [False, True], ids=["straight", "branches"])
@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
def test_random_programs(first: int, branches: bool, recorded: Recorded) -> None:
    outcomes = []
    for seed in range(first, first + (8 if first == 0 else 300)):
        program = random_program(random.Random(seed), branches=branches)
        out = np.zeros(512, np.uint32)
        reported = messages(warpsan.launch(program, "k", 2, 64, [out]))
        text = "\n".join(reported).encode()
        outcomes.append(f"{len(reported)} hazards: {digest(np.frombuffer(text, np.uint8))}" if text else digest(out))
    recorded.check(outcomes)
    assert 0 < sum("hazards" in each for each in outcomes) < len(outcomes)
