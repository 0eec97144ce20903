"""Delete each synchronisation instruction of a PTX file in turn, and run it by its launch file: the campaign
``deletion`` for kernels that are not shipped, such as those that ``sdpalab capture`` writes.

Only instructions that the launches execute are deleted. The first hazard, a deadlock, an endless loop, or a buffer with
other content than the launch file expects kills a mutant.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from sdpalab.campaigns.deletion_sites import Site, is_synchronisation, reason_of, without
from sdpalab.errors import UserError
from warpsan import Deadlock, Report, SimError, StepLimit
from warpsan.ptx import parse
from warpsan.sanitize import Modes, PtxCase, read_case

__all__ = ["case_deletions", "executed_sites"]

_STEPS = 10
"""A mutant that takes more than this multiple of the original's steps counts as an endless loop."""


def executed_sites(case: PtxCase, max_steps: int) -> tuple[list[Site], int]:
    """The synchronisation instructions that the launches of a case execute, and the most steps that one launch takes.

    Raises
    ------
    UserError
        If the case is not clean itself.
    """
    text, lines, frames = case.ptx, set[int](), dict[int, tuple[str, ...]]()
    steps = 0
    for launch in case.launches.launches:
        if launch.ptx is not None:
            raise UserError(f"{case.name}: its launches are of several PTX files, and only one is changed")

    def launched(report: Report) -> None:
        nonlocal steps
        assert report.counters is not None
        steps = max(steps, report.steps)
        for each in report.counters.by_instruction:
            if each.warps:
                lines.add(each.ptx_line)
                frames[each.ptx_line] = each.frames

    try:
        wrong = case.run(launched, checks=(), counters=True, max_steps=max_steps)
    except SimError as error:
        raise UserError(f"{case.name} does not run on the simulator: {error}") from None
    if wrong:
        raise UserError(f"{case.name} is not right itself: {wrong[0]}")
    module, listed = parse(text), dict[tuple[int, str], Site]()
    for entry in {case.entry_of(launch) for launch in case.launches.launches}:
        for instruction in module.entries[resolved(entry, module.entries)].instructions:
            if instruction.line in lines and is_synchronisation(instruction):
                places = [place.rpartition(":")[0] for place in frames[instruction.line]] or [""]
                site = Site(instruction.text, instruction.line, places[0], " < ".join(places[1:]))
                listed[site.ptx_line, site.opcode] = site
    return [listed[place] for place in sorted(listed)], steps


def resolved(name: str, entries: Sequence[str] | dict[str, Any]) -> str:
    """The mangled name of an entry."""
    from warpsan.ptx import resolve

    return resolve(name, entries, "entry")


def case_deletions(path: Path, modes: Modes, reasons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All mutants of a PTX file with its launch file beside it, as a record. The runs are strict if the modes are and
    the original is clean in strict runs.

    Raises
    ------
    UserError
        If one of them cannot be read, or the case is not clean itself.
    """
    case = read_case(path, path.with_suffix(".json"))
    listed, steps = executed_sites(case, modes.max_steps)
    limited = replace(modes, max_steps=max(_STEPS * steps, 100_000))
    kill = _verdict(case, limited)
    if kill is not None and limited.strict:
        limited = replace(limited, strict=False)
        kill = _verdict(case, limited)
    if kill is not None:
        raise UserError(f"{case.name} is not clean itself: {kill[0]} ({kill[1]})")
    mutants: list[dict[str, Any]] = []
    excuses = [dict(entry) for entry in reasons]
    for site in listed:
        kill = _verdict(replace(case, ptx=without(case.ptx, site)), limited)
        mutant = {"opcode": site.opcode, "ptx_line": site.ptx_line, "source": site.source, "text": site.source_text}
        if kill is not None:
            mutants.append({**mutant, "killed_by": kill[0], "run": kill[1]})
        else:
            mutants.append({**mutant, "killed_by": None, "reason": reason_of(path.stem, site, excuses)})
    return {
        "subject": path.stem,
        "configurations": list(case.entries),
        "arch": parse(case.ptx).target,
        "ptx_sha256": [sha256(case.ptx.encode()).hexdigest()],
        "problems": [],
        "strict": limited.strict,
        "mutants": mutants,
    }


def _verdict(case: PtxCase, modes: Modes) -> tuple[str, str] | None:
    """The kind of the kill and the run, or None."""
    for options in _runs(modes, "async" in case.ptx):
        kind = _killed_by(case, options)
        if kind:
            return kind, f"{options['schedule']}, {options['async_mode']}"
    return None


def _runs(modes: Modes, asynchronous: bool) -> Iterator[dict[str, Any]]:
    """The options of all runs, lockstep in the late mode first."""
    runs = list(modes.options(asynchronous))
    yield from sorted(runs, key=lambda each: (each["schedule"], each["async_mode"]) != ("lockstep", "late"))


def _killed_by(case: PtxCase, options: dict[str, Any]) -> str:
    kinds: list[str] = []

    def launched(report: Report) -> None:
        kinds.extend(hazard.kind for hazard in report.hazards)

    gc.collect()  # each run has a device of its own, whose streams refer to each other
    try:
        wrong = case.run(launched, **options)
    except SimError as error:
        if isinstance(error, Deadlock | StepLimit):
            end = "deadlock" if isinstance(error, Deadlock) else "endless"
        else:
            end = type(error).__name__
        return next((hazard.kind for hazard in error.hazards), kinds[0] if kinds else end)
    return kinds[0] if kinds else "wrong output" if wrong else ""
