"""Outcomes of launches as JSON values, for records (``recorded.py``)."""

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
    """Hazards without data that depend on thread order: addresses, counts, and first threads."""
    return sorted(
        {f"{each.kind} at {each.pc}{f' with {each.other.pc}' if each.other else ''}: {each.advice}" for each in hazards}
    )


def placed(hazards: Iterable[Hazard]) -> list[str]:
    """Hazards with all data except the number of lanes."""
    lines = []
    for each in hazards:
        other = f" with {each.other}" if each.other else ""
        lines.append(f"{each.kind} at {each.pc} by {each.block} {each.thread}{other}: {each.advice}")
    return lines


def described(report: Report, code: Entry, memory: Sequence[Any], *, wholly: bool) -> dict[str, Any]:
    """Outcome of a launch: its hazards, or without any the final memory; counters and output. ``wholly``: both, and the
    threads of the hazards.

    The number of iterations of a polling loop depends on the thread order, and is omitted.
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
    """Counters of a launch: sums, and a digest of all counts."""
    values = dataclasses.asdict(counters)
    for each in values["by_instruction"]:
        del each["source"], each["frames"]  # paths of this machine
    whole = {name: value for name, value in values.items() if isinstance(value, int)}
    return whole | {"all": sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]}


def checking(check: Callable[[Any], None], execute: Callable[..., Any], *, wholly: bool) -> Callable[..., Any]:
    """``warpsan.launch.execute`` that passes each outcome to ``check``."""

    def checked(text: str, entry: str, grid: Any, block: Any, args: Any, arena: Arena, *rest: Any, **more: Any) -> Any:
        try:
            done = execute(text, entry, grid, block, args, arena, *rest, **more)
        except SimError as error:
            value: dict[str, Any] = {"error": f"{type(error).__name__}: {error}".split("; before that")[0]}
            check(value | ({"hazards": (placed if wholly else alike)(error.hazards)} if error.hazards else {}))
            raise
        check(described(done.report, done.code, _memory(arena), wholly=wholly))
        return done

    return checked


def _memory(arena: Arena) -> list[Any]:
    """The caller's arrays that a launch may have changed; for a device, all of its memory."""
    arrays = [array for array, _ in arena._arrays]
    if arena.memory is not None:
        arrays += [arena.memory[each.begin : each.end] for each in arena.extents]
    return arrays
