"""Both accesses of a hazard, hazards of stopped launches, and atomics without an order."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

import warpsan
from warpsan.report.hazards import KINDS

ROOT = Path(__file__).resolve().parents[3]
SCHEDULES = ("lockstep", "forward", "reverse", "random")


def kernel(body: str, target: str = "sm_90a") -> str:
    """An entry around a body: %r0 is the thread, %r1 four times that, %r2 the warp, %rd1 its word of the argument."""
    return (
        f".version 8.0\n.target {target}\n.address_size 64\n.entry k(.param .u64 p)\n{{\n"
        ".reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<9>; .shared .align 128 .b8 buf[4096];\n"
        "ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; shr.u32 %r2, %r0, 5;\n"
        f"mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1;\n.loc 1 7 0\n{body}\nret;\n}}\n"
        '.file 1 "a/my.cu"\n'
    )


def hazards(body: str, threads: int = 64, grid: int = 1, **options: object) -> list[warpsan.Hazard]:
    return warpsan.launch(kernel(body), "k", grid, threads, [np.zeros(4096, np.uint32)], **options).hazards


COPY = (
    "shl.b32 %r3, %r0, 4; mul.wide.u32 %rd2, %r0, 16; add.u64 %rd2, %rd0, %rd2;\n"
    "cp.async.cg.shared.global [%r3], [%rd2], 16;\ncp.async.commit_group;\n"
)
BULK = (
    "mov.u32 %r5, buf; setp.eq.u32 %p1, %r0, 40;\n@%p1 mbarrier.init.shared.b64 [buf+1024], 1;\nbar.sync 0;\n"
    "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [buf+1024], 64;\n@%p1 cp.async.bulk.shared::cluster.global.mbarrier::"
    "complete_tx::bytes [buf], [%rd0], 64, [buf+1024];\n"
)

PARTIES: list[tuple[str, dict[str, object], str, dict[str, object]]] = [
    (
        "st.shared.u32 [%r1], %r0;\nxor.b32 %r3, %r1, 128;\nld.shared.u32 %r4, [%r3];",
        {"checks": ("race",)},
        "race",
        {"text": "st.shared.u32", "block": (0, 0, 0), "warp": 1, "thread": None},
    ),
    (
        "xor.b32 %r3, %r1, 4;\nst.shared.u32 [%r1], %r0;\nld.shared.u32 %r4, [%r3];",
        {"checks": ("strict",)},
        "lane-race",
        {"text": "st.shared.u32", "block": (0, 0, 0), "warp": 0, "thread": (1, 0, 0)},
    ),
    (
        COPY + "xor.b32 %r4, %r3, 512;\nld.shared.u32 %r4, [%r4];",
        {"checks": ("async",)},
        "async",
        {"text": "cp.async.cg.shared.global", "thread": (32, 0, 0), "warp": 1, "note": "in flight"},
    ),
    (
        COPY + "cp.async.wait_group 0;\nxor.b32 %r4, %r3, 512;\nld.shared.u32 %r4, [%r4];",
        {"checks": ("race",)},
        "race",
        {"text": "cp.async.cg.shared.global", "block": (0, 0, 0), "warp": 1, "note": "asynchronously"},
    ),
    (
        BULK + "ld.shared.u32 %r4, [buf];",
        {"checks": ("async",)},
        "async",
        {"thread": (40, 0, 0), "warp": 1, "block": (0, 0, 0)},
    ),
    (
        BULK + "ld.shared.u32 %r4, [buf];",
        {"checks": ("race",)},
        "race",
        {"thread": (40, 0, 0), "warp": 1, "note": "asynchronously"},
    ),
    (
        "st.shared.u32 [%r1], %r0;\nbar.sync 0;\nsetp.eq.u32 %p1, %r0, 0;\n@%p1 cp.async.bulk.global.shared::cta."
        "bulk_group [%rd0], [buf], 64;\n@%p1 cp.async.bulk.commit_group;\n@%p1 cp.async.bulk.wait_group 0;",
        {},
        "proxy",
        {"text": "st.shared.u32", "warp": 0, "block": (0, 0, 0)},
    ),
    (
        "mov.u32 %r3, %ctaid.x;\nst.global.u32 [%rd1], %r3;",
        {"grid": 3},
        "race",
        {"text": "st.global.u32", "warp": 0, "block": (0, 0, 0)},
    ),
    (
        "setp.eq.u32 %p1, %r2, 0;\n@%p1 st.global.u32 [%rd1], 5;\n@!%p1 ld.global.u32 %r3, [%rd1+-128];",
        {},
        "race",
        {"text": "st.global.u32", "warp": 0, "block": (0, 0, 0)},
    ),
    (
        "setp.eq.u32 %p1, %r2, 0;\n@%p1 bar.sync 1, 96;\n@!%p1 bar.sync 1, 64;",
        {"threads": 96},
        "barrier",
        {"text": "bar.sync", "warp": 0, "thread": (0, 0, 0), "block": (0, 0, 0)},
    ),
]


@pytest.mark.parametrize(("body", "options", "kind", "expected"), PARTIES)
def test_a_hazard_names_the_conflicting_access(
    body: str, options: dict[str, object], kind: str, expected: dict[str, object]
) -> None:
    try:
        reported = hazards(body, **options)
    except warpsan.Deadlock as error:
        reported = list(error.hazards)
    hazard, other = next((each, each.other) for each in reported if each.kind == kind and each.other is not None)
    assert {name: getattr(other, name) for name in expected} == expected
    code = kernel(body).splitlines()
    assert other.text in code[other.ptx_line - 1]
    assert other.source == "my.cu:7"
    assert str(other) in hazard.message
    assert f"at my.cu:7, PTX line {other.ptx_line}" in hazard.message
    who = other.thread or other.warp
    assert f"of {'thread' if other.thread else 'warp'} {who} of block {other.block}" in hazard.message


def test_one_of_several_blocks_is_the_other_party() -> None:
    body = "mov.u32 %r3, %ctaid.x; setp.eq.u32 %p1, %r3, 2;\nld.global.u32 %r4, [%rd0];\n@%p1 st.global.u32 [%rd0], 5;"
    (hazard,) = hazards(body, threads=1, grid=3)
    assert hazard.other is not None
    assert (hazard.block, hazard.other.block, hazard.other.warp) == ((2, 0, 0), (1, 0, 0), 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_was_found_before_a_launch_was_stopped_is_kept(schedule: str) -> None:
    race = "mov.u32 %r4, 0; st.shared.u32 [%r4], %r2;\n"
    stuck = "setp.eq.u32 %p1, %r2, 0;\n@%p1 bar.sync 1, 64;\n@!%p1 bar.sync 2, 64;"
    with pytest.raises(warpsan.Deadlock) as stopped:
        hazards(race + stuck, schedule=schedule)
    assert [hazard.kind for hazard in stopped.value.hazards] == ["race"]
    with pytest.raises(warpsan.StepLimit) as endless:
        hazards(race + "bar.sync 0;\nL: bra L;", schedule=schedule, max_steps=500)
    assert [hazard.kind for hazard in endless.value.hazards] == ["race"]
    with pytest.raises(warpsan.IllegalAccess) as illegal:
        hazards(race + "bar.sync 0;\nst.global.u32 [%rd0+100000], 1;", schedule=schedule, checks=("race",))
    assert [hazard.kind for hazard in illegal.value.hazards] == ["race"]
    with pytest.raises(warpsan.Deadlock) as unwatched:
        hazards(race + stuck, schedule=schedule, checks=())
    assert unwatched.value.hazards == ()


# ---- atomics without an order ----------------------------------------------------------------------------------------

START = "setp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [buf], 0;\nbar.sync 0;\n"
ATOMIC = "atom.shared.add.u32 %r4, [buf], 1;\n"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("access", ["ld.shared.u32 %r5, [buf];", "st.shared.u32 [buf], 77;"])
def test_a_plain_access_must_come_after_the_atomics_of_all_warps(schedule: str, access: str) -> None:
    """The own warp's atomic is the last, and does not hide earlier ones."""
    one = "setp.eq.u32 %p2, %r0, 0;\n@%p2 "
    assert hazards(START + ATOMIC + "bar.sync 0;\n" + one + access, threads=96, schedule=schedule) == []
    reported = hazards(START + ATOMIC + one + access, threads=96, schedule=schedule)
    assert {hazard.kind for hazard in reported} == {"race"}
    assert all(hazard.other is not None and "atom.shared.add.u32" in hazard.message for hazard in reported)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_whichever_warp_updates_last(order: tuple[int, ...]) -> None:
    """Named barriers order the atomics of warps; only the first one is unordered with the reader."""
    first, second, reader = order
    turn = "setp.eq.u32 %p{0}, %r2, {1};\n"
    body = START + turn.format(2, first) + turn.format(3, second) + turn.format(4, reader)
    body += "@%p2 " + ATOMIC + "{}@%p3 " + ATOMIC
    body += "@%p3 bar.arrive 2, 64;\n@%p4 bar.sync 2, 64;\n@%p4 " + ATOMIC + "@%p4 ld.shared.u32 %r5, [buf];"
    chain = "@%p2 bar.arrive 1, 64;\n@%p3 bar.sync 1, 64;\n"
    for schedule in SCHEDULES:
        assert hazards(body.replace("{}", chain), threads=96, schedule=schedule) == [], schedule
        reported = hazards(body.replace("{}", ""), threads=96, schedule=schedule)
        assert [hazard.kind for hazard in reported] == ["race"], schedule


def test_a_plain_write_that_comes_after_all_atomics_covers_them() -> None:
    rest = "bar.sync 0;\n@%p1 st.shared.u32 [buf], 9;\nbar.sync 0;\nld.shared.u32 %r5, [buf];\nbar.sync 0;\n" + ATOMIC
    for schedule in SCHEDULES:
        assert hazards(START + ATOMIC + rest, threads=96, schedule=schedule) == []


def test_the_documentation_names_every_kind() -> None:
    page = (ROOT / "packages" / "warpsan" / "docs" / "checks.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", page, re.M))
    assert set(rows) == KINDS
