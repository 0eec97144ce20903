"""Source text in a report: listings whose lines carry notes, and excerpts with a caret under each access of a hazard.

``notes`` maps a line number to short texts that the report shows beside the line, such as hazards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sdpalab.evidence.records import AttemptRecord
from warpsan.report import HazardGroup, Party, split_place

__all__ = ["Excerpt", "SourceListing", "excerpts", "listings"]

CONTEXT = 2
"""Lines that an excerpt shows above and below its line."""


@dataclass(frozen=True)
class SourceListing:
    """One source file of an attempt, with notes to its lines.

    Attributes
    ----------
    path : str
        Path in the bundle.
    name : str
        File name in the line information of the PTX, without folders.
    anchor : str
        Anchor of the listing; line 12 is at ``ANCHOR-L12``.
    sha256 : str
        Digest of the file in the bundle.
    text : str
    notes : mapping of int to tuple of str
        Texts beside a line, by its number from 1.
    """

    path: str
    name: str
    anchor: str
    sha256: str
    text: str
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def lines(self) -> list[tuple[int, str, tuple[str, ...]]]:
        """Number, text and notes of each line."""
        return [(n, line, self.notes.get(n, ())) for n, line in enumerate(self.text.splitlines(), 1)]


@dataclass(frozen=True)
class Excerpt:
    """The line of one access with the lines around it.

    Attributes
    ----------
    place : str
        ``file:line``.
    href : str
        Anchor of the line in a listing; empty if the report has no listing of that file.
    before, after : sequence of (int, str)
        The lines around it, with their numbers.
    number : int
    line : str
        The line with tabs replaced, so that the caret is under its column.
    caret : int
        Spaces before the caret.
    who : str
        The instruction, and the thread or warp that executed it.
    """

    place: str
    href: str
    before: Sequence[tuple[int, str]]
    number: int
    line: str
    after: Sequence[tuple[int, str]]
    caret: int
    who: str


def listings(
    attempt: AttemptRecord, sources: Mapping[str, str], hazards: Sequence[HazardGroup], anchor: str
) -> tuple[SourceListing, ...]:
    """Sources of an attempt in a report: the files of a user's kernel, and every file with a hazard.

    Parameters
    ----------
    attempt : AttemptRecord
    sources : mapping of str to str
        Texts by their paths in the bundle.
    hazards : sequence of HazardGroup
    anchor : str
        Prefix of the anchors.
    """
    notes = _hazard_notes(hazards)
    digests = {path: digest for path, digest in sorted(attempt.sources.items()) if path in sources}
    names = {path.rpartition("/")[2] for path in digests}
    for build in attempt.builds:
        for name, digest in sorted(build.files.items()):
            path, short = f"{build.directory}/{name}", name.rpartition("/")[2]
            if path in sources and short in notes and short not in names:
                digests[path] = digest
                names.add(short)
    return tuple(
        SourceListing(
            path, short := path.rpartition("/")[2], f"{anchor}-{n}", digest, sources[path], notes.get(short, {})
        )
        for n, (path, digest) in enumerate(digests.items())
    )


def _hazard_notes(hazards: Sequence[HazardGroup]) -> dict[str, dict[int, tuple[str, ...]]]:
    """Kinds of the hazards by file and line, each with the conflicting line."""
    notes: dict[str, dict[int, tuple[str, ...]]] = {}
    for group in hazards:
        for place in dict.fromkeys(group.places):
            others = [f"with {split_place(other)[1]}" for other in group.places if other != place]
            name, number = split_place(place)
            lines = notes.setdefault(name, {})
            lines[number] = tuple(dict.fromkeys((*lines.get(number, ()), " ".join([group.kind, *others]))))
    return notes


def excerpts(group: HazardGroup, shown: Sequence[SourceListing]) -> tuple[Excerpt, ...]:
    """One excerpt per access of a hazard."""
    return tuple(_excerpt(party, shown) for party in (group.here, group.other) if party is not None)


def _excerpt(party: Party, shown: Sequence[SourceListing]) -> Excerpt:
    name, number = split_place(party.place)
    listing = next((each for each in shown if each.name == name), None)
    around = listing.text.splitlines() if listing else []
    if not (0 < number <= len(around) and around[number - 1] == party.line):
        listing, around = None, []  # file missing or of another version: show only the record's line
    line = party.line.replace("\t", " ")
    indent = len(line) - len(line.lstrip())
    caret = party.column - 1 if indent < party.column <= len(line) else indent
    calls = [frame.rpartition(":")[0] for frame in party.frames]
    outward = calls[calls.index(party.place) + 1 :] if party.place in calls else []
    who = ", ".join(filter(None, (party.text, party.who, f"called from {outward[-1]}" if outward else "")))
    first = max(0, number - 1 - CONTEXT)
    return Excerpt(
        place=party.place,
        href=f"{listing.anchor}-L{number}" if listing else "",
        before=[(n + 1, around[n]) for n in range(first, min(number - 1, len(around)))],
        number=number,
        line=line,
        after=[(n + 1, around[n]) for n in range(number, min(number + CONTEXT, len(around)))],
        caret=caret,
        who=who,
    )
