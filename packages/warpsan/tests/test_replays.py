"""Reports need no events: rounds with a late warp, and the runs of a launch with hazards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, kernel
from warpsan.engine.engine import NativeCode

BLOCKS = 4
FIRST, LAST = "setp.lt.u32 %p0, %r2, 32;", "setp.ge.u32 %p0, %r2, 96;"


def rounds(body: str, *, which: str = FIRST, after: str = "", far: str = "") -> str:
    """A kernel with as many rounds of ``body`` as its second parameter, followed by a race of the blocks in its
    buffer. %p0 is true for the threads of ``which``, %p1 for thread 0; ``far`` is code reached by a jump.
    """
    return f""".version 8.0\n.target sm_90\n.address_size 64
    .entry k(.param .u64 a, .param .u32 n) {{ .reg .b64 %rd<8>; .reg .b32 %r<16>; .reg .pred %p<6>; .shared .u32 s[128];
    ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; {which} setp.eq.u32 %p1, %r2, 0;
    shl.b32 %r3, %r2, 2; mov.u32 %r4, s; add.u32 %r4, %r4, %r3; mov.u32 %r5, 0;
    L: {body} add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, %r1; @%p2 bra L;
    {after}
    @!%p1 bra E; ld.global.u32 %r6, [%rd1]; add.u32 %r6, %r6, 1; st.global.u32 [%rd1], %r6; E: ret; {far} }}"""


def reported(ptx: str, schedule: str, many: int, *, block: int = 128, **options: Any) -> list[str]:
    """Messages of a launch, and its exception if it ended early."""
    args = [np.zeros(64, np.uint32), many]
    try:
        report = warpsan.launch(ptx, "k", BLOCKS, block, args, schedule=schedule, seed=1, max_steps=2_000, **options)
    except warpsan.SimError as error:
        return [str(error), *(hazard.message for hazard in error.hazards)]
    return [hazard.message for hazard in report.hazards]


def test_a_late_warp_does_not_come_twice_to_a_phase() -> None:
    """Warps that arrive at a barrier in other iterations than the rest do so in a separate step."""
    body = "@%p0 bra F; B: bar.sync 0; st.shared.u32 [%r4], %r5; bar.sync 0;"
    body += " xor.b32 %r9, %r4, 128; ld.shared.u32 %r8, [%r9];"  # no barrier before the next round
    messages = reported(rounds(body, far="F: add.u32 %r9, %r5, 1; bra B;"), "lockstep", 6)
    assert messages
    assert {message.split(":")[0] for message in messages} == {"race"}


INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\nbar.sync 0;\n"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("st.shared.u32 [%r1], 7; mov.u32 %r3, %tid.x; st.shared.u32 [%r1], %r3;", "race"),
        ("mov.u32 %r3, %tid.x; st.global.u32 [%rd1], %r3;", "race"),
        ("bar.sync 1, 48;", "barrier"),
        ("@%p1 bar.sync 0;\n@!%p1 bar.sync 0;", "barrier"),
        ("barrier.cluster.wait;", "cluster"),
        (INIT + "mbarrier.arrive.shared::cta.b64 _, [%r2], 3;", "mbarrier"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r2+4], 1;", "misaligned"),
        (
            "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;\ncp.async.bulk.commit_group;",
            "uninitialised",
        ),
        ("bar.sync 0, 96;", "Deadlock"),
        (INIT + CTA_WAIT.format(0, "%r2", 0), "Deadlock"),
        ("trap;", "KernelTrap"),
    ],
)
@pytest.mark.parametrize("schedule", ["lockstep", "forward"])
def test_hazards_of_units_and_endings_need_no_events(
    body: str, kind: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code has their exact rules: the launch runs twice, and no run records events."""
    runs: list[NativeCode] = []
    execute = NativeCode.run

    def counted(code: NativeCode, *arguments: Any) -> int:
        runs.append(code)
        return execute(code, *arguments)

    monkeypatch.setattr(NativeCode, "run", counted)
    try:
        report = warpsan.launch(kernel(body), "k", 1, 64, [np.zeros(64, np.uint32)], schedule=schedule)
        found = {hazard.kind for hazard in report.hazards}
    except warpsan.SimError as error:
        found = {type(error).__name__}
    assert kind in found
    assert len(runs) == 2
