"""Assembly and counting of a file with its launch file on the simulator, for the profile of any kernel."""

from __future__ import annotations

from collections.abc import Sequence

from sdpalab.compile.building import build_case
from sdpalab.kernels.plan import Buffer, LaunchPlan
from sdpalab.model.counted import CountedLaunch, CountedPlan
from warpsan import Report
from warpsan.profile import AccessRecorder
from warpsan.sanitize import PtxCase

__all__ = ["count_case"]


def count_case(case: PtxCase, *, watchers: Sequence[AccessRecorder] = ()) -> CountedPlan:
    """Assemble the PTX of each launch, run all launches on the simulator without checks, and count.

    The plan has the buffers of the launch file as inputs, and for each launch those in its arguments. The ``watchers``
    collect accesses (:func:`warpsan.launch`).

    Raises
    ------
    UserError
        If ptxas rejects the PTX, or a buffer cannot be created.
    MachineError
        Without ptxas or disassembler.
    warpsan.SimError
        If a launch does not complete.
    """
    reports: list[Report] = []
    _, sizes = case.run_all(reports.append, {"checks": (), "counters": True, "watchers": watchers})
    buffers = tuple(Buffer(name, (size,), "uint8", "in") for name, size in sizes.items())
    counted = []
    for each, report in zip(build_case(case), reports, strict=True):
        assert report.counters is not None, "counters were requested"
        counted.append(CountedLaunch(each.name, each.launch, each.build, each.resources, report.counters))
    return CountedPlan(LaunchPlan(buffers, tuple(each.launch for each in counted)), tuple(counted))
