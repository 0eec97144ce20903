"""Code that launches did not execute: blocks, lines, and the arguments that decide a branch."""

from __future__ import annotations

import numpy as np
import pytest

from warpsan import launch
from warpsan.build import Module, build
from warpsan.profile import CodeOfEntry

SOURCE = """
extern "C" __global__ void scale_up(const float* x, float* y, int n, int step, long long wide)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = x[i];
    if (CONDITION) {
        value += x[0];
        y[i + 1] = value * 3.0f;
    }
    #pragma unroll 4
    for (int j = 0; j < step; ++j) value *= 1.5f;
    if (step < 0) __trap();
    y[i] = value;
}
"""


def code(condition: str, n: int = 64) -> CodeOfEntry:
    """The entry after one launch with n of 64 threads, four steps and wide = 5."""
    ptx = build(Module("scale.cu", SOURCE.replace("CONDITION", condition), "scale_up"), "sm_89").ptx.decode()
    x, y = np.ones(64, np.float32), np.zeros(65, np.float32)
    report = launch(ptx, "scale_up", 2, 32, [x, y, n, 4, 5])
    return CodeOfEntry(ptx, "scale_up", report.unexecuted)


def regions(entry: CodeOfEntry) -> list[tuple[tuple[str, ...], tuple[str, ...], bool]]:
    return [(r.places, r.depends, r.fails) for r in entry.regions(entry.executed_origins, lambda frames: frames[0])]


def first(entry: CodeOfEntry) -> tuple[int, ...]:
    return next(r.pcs for r in entry.regions(entry.executed_origins, lambda frames: frames[0]) if not r.fails)


def test_only_code_without_an_executed_copy_is_listed() -> None:
    entry = code("n > 4096")
    body, trap = regions(entry)
    assert body == (("scale.cu:8-9",), ("arguments",), False)
    assert trap[1:] == (("arguments",), True)
    assert 0 < entry.executed < entry.blocks  # the remainder of the unrolled loop is not executed, and not listed
    assert (*regions(code("n > 0")),) == (trap,)


def test_a_block_that_one_lane_executes_counts() -> None:
    assert regions(code("i == 63")) == regions(code("n > 0"))


@pytest.mark.parametrize(
    ("condition", "n", "reached"),
    [
        ("n > 4096", 4096, False),
        ("n > 4096", 4097, True),
        ("(n + 63) / 64 == 9 && gridDim.x > 1", 513, True),
        ("(n + 63) / 64 == 9 && gridDim.x > 1", 512, False),
        ("n % 17 == 3 && n > 64", 88, True),
        ("n % 17 == 3 && n > 64", 89, False),
        ("blockIdx.x * 100 + threadIdx.x > 150 + n", -60, True),
        ("blockIdx.x * 100 + threadIdx.x > 150 + n", 64, False),
        ("wide * n > 6000000000ll", 2000000000, True),
        ("(unsigned)n > 4000000000u", -5, True),
        ("min(n, 1000) == 1000", 1000, True),
        ("min(n, 1000) == 1000", 999, False),
    ],
)
def test_arguments_and_grid_decide_a_branch(condition: str, n: int, reached: bool) -> None:
    entry = code(condition)
    assert entry.reaches(first(entry), ((None, None, n, 4, 5), (2, 1, 1), (32, 1, 1))) is reached


@pytest.mark.parametrize("condition", ["value > 7.0f", "__shfl_sync(0xffffffff, (int)value, 3) == 2"])
def test_values_leave_a_branch_open(condition: str) -> None:
    entry = code(condition)
    assert entry.reaches(first(entry), ((None, None, 64, 4, 5), (2, 1, 1), (32, 1, 1))) is None
    assert "memory" in regions(entry)[0][1]


@pytest.mark.parametrize("negated", [False, True])
def test_code_behind_a_jump_is_reached_if_the_jump_is_taken(negated: bool) -> None:
    ptx = f""".version 8.0
.target sm_89
.address_size 64
.visible .entry far(.param .u64 y, .param .u32 n)
{{
    .reg .b64 %rd<2>; .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [y];
    ld.param.u32 %r1, [n];
    setp.{"le" if negated else "gt"}.s32 %p1, %r1, 100;
    @{"!" if negated else ""}%p1 bra BODY;
    ret;
BODY:
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""
    report = launch(ptx, "far", 1, 1, [np.zeros(1, np.uint32), 7])
    entry = CodeOfEntry(ptx, "far", report.unexecuted)
    (region,) = entry.regions(entry.executed_origins, lambda frames: frames[0])
    assert region.places == ("PTX:13-14",)
    reached = [entry.reaches(region.pcs, ((None, n), (1, 1, 1), (1, 1, 1))) for n in (100, 101)]
    assert reached == [False, True]


def test_a_select_is_a_decision_with_two_outcomes() -> None:
    ptx = """.version 8.0
.target sm_89
.address_size 64
.visible .entry pick(.param .u64 y, .param .u32 n)
{
    .reg .b64 %rd<2>; .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [y];
    ld.param.u32 %r1, [n];
    setp.gt.s32 %p1, %r1, 100;
    selp.b32 %r2, 1, 0, %p1;
    st.global.u32 [%rd1], %r2;
    ret;
}
"""
    launch(ptx, "pick", 1, 1, [np.zeros(1, np.uint32), 7])
    entry = CodeOfEntry(ptx, "pick", ())
    (found,) = entry.unseen(entry.outcomes([((None, 7), (1, 1, 1), (1, 1, 1))]), lambda frames: frames[0])
    assert (found.outcome, found.place, found.depends) == (True, "PTX:10:0", ("arguments",))
    assert 100 in found.constants
    assert entry.decides(found.pc, True, ((None, 101), (1, 1, 1), (1, 1, 1)))
    assert not entry.decides(found.pc, True, ((None, 100), (1, 1, 1), (1, 1, 1)))


def test_registers_that_tell_the_machine_are_listed() -> None:
    assert code("clock64() > 1ll << 60").identity == ("%clock64",)
    assert code("n > 4096").identity == ()
