"""Orders and scopes of arrivals at mbarriers and waits for them, in a block and in a cluster."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from hopper_snippets import CTA_WAIT, kernel
from warpsan.planting import replace_once

SCHEDULES = ("lockstep", "forward", "reverse", "random")
STRICT = (*warpsan.CHECKS, "strict")


def hazards(body: str, **options: object) -> list[warpsan.Hazard]:
    out = np.zeros((4, 64), np.uint32)
    return warpsan.launch(kernel(body), "k", options.pop("grid", 1), 64, [out], **options).hazards


# ---- a block ---------------------------------------------------------------------------------------------------------

ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r2];\n"
WAIT = CTA_WAIT.format(0, "%r2", 0)
PASSING = (
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\nbar.sync 0;\n"
    "shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; xor.b32 %r5, %r4, 128;\nst.shared.u32 [%r4], %r0;\n"
    + ARRIVE
    + WAIT
    + "ld.shared.u32 %r6, [%r5];\nst.global.u32 [%rd2], %r6;\n"
)
RELAXED = (ARRIVE, ARRIVE.replace("arrive", "arrive.relaxed.cta"))
RELAXED_WAIT = (WAIT, WAIT.replace("parity", "parity.relaxed.cta"))


def fenced(old: str, pair: tuple[str, str], fence: str) -> tuple[str, str]:
    """The pair with a fence before its arrival, or after its wait."""
    return old, f"fence.{fence};\n{pair[1]}" if old == ARRIVE else f"{pair[1]}fence.{fence};\n"


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("edits", "advice"),
    [
        ([], ""),
        ([RELAXED], "the arrival at the mbarrier is .relaxed: use .release, or a fence before it"),
        ([RELAXED_WAIT], "the wait for the mbarrier is .relaxed: use .acquire, or a fence behind it"),
        ([fenced(ARRIVE, RELAXED, "acq_rel.cta")], ""),
        ([fenced(ARRIVE, RELAXED, "release.cta")], ""),
        ([fenced(ARRIVE, RELAXED, "acquire.cta")], "the arrival at the mbarrier is .relaxed"),
        ([fenced(WAIT, RELAXED_WAIT, "acq_rel.cta")], ""),
        ([fenced(WAIT, RELAXED_WAIT, "release.cta")], "the wait for the mbarrier is .relaxed"),
        ([fenced(ARRIVE, RELAXED, "sc.cta"), fenced(WAIT, RELAXED_WAIT, "sc.cta")], ""),
        ([fenced(ARRIVE, RELAXED, "sc.cta"), RELAXED_WAIT], "the wait for the mbarrier is .relaxed"),
        (
            [RELAXED, ("st.shared.u32 [%r4], %r0;\n", "fence.acq_rel.cta;\nst.shared.u32 [%r4], %r0;\n")],
            "the arrival at the mbarrier is .relaxed, and the access is not before its fence: use .release",
        ),
        ([fenced(ARRIVE, RELAXED, "proxy.async"), RELAXED_WAIT], "the arrival at the mbarrier is .relaxed"),
    ],
)
@pytest.mark.parametrize("checks", [warpsan.CHECKS, STRICT])
def test_a_relaxed_operation_needs_a_fence(edits, advice, checks):
    for schedule in SCHEDULES:
        reported = hazards(replace_once(PASSING, *edits), schedule=schedule, checks=checks)
        assert {hazard.kind for hazard in reported} == ({"race"} if advice else set())
        assert all(advice in hazard.message for hazard in reported)


# ---- a cluster -------------------------------------------------------------------------------------------------------

BARRIER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
ONES = "mov.u32 %r3, %cluster_ctarank; shl.b32 %r7, %r0, 2; add.u32 %r8, %r1, %r7;\n"
REMOTE = (
    ONES + "mapa.shared::cluster.u32 %r12, %r2, 0; mapa.shared::cluster.u32 %r13, %r8, 0;\n"
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 64;\nfence.mbarrier_init.release.cluster;\n"
    + BARRIER
    + "setp.eq.u32 %p3, %r3, 0;\n@%p3 bra READER;\n"
    "st.shared::cluster.u32 [%r13], %r0;\nmbarrier.arrive{a}.shared::cluster.b64 _, [%r12];\nbra END;\n"
    "READER:\nW: mbarrier.try_wait.parity{w}.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra W;\n{f}"
    "ld.shared.u32 %r11, [%r8]; st.global.u32 [%rd2], %r11;\nEND:\n" + BARRIER
)
NARROW_ARRIVAL = "the arrival at the mbarrier is .cta, and the thread that waits is in another block of the cluster"
NARROW_WAIT = "the wait for the mbarrier is .cta, and the other thread is in another block of the cluster"


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("arrive", "wait", "fence", "advice", "strict"),
    [
        (".release.cluster", ".acquire.cluster", "", "", ""),
        (".release.cta", ".acquire.cluster", "", NARROW_ARRIVAL, NARROW_ARRIVAL),
        (".release.cluster", ".acquire.cta", "", NARROW_WAIT, NARROW_WAIT),
        (".relaxed.cluster", ".acquire.cluster", "", "is .relaxed: use .release", "is .relaxed: use .release"),
        (".release.cluster", ".relaxed.cluster", "", "is .relaxed: use .acquire", "is .relaxed: use .acquire"),
        (".release.cluster", ".relaxed.cluster", "fence.acq_rel.cluster;\n", "", ""),
        (".release.cluster", ".relaxed.cluster", "fence.acq_rel.cta;\n", "use .acquire", "use .acquire"),
        # Without a scope PTX's default is .cta, which only the strict check reports.
        ("", "", "", "", NARROW_ARRIVAL),
        (".release.cluster", "", "", "", NARROW_WAIT),
    ],
)
def test_another_block_must_be_in_the_scope_of_both(arrive, wait, fence, advice, strict):
    body = REMOTE.replace("{a}", arrive).replace("{w}", wait).replace("{f}", fence)
    for checks, text in ((warpsan.CHECKS, advice), (STRICT, strict)):
        for schedule in SCHEDULES:
            reported = hazards(body, grid=2, cluster=(2, 1, 1), schedule=schedule, checks=checks)
            assert {hazard.kind for hazard in reported} == ({"race"} if text else set())
            assert all(text in hazard.message for hazard in reported)


STORED = (
    ONES + "mapa.shared::cluster.u32 %r12, %r2, 0; mapa.shared::cluster.u32 %r13, %r8, 0;\n"
    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;\n"
    "fence.mbarrier_init.release.cluster;\n" + BARRIER + "setp.eq.u32 %p3, %r3, 0;\n@%p3 bra READER;\n"
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r13], %r0, [%r12];\nbra END;\n"
    "READER:\nW: mbarrier.try_wait.parity{w}.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra W;\n"
    "ld.shared.u32 %r11, [%r8]; st.global.u32 [%rd2], %r11;\nEND:\n" + BARRIER
)


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(
    ("wait", "checks", "advice"),
    [
        (".acquire.cluster", STRICT, ""),
        (".acquire.cta", warpsan.CHECKS, NARROW_WAIT),
        ("", warpsan.CHECKS, ""),
        ("", STRICT, NARROW_WAIT),
    ],
)
def test_a_wait_for_the_stores_of_another_block_has_the_scope_of_the_cluster(wait, checks, advice):
    """st.async completes on the mbarrier as a release of its scope."""
    reported = hazards(STORED.replace("{w}", wait), grid=2, cluster=(2, 1, 1), checks=checks)
    assert {hazard.kind for hazard in reported} - {"cluster"} == ({"race"} if advice else set())
    assert advice in "".join(hazard.message for hazard in reported if hazard.kind == "race")
