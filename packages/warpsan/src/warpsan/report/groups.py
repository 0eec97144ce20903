"""Hazards as plain data, and their groups: one for each kind and pair of source lines.

One mistake in the source shows at many instructions (loops are unrolled, functions inlined) and in many runs. A report
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
"""Errors of the kernel that end a launch, and the kind of hazard that it is."""

ALL_KINDS = KINDS | set(ENDINGS.values()) | {"result"}
"""Every kind of hazard that a report has."""

_PLACE = re.compile(r"PTX line (\d+)(?: \(([^)]+:\d+)\))?")
_CAUSES = frozenset({"barrier", "divergent", "deadlock", "out-of-bounds", "misaligned", "tensor-map", "mbarrier"})
"""Kinds that other hazards follow from."""
_FOLLOWS = frozenset({"uninitialised"})
"""Kinds that follow from others, as a read follows from a barrier that is not there."""
_KNOWN_TO_SAY = {
    "deadlock": "usually a barrier in a branch that not all threads take, or a wrong number of threads",
    "endless": "usually a loop whose condition never changes, or a wait for what never comes",
}


@dataclass(frozen=True)
class SanitizedHazard:
    """One hazard at one instruction, wherever it was seen.

    Attributes
    ----------
    kind : str
        The simulator's, or what ended a launch (``deadlock``, ``endless`` or ``trap``), or ``result``: a buffer is not
        as expected.
    message : str
        One sentence with both accesses, their lines, and what is usually missing.
    ptx : str
        Name of the PTX.
    ptx_line : int
        From 1; 0 if the simulator does not name one.
    source : str
        ``file:line`` of the CUDA source, or empty.
    block, thread : (int, int, int), optional
        The first that showed it.
    runs : tuple of str
        The runs that showed it, such as ``1x1x64x64, reverse, late``.
    other : ConflictingAccess, optional
        The conflicting access: its instruction and lines, and its block, warp and thread where they are known.
    text, what, advice, frames
        As those of :class:`warpsan.Hazard`.
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
        """What :meth:`to_dict` was of, also after a way through JSON."""
        place = {name: tuple(data[name]) if data[name] else None for name in ("block", "thread")}
        lists = {name: tuple(data[name]) for name in ("runs", "frames")}
        other: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in (data["other"] or {}).items()
        }
        return cls(**{**data, **place, **lists, "other": ConflictingAccess(**other) if other else None})

    @classmethod
    def of(cls, hazard: Hazard, ptx: str, run: str) -> SanitizedHazard:
        """What one launch of the PTX called ``ptx`` has shown in a run."""
        of_kernel = hazard.pc >= 0  # what the host issued has no thread
        block, thread = (hazard.block, hazard.thread) if of_kernel else (None, None)
        place = hazard.ptx_line, hazard.source, block, thread, (run,), hazard.other
        return cls(hazard.kind, hazard.message, ptx, *place, hazard.text, hazard.what, hazard.advice, hazard.frames)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def ending(error: SimError, ptx: str, run: str) -> SanitizedHazard:
    """The hazard that an error is which ends a launch (:data:`ENDINGS`)."""
    kind = next(kind for each, kind in ENDINGS.items() if isinstance(error, each))
    match = _PLACE.search(str(error))
    line, source = (int(match[1]), match[2] or "") if match else (0, "")
    message, advice = f"{kind}: {error}", _KNOWN_TO_SAY.get(kind, "")
    return SanitizedHazard(kind, message, ptx, line, source, None, None, (run,), what=str(error), advice=advice)


@dataclass(frozen=True)
class Party:
    """One of the two accesses of a hazard, or the only one.

    Attributes
    ----------
    place : str
        ``file:line``, of the PTX where there is no other.
    column : int
        From 1; 0 where it is not known.
    line : str
        The source line, or empty.
    text : str
        The opcode with its modifiers.
    who : str
        The thread or the warp that executed it first, with its block, or empty.
    frames : tuple of str
        ``file:line:column`` of the instruction and of the calls through which it was inlined, outwards.
    """

    place: str
    column: int = 0
    line: str = ""
    text: str = ""
    who: str = ""
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class HazardGroup:
    """All hazards of one kind between the same two source lines.

    Attributes
    ----------
    kind, message, what, advice : str
        Of the first of them; in ``what``, ``{other}`` stands for the conflicting access.
    here : Party
    other : Party, optional
        The conflicting access.
    instructions : tuple of str
        The instructions that showed it, as ``flash.ptx:120``.
    runs : tuple of str
        The runs, or the cases, that showed it.
    suppressed : str
        Why it does not count (:mod:`warpsan.report.suppressions`), or empty.
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
        """The line, or both lines."""
        return (self.here.place, self.other.place) if self.other else (self.here.place,)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes hazards one group: the kind, and the pair of lines in either order."""
        return (self.kind, *sorted(self.places))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HazardGroup:
        """The inverse of :meth:`to_dict`."""
        fields = {**data, "instructions": tuple(data["instructions"]), "runs": tuple(data["runs"])}
        fields["here"] = _party_from(data["here"])
        fields["other"] = _party_from(data["other"]) if data["other"] else None
        return cls(**fields)


def _party_from(data: Mapping[str, Any]) -> Party:
    return Party(**{**data, "frames": tuple(data["frames"])})


def group(hazards: Iterable[SanitizedHazard], sources: Sources) -> tuple[HazardGroup, ...]:
    """The groups of hazards (:func:`merge`), with their source lines."""
    return merge(_alone(hazard, sources) for hazard in hazards)


def merge(groups: Iterable[HazardGroup]) -> tuple[HazardGroup, ...]:
    """Groups of one key put together; causes before what follows from them, and those first that most runs show.

    A race between lanes at two lines at which warps race, too, joins that group: the barrier that orders warps orders
    their lanes.
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
    """A party at the innermost line that says something: wrappers of one instruction and CUDA's headers do not."""
    chosen = sources.innermost(frames)
    place, _, column = chosen.rpartition(":")
    if not chosen:
        place, column = source or f"{ptx}:{ptx_line}", "0"
    return Party(place, int(column), sources.line(place), text, who, tuple(frames))
