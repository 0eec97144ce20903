"""Hazards as plain data, and groups of them: one per kind and pair of source lines.

One error in the source appears at many instructions (unrolled loops, inlined functions) and in many runs. A report
shows it once, with both lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from warpsan import ConflictingAccess, Deadlock, Hazard, KernelTrap, SimError, StepLimit
from warpsan.report.hazards import KINDS
from warpsan.report.source_text import Sources, split_place

__all__ = ["ALL_KINDS", "ENDINGS", "HazardGroup", "Party", "SanitizedHazard", "ending", "group", "merge"]

ENDINGS: dict[type[SimError], str] = {Deadlock: "deadlock", StepLimit: "endless", KernelTrap: "trap"}
"""Hazard kinds of the errors that end a launch."""

ALL_KINDS = KINDS | set(ENDINGS.values()) | {"result"}
"""All hazard kinds of a report."""

_PLACE = re.compile(r"PTX line (\d+)(?: \(([^)]+:\d+)\))?")
_CAUSES = frozenset({"barrier", "divergent", "deadlock", "out-of-bounds", "misaligned", "tensor-map", "mbarrier"})
"""Hazard kinds that cause other hazards."""
_FOLLOWS = frozenset({"uninitialised"})
"""Hazard kinds caused by others, such as an undefined read after a missing barrier."""
_KNOWN_TO_SAY = {
    "deadlock": "usually a barrier in a branch that not all threads take, or a wrong number of threads",
    "endless": "usually a loop whose condition never changes, or a wait for what never comes",
}


@dataclass(frozen=True)
class SanitizedHazard:
    """A hazard at one instruction, over all runs.

    Attributes
    ----------
    kind : str
        Kind from the simulator, from the end of a launch (``deadlock``, ``endless`` or ``trap``), or ``result``: a
        buffer differs from its expected value.
    message : str
        One sentence with both accesses, their lines, and the probable missing synchronization.
    ptx : str
        Name of the PTX.
    ptx_line : int
        From 1; 0 if unknown.
    source : str
        ``file:line`` of the CUDA source, or empty.
    block, thread : (int, int, int), optional
        First block and thread.
    runs : tuple of str
        Runs with the hazard, such as ``1x1x64x64, reverse, late``.
    other : ConflictingAccess, optional
        The conflicting access: instruction and lines, and block, warp and thread if known.
    text, what, advice, frames
        As in :class:`warpsan.Hazard`.
    """

    kind: str
    message: str
    ptx: str
    ptx_line: int
    source: str
    block: tuple[int, int, int] | None
    thread: tuple[int, int, int] | None
    runs: tuple[str, ...]
    other: ConflictingAccess | None = None
    text: str = ""
    what: str = ""
    advice: str = ""
    frames: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SanitizedHazard:
        """Inverse of :meth:`to_dict`, also after JSON."""
        place = {name: tuple(data[name]) if data[name] else None for name in ("block", "thread")}
        lists = {name: tuple(data[name]) for name in ("runs", "frames")}
        other: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in (data["other"] or {}).items()
        }
        return cls(**{**data, **place, **lists, "other": ConflictingAccess(**other) if other else None})

    @classmethod
    def of(cls, hazard: Hazard, ptx: str, run: str) -> SanitizedHazard:
        """The hazard of one launch, with ``ptx`` as the name of the PTX."""
        of_kernel = hazard.pc >= 0  # host operations have no thread
        block, thread = (hazard.block, hazard.thread) if of_kernel else (None, None)
        place = hazard.ptx_line, hazard.source, block, thread, (run,), hazard.other
        return cls(hazard.kind, hazard.message, ptx, *place, hazard.text, hazard.what, hazard.advice, hazard.frames)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def ending(error: SimError, ptx: str, run: str) -> SanitizedHazard:
    """The hazard of an error that ends a launch (:data:`ENDINGS`)."""
    kind = next(kind for each, kind in ENDINGS.items() if isinstance(error, each))
    match = _PLACE.search(str(error))
    line, source = (int(match[1]), match[2] or "") if match else (0, "")
    message, advice = f"{kind}: {error}", _KNOWN_TO_SAY.get(kind, "")
    return SanitizedHazard(kind, message, ptx, line, source, None, None, (run,), what=str(error), advice=advice)


@dataclass(frozen=True)
class Party:
    """One access of a hazard.

    Attributes
    ----------
    place : str
        ``file:line`` of the source, or of the PTX without line information.
    column : int
        From 1; 0 if unknown.
    line : str
        Text of the source line, or empty.
    text : str
        Opcode with modifiers.
    who : str
        First thread or warp that executed it, with its block, or empty.
    frames : tuple of str
        ``file:line:column`` of the instruction and of the calls that inlined it, innermost first.
    """

    place: str
    column: int = 0
    line: str = ""
    text: str = ""
    who: str = ""
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class HazardGroup:
    """All hazards of one kind between two source lines.

    Attributes
    ----------
    kind, message, what, advice : str
        From the first hazard; ``{other}`` in ``what`` stands for the conflicting access.
    here : Party
    other : Party, optional
        The conflicting access.
    instructions : tuple of str
        Instructions with the hazard, as ``flash.ptx:120``.
    runs : tuple of str
        Runs or cases with the hazard.
    suppressed : str
        Reason for suppression (:mod:`warpsan.report.suppressions`), or empty.
    """

    kind: str
    message: str
    what: str
    advice: str
    here: Party
    other: Party | None
    instructions: tuple[str, ...]
    runs: tuple[str, ...]
    suppressed: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        """The source line, or both source lines."""
        return (self.here.place, self.other.place) if self.other else (self.here.place,)

    @property
    def key(self) -> tuple[str, ...]:
        """Group key: the kind, and the pair of lines in either order."""
        return (self.kind, *sorted(self.places))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HazardGroup:
        """Inverse of :meth:`to_dict`."""
        fields = {**data, "instructions": tuple(data["instructions"]), "runs": tuple(data["runs"])}
        fields["here"] = _party_from(data["here"])
        fields["other"] = _party_from(data["other"]) if data["other"] else None
        return cls(**fields)


def _party_from(data: Mapping[str, Any]) -> Party:
    return Party(**{**data, "frames": tuple(data["frames"])})


def group(hazards: Iterable[SanitizedHazard], sources: Sources) -> tuple[HazardGroup, ...]:
    """Group hazards (:func:`merge`), with their source lines."""
    return merge(_alone(hazard, sources) for hazard in hazards)


def merge(groups: Iterable[HazardGroup]) -> tuple[HazardGroup, ...]:
    """Merge groups with equal keys; causes come before their consequences, then most frequent first.

    A race between lanes joins the group of a race between warps at the same two lines: a barrier between the warps also
    orders their lanes.
    """
    merged: dict[tuple[str, ...], HazardGroup] = {}
    for each in groups:
        _join(merged, each.key, each)
    for kind, *places in list(merged):
        if kind == "lane-race" and ("race", *places) in merged:
            _join(merged, ("race", *places), merged.pop((kind, *places)))

    def order(one: HazardGroup) -> tuple[Any, ...]:
        return one.kind in _FOLLOWS, -len(one.runs), one.kind not in _CAUSES, *split_place(one.here.place), one.kind

    return tuple(sorted(merged.values(), key=order))


def _join(merged: dict[tuple[str, ...], HazardGroup], key: tuple[str, ...], group: HazardGroup) -> None:
    known = merged.setdefault(key, group)
    merged[key] = replace(
        known,
        instructions=tuple(dict.fromkeys((*known.instructions, *group.instructions))),
        runs=tuple(dict.fromkeys((*known.runs, *group.runs))),
    )


def _alone(hazard: SanitizedHazard, sources: Sources) -> HazardGroup:
    """The group of one hazard."""
    who = f"thread {hazard.thread} of block {hazard.block}" if hazard.thread else ""
    here = _party(hazard.frames, hazard.source, hazard.ptx, hazard.ptx_line, hazard.text, who, sources)
    other = None
    if hazard.other is not None:
        rival = hazard.other
        actor = f"thread {rival.thread}" if rival.thread else "" if rival.warp is None else f"warp {rival.warp}"
        block = f"block {rival.block}" if rival.block else ""
        who = ", ".join(filter(None, (" of ".join(filter(None, (actor, block))), rival.note)))
        other = _party(rival.frames, rival.source, hazard.ptx, rival.ptx_line, rival.text, who, sources)
    instructions = (f"{hazard.ptx}:{hazard.ptx_line}",)
    about = hazard.what or hazard.message.removeprefix(f"{hazard.kind}: ")
    return HazardGroup(hazard.kind, hazard.message, about, hazard.advice, here, other, instructions, hazard.runs)


def _party(frames: Sequence[str], source: str, ptx: str, ptx_line: int, text: str, who: str, sources: Sources) -> Party:
    """The party at the innermost informative line; instruction wrappers and CUDA's headers are skipped."""
    chosen = sources.innermost(frames)
    place, _, column = chosen.rpartition(":")
    if not chosen:
        place, column = source or f"{ptx}:{ptx_line}", "0"
    return Party(place, int(column), sources.line(place), text, who, tuple(frames))
