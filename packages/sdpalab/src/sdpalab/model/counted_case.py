"""Assembly and counting of a file with its launch file on the simulator, for the profile of any kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sdpalab.compile import build, resources
from sdpalab.errors import UserError
from sdpalab.kernels.plan import Buffer, Launch, LaunchPlan, PtxSource
from sdpalab.model.counted import CountedLaunch, CountedPlan
from warpsan import Report
from warpsan.build import foreign
from warpsan.profile import AccessRecorder
from warpsan.ptx import parse, resolve, short_name
from warpsan.sanitize import PtxCase

__all__ = ["arch_of", "count_case"]

_TARGET = re.compile(r"^\s*\.target\s+(sm_\w+)", re.MULTILINE)


def arch_of(case: PtxCase) -> str:
    """The architecture in the PTX of all launches, such as ``sm_90a``.

    Raises
    ------
    UserError
        If one lacks an architecture, or they differ.
    """
    targets = set()
    for launch in case.launches.launches:
        target = _TARGET.search(case.text_of(launch))
        if target is None:
            raise UserError(f"{case.name_of(launch)} has no .target, so it cannot be assembled")
        targets.add(target[1])
    if len(targets) > 1:
        raise UserError(f"{case.name}: the launches are for several architectures: {', '.join(sorted(targets))}")
    return str(targets.pop())


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
    arch = arch_of(case)
    reports: list[Report] = []
    _, sizes = case.run_all(reports.append, {"checks": (), "counters": True, "watchers": watchers})
    buffers = tuple(Buffer(name, (size,), "uint8", "in") for name, size in sizes.items())
    counted = []
    for launch, report in zip(case.launches.launches, reports, strict=True):
        assert report.counters is not None, "counters were requested"
        ptx, entry = case.text_of(launch), case.entry_of(launch)
        mangled = resolve(entry, parse(ptx).entries, "entry")
        own = case.module if launch.ptx is None else None
        module = own or PtxSource(case.name_of(launch), ptx, mangled, arch, ptx.encode(), "")
        module = foreign(module, case.workshop) if case.workshop else module
        grid, block, cluster = launch.sizes
        described = Launch(
            *(grid, block, case.buffers_of(launch)),
            dynamic_smem=launch.dynamic_smem or 0,
            cluster=cluster,
            module=module,
        )
        built = replace(build(module, arch), entry=mangled)
        used = resources(built, described)
        counted.append(CountedLaunch(short_name(entry), described, built, used, report.counters))
    return CountedPlan(LaunchPlan(buffers, tuple(each.launch for each in counted)), tuple(counted))
