"""Runs launches on both engines and compares them: memory bit for bit, hazards, what each block counted, what was
printed (in any order of the warps).

    with differential() as outcomes:
        sim.launch(...)
    assert outcomes == [""]

Within the context every launch that native code takes is run by the reference engine as well, from the same memory, and
a difference raises AssertionError. An outcome is empty, or says why a launch was left to the reference engine.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from sdpalab.sim.checks.global_history import GlobalHistory
from sdpalab.sim.errors import SimError
from sdpalab.sim.hazard_log import HazardLog
from sdpalab.sim.memory import Space
from sdpalab.sim.native.engine import run
from sdpalab.sim.polling import polling_loops
from sdpalab.sim.setup import Chunks, Setup
from sdpalab.sim.tally import Tally
from sdpalab.sim.touched import Touched

__all__ = ["differential"]

_LAUNCH = importlib.import_module("sdpalab.sim.launch")


@contextmanager
def differential() -> Iterator[list[str]]:
    """Compare all launches in this context; the outcome of each."""
    outcomes: list[str] = []

    def both(
        setup: Setup,
        space: Space,
        tally: Tally,
        workers: int | None = None,
        touched: list[Touched] | None = None,
        printed: list[str] | None = None,
    ) -> str:
        reference = Space("global", len(space.data), len(space.data), list(space.extents), space.data.copy())
        heap, counts, texts = copy.deepcopy(setup.heap), copy.deepcopy(tally), list[str]()
        why = run(setup, space, tally, workers, touched, texts)
        outcomes.append(why)
        if printed is not None:
            printed += texts
        if not why:
            _compare(replace(setup, heap=heap), reference, space, counts, tally, texts)
        return why

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SDPALAB_SIM_ENGINE", "native")
        patch.setattr(_LAUNCH, "run_native", both)
        yield outcomes


def _compare(setup: Setup, reference: Space, space: Space, counts: Tally, tally: Tally, printed: Sequence[str]) -> None:
    """Run the reference engine on the memory as it was before, and compare what both left."""
    log, size = HazardLog(), len(space.data)
    history = GlobalHistory(setup.entry, size, setup.geometry.ctas) if "race" in setup.checks else None
    chunks = Chunks(setup, reference, counts, log, history)
    name = setup.entry.name
    for number in range(len(setup.chunks)):
        try:
            chunks.run(number)
        except SimError as error:
            raise AssertionError(f"{name}: the reference engine raises {error!r}") from error
    assert log.hazards() == [], f"{name}: the reference engine reports {log.hazards()[0].message}"
    assert sorted(printed) == sorted(chunks.printed)
    mine, other = space.data.view(np.uint32), reference.data.view(np.uint32)
    places = np.flatnonzero(mine != other)
    pairs = [(f"{4 * at:#x}", f"{mine[at]:#x}", f"{other[at]:#x}") for at in places[:8]]
    assert not pairs, f"{name}: {len(places)} words differ (where, native, reference): {pairs}"
    # How often warps run a block may depend on the order of the warps, and shows in counters only; how often a polling
    # loop turns depends on it, too.
    polling = sorted(polling_loops(setup.entry, setup.program).blocks)
    tally.lanes[polling] = counts.lanes[polling]
    for each in (
        "lanes",
        "unwaited",
        *(("warps", "sectors", "wavefronts", "touched", "issued", "by_warp") * setup.counters),
    ):
        mine, other = getattr(tally, each), getattr(counts, each)
        np.testing.assert_array_equal(mine, other, err_msg=f"{name}: {each}")
