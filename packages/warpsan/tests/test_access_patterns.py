"""Accesses of lanes side by side, apart, and of a part of a warp: values, and races between scattered places."""

import numpy as np
import pytest

import warpsan

HEAD = """.version 8.0
.target sm_80
.address_size 64
"""
COPY = (
    HEAD
    + """.visible .entry copy(.param .u64 x, .param .u64 y) {{
    .reg .b32 %r<4>; .reg .b64 %d<5>; .reg .pred %p; .reg .{register} %v;
    ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; mov.u32 %r0, %tid.x; and.b32 %r1, %r0, {mask};
    mul.wide.u32 %d2, %r0, {stride}; add.u64 %d3, %d0, %d2; add.u64 %d4, %d1, %d2; setp.ne.u32 %p, %r1, 0;
    @%p ld.global.{type} %v, [%d3]; @%p st.global.{type} [%d4], %v; ret;
}}"""
)
SCATTER = (
    HEAD
    + """.visible .entry scatter(.param .u64 y) {{
    .reg .b32 %r<6>; .reg .b64 %d<3>; .shared .align 16 .b8 room[33000];
    ld.param.u64 %d0, [y]; mov.u32 %r0, %tid.x; mul.lo.u32 %r1, %r0, 516; mov.u32 %r2, room; add.u32 %r1, %r1, %r2;
    st.shared.u32 [%r1], %r0; {between}
    xor.b32 %r3, %r0, 32; mul.lo.u32 %r3, %r3, 516; add.u32 %r3, %r3, %r2; ld.shared.u32 %r4, [%r3];
    mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1; st.global.u32 [%d1], %r4; {after} ret;
}}"""
)


@pytest.mark.parametrize("checks", [(), warpsan.CHECKS, (*warpsan.CHECKS, "lanes")])
@pytest.mark.parametrize("mask", ["63", "1", "16"])
@pytest.mark.parametrize("apart", [1, 3])
@pytest.mark.parametrize("type_", ["u8", "u16", "u32", "u64"])
def test_a_copy_moves_the_elements_of_its_lanes(type_, apart, mask, checks):
    bits = int(type_[1:])
    x = np.random.default_rng(0).integers(0, 1 << bits, 64 * apart, f"uint{bits}")
    y = np.zeros_like(x)
    register = "b64" if bits == 64 else "b16" if bits < 32 else "b32"
    text = COPY.format(register=register, type=type_, stride=apart * bits // 8, mask=mask)
    report = warpsan.launch(text, "copy", 1, 64, [x, y], checks=checks)
    moved = np.flatnonzero(np.arange(64) & int(mask)) * apart
    want = np.zeros_like(x)
    want[moved] = x[moved]
    assert (y == want).all()
    assert not report.hazards


@pytest.mark.parametrize("checks", [warpsan.CHECKS, (*warpsan.CHECKS, "lanes")])
@pytest.mark.parametrize(
    ("between", "after", "kinds"),
    [
        ("bar.sync 0;", "", set()),
        ("", "", {"race", "memory"}),
        ("bar.sync 0;", "st.shared.u32 [%r1], %r4;", {"race"}),
        ("bar.sync 0;", "bar.sync 0; st.shared.u32 [%r1], %r4;", set()),
    ],
)
def test_scattered_stores_of_two_warps_race_with_loads_of_the_other(between, after, kinds, checks):
    text = SCATTER.format(between=between, after=after)
    report = warpsan.launch(text, "scatter", 1, 64, [np.zeros(64, np.uint32)], checks=checks)
    assert {each.kind for each in report.hazards} <= kinds
    assert bool(report.hazards) == bool(kinds)
