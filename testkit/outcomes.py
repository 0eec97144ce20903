"""The outcome of a launch as JSON values, to be recorded (``recorded.py``)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from warpsan import Report
from warpsan.analysis.polling import polling_loops
from warpsan.analysis.program import build_program
from warpsan.errors import SimError
from warpsan.host.arena import Arena
from warpsan.profile.counters import Counters
from warpsan.ptx.ir import Entry
from warpsan.report.hazards import Hazard

__all__ = ["alike", "checking", "counted", "described", "digest", "placed"]


def digest(*arrays: Any) -> str:
    """The bytes of arrays, in 16 hexadecimal digits."""
    sha = sha256()
    for array in arrays:
        raw = np.ascontiguousarray(array)
        sha.update(b"%d:" % raw.nbytes + raw.tobytes())
    return sha.hexdigest()[:16]


def alike(hazards: Iterable[Hazard]) -> list[str]:
    """What hazards are, without what depends on the order of threads: addresses, counts, and who was first."""
    return sorted(
        {f"{each.kind} at {each.pc}{f' with {each.other.pc}' if each.other else ''}: {each.advice}" for each in hazards}
    )


def placed(hazards: Iterable[Hazard]) -> list[str]:
    """Everything about hazards but how many lanes were there."""
    lines = []
    for each in hazards:
        other = f" with {each.other}" if each.other else ""
        lines.append(f"{each.kind} at {each.pc} by {each.block} {each.thread}{other}: {each.advice}")
    return lines


def described(report: Report, code: Entry, memory: Sequence[Any], *, wholly: bool) -> dict[str, Any]:
    """The outcome of a launch: its hazards, or if there are none what it left in memory; what it counted and printed.
    ``wholly``, both, and the threads that the hazards name.

    How often the threads turn in a polling loop depends on their order, and is left out.
    """
    value: dict[str, Any] = {}
    if report.hazards:
        value["hazards"] = (placed if wholly else alike)(report.hazards)
    if wholly or not report.hazards:
        value["memory"] = digest(*memory)
    if not polling_loops(code, build_program(code)).blocks:
        value["lane instructions"] = report.lane_instructions
    if report.printed:
        value["printed"] = digest(*(np.frombuffer(line.encode(), np.uint8) for line in sorted(report.printed)))
    if report.notes:
        value["notes"] = [f"{note.message} ({note.count})" for note in report.notes]
    if report.counters:
        value["counters"] = counted(report.counters)
    return value


def counted(counters: Counters) -> dict[str, Any]:
    """The counters of a launch: sums, and all of them in a digest."""
    values = dataclasses.asdict(counters)
    for each in values["by_instruction"]:
        del each["source"], each["frames"]  # they have paths of this machine
    whole = {name: value for name, value in values.items() if isinstance(value, int)}
    return whole | {"all": sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]}


def checking(check: Callable[[Any], None], execute: Callable[..., Any], *, wholly: bool) -> Callable[..., Any]:
    """``warpsan.launch.execute``, which gives each outcome to ``check``."""

    def checked(text: str, entry: str, grid: Any, block: Any, args: Any, arena: Arena, **options: Any) -> Any:
        try:
            done = execute(text, entry, grid, block, args, arena, **options)
        except SimError as error:
            value: dict[str, Any] = {"error": f"{type(error).__name__}: {error}".split("; before that")[0]}
            check(value | ({"hazards": (placed if wholly else alike)(error.hazards)} if error.hazards else {}))
            raise
        check(described(done.report, done.code, _memory(arena), wholly=wholly))
        return done

    return checked


def _memory(arena: Arena) -> list[Any]:
    """The caller's arrays that a launch may have changed; of a device, all that lies in its memory."""
    arrays = [array for array, _ in arena._arrays]
    if arena.memory is not None:
        arrays += [arena.memory[each.begin : each.end] for each in arena.extents]
    return arrays
