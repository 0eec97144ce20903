"""Copies without a wait: a note for cp.async, a hazard for a bulk store, which reads shared memory meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

import warpsan
from hopper_snippets import kernel

MODES = [(schedule, mode) for schedule in ("lockstep", "random") for mode in ("late", "early")]

COPY = (
    "shl.b32 %r3, %r0, 4; add.u32 %r4, %r1, %r3; mul.wide.u32 %rd3, %r0, 16; add.u64 %rd3, %rd1, %rd3;\n"
    "cp.async.cg.shared.global [%r4], [%rd3], 16;\ncp.async.commit_group;\n"
)
STORE = (
    "shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; st.shared.u32 [%r4], %r0;\nfence.proxy.async.shared::cta;\n"
    "mov.u32 %r5, %ctaid.x; mul.wide.u32 %rd3, %r5, 256; add.u64 %rd3, %rd1, %rd3;\n"
    "bar.sync 0;\n@!%p1 bra END;\ncp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 256;\n"
    "{}END:\n"
)
COMMIT, WAIT = "cp.async.bulk.commit_group;\n", "cp.async.bulk.wait_group.read {};\n"
ONE = "cp.async.cg.shared.global"


@pytest.mark.usefixtures("recorded_launches")
@pytest.mark.parametrize(("schedule", "mode"), MODES)
@pytest.mark.parametrize(
    ("body", "notes", "kinds"),
    [
        (COPY, {ONE: 128}, set()),
        (COPY.replace("cp.async.commit_group;\n", ""), {ONE: 128}, set()),
        (COPY + "cp.async.wait_group 0;\n", {}, set()),
        (COPY + "cp.async.wait_group 1;\n", {ONE: 128}, set()),
        (COPY + "@%p1 cp.async.wait_all;\n", {ONE: 126}, set()),
        (STORE.format(COMMIT + WAIT.format(0)), {}, set()),
        (STORE.format(COMMIT), {}, {"async"}),
        (STORE.format(WAIT.format(0) + COMMIT), {}, {"async"}),
        (STORE.format(""), {}, {"async"}),
        (STORE.format(WAIT.format(0)), {}, {"async"}),
        (STORE.format(COMMIT + WAIT.format(1)), {}, {"async"}),
    ],
)
def test_what_is_never_waited_for(schedule, mode, body, notes, kinds):
    """In two blocks."""
    array = np.zeros(256, np.uint32)
    report = warpsan.launch(kernel(body), "k", 2, 64, [array], schedule=schedule, async_mode=mode, workers=1)
    assert {hazard.kind for hazard in report.hazards} == kinds
    assert {note.text: note.count for note in report.notes} == notes


def test_a_note_has_its_place_and_is_made_by_the_async_check_alone():
    array = np.zeros(256, np.uint32)
    ptx = kernel(COPY.replace("cp.async.cg", ".loc 1 7 0\ncp.async.cg")) + '.file 1 "copies.cu"\n'
    (note,) = warpsan.launch(ptx, "k", 1, 64, [array]).notes
    assert note.message.startswith(f"threads end without a wait for what they copied by {ONE} at copies.cu:7, PTX line")
    assert note.source == "copies.cu:7"
    assert warpsan.launch(ptx, "k", 1, 64, [array], checks=("race", "memory")).notes == ()
