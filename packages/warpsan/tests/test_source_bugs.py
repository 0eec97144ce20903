"""Planted bugs are reported with the right kind, and correct programs without any, in every schedule."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import warpsan
from source_bugs import BUGS, Edit
from source_programs import DEVICE, PROGRAMS, Program
from warpsan.build.builder import build
from warpsan.build.source import Module
from warpsan.planting import replace_once

MODES = list(product(("lockstep", "forward", "reverse", "random"), ("late", "early")))
STRICT = (*warpsan.CHECKS, "strict")
MAX_STEPS = 2_000
"""Maximum steps; the longest program takes 163."""


def compiled(source: str) -> str:
    return build(Module("program.cu", source, "entry", include_dirs=(DEVICE,))).ptx.decode()


def findings(ptx: str, program: Program, *, dynamic_smem: int | None = None, **options) -> dict[str, str]:
    """Messages of one run by kind; ``wrong`` for an unexpected result."""
    given = np.random.default_rng(program.n).integers(0, 1 << 32, program.n, dtype=np.uint32)
    out = np.full(program.n, 0xFFFFFFFF, np.uint32)
    smem = program.dynamic_smem if dynamic_smem is None else dynamic_smem
    arguments = [given.copy(), out, program.n]
    try:
        report = warpsan.launch(
            ptx, "entry", program.grid, program.block, arguments, dynamic_smem=smem, max_steps=MAX_STEPS, **options
        )
    except warpsan.Deadlock as error:
        return {"deadlock": str(error)}
    except warpsan.StepLimit as error:
        return {"endless": str(error)}
    found = {hazard.kind: hazard.message for hazard in report.hazards}
    if not np.array_equal(out, program.expected(given)):
        found["wrong"] = "the result is not the expected one"
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_unbroken_program_is_right_and_clean_in_every_mode(name: str) -> None:
    program = PROGRAMS[name]
    ptx = compiled(program.source)
    for schedule, async_mode in MODES:
        found = findings(ptx, program, schedule=schedule, async_mode=async_mode, checks=STRICT)
        assert found == {}, f"{schedule}, {async_mode}"


@pytest.mark.sample(14)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.program}: {bug.name}")
def test_the_bug_is_flagged(bug: Edit) -> None:
    program = PROGRAMS[bug.program]
    ptx = compiled(replace_once(program.source, *bug.edits, where=bug.program))
    checks = STRICT if bug.strict else warpsan.CHECKS
    in_lockstep = findings(ptx, program, dynamic_smem=bug.dynamic_smem, checks=checks)
    assert bug.kind in in_lockstep, in_lockstep
    assert bug.kind == "wrong" or any(
        place in in_lockstep[bug.kind] for place in ("program.cu:", "sm80.cuh:", "PTX line")
    )
    # The other modes may report it in another way, but must not hide it.
    for schedule, async_mode in [] if bug.some_orders_only else MODES[1:]:
        found = findings(
            ptx, program, dynamic_smem=bug.dynamic_smem, schedule=schedule, async_mode=async_mode, checks=checks
        )
        assert found, f"{schedule}, {async_mode}"


def test_there_are_enough() -> None:
    assert len(BUGS) >= 40
    assert {bug.kind for bug in BUGS} >= {"race", "lane-race", "async", "out-of-bounds", "misaligned", "uninitialised"}
