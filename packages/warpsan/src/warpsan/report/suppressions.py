"""Suppressions: hazards that the author of a kernel accepts, each with a reason.

In the source, on the line of either access or on a line of its own before it::

    counter[0] = 1;  // warpsan: suppress race: every thread writes the same value

Or in a file with one suppression per line, for sources that cannot be changed; ``*`` matches anything::

    # kind, place, perhaps the place of the conflicting access: reason
    race my.cu:120 my.cu:96: every thread writes the same value

Suppressed hazards are still found, and written to JSON and SARIF with their reason; they do not fail the outcome. The
judge ignores suppressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from warpsan.errors import UserError
from warpsan.report.groups import ALL_KINDS, HazardGroup
from warpsan.report.source_text import Sources

__all__ = ["Suppression", "read_suppressions", "suppress", "suppressions_in"]

_COMMENT = re.compile(r"(?P<code>.*?)(?://|#|/\*)\s*(?:warpsan|sdpalab):\s*suppress\b(?P<rest>.*?)(?:\*/\s*)?$")
_FROM_COMMENT = re.compile(r"\s+(?P<kind>[\w*-]+)\s*:\s*(?P<reason>\S.*?)\s*$")
_FROM_FILE = re.compile(r"(?P<kind>\S+)\s+(?P<place>\S+?)(?:\s+(?P<other>\S+?))?:\s+(?P<reason>\S.*)$")


@dataclass(frozen=True)
class Suppression:
    """A suppression.

    Attributes
    ----------
    kind : str
        Kind of the hazards, or ``*``.
    places : tuple of str
        One or two patterns of ``file:line``, which must match different accesses.
    reason : str
    origin : str
        Its own location, as ``file:line``.
    """

    kind: str
    places: tuple[str, ...]
    reason: str
    origin: str

    def fits(self, group: HazardGroup) -> bool:
        """Whether the suppression matches a group."""
        if not fnmatchcase(group.kind, self.kind):
            return False
        if len(self.places) == 1:
            return any(fnmatchcase(place, self.places[0]) for place in group.places)
        pairs = (group.places, group.places[::-1])
        return len(group.places) == 2 and any(all(map(fnmatchcase, pair, self.places)) for pair in pairs)

    def __str__(self) -> str:
        return f"{self.origin}: {self.kind} {' '.join(self.places)}: {self.reason}"


def suppressions_in(sources: Sources) -> list[Suppression]:
    """The suppressions in comments of the available sources.

    Raises
    ------
    UserError
        If one has no reason, or an unknown hazard kind.
    """
    suppressions: list[Suppression] = []
    for name, text in sources.known().items():
        for number, line in enumerate(text.splitlines(), 1):
            comment = _COMMENT.match(line) if ": suppress" in line or ":suppress" in line else None
            if comment is None:
                continue
            origin, rest = f"{name}:{number}", _FROM_COMMENT.match(comment["rest"])
            if rest is None:
                raise UserError(f"{origin}: a suppression is written as: warpsan: suppress KIND: REASON")
            place = origin if comment["code"].strip() else f"{name}:{number + 1}"
            suppressions.append(_checked(Suppression(rest["kind"], (place,), rest["reason"], origin)))
    return suppressions


def read_suppressions(path: Path) -> list[Suppression]:
    """Read the suppressions in a file.

    Raises
    ------
    UserError
        If the file cannot be read, or a line is invalid; the message has the line.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"{path} cannot be read: {why}") from None
    suppressions: list[Suppression] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = _FROM_FILE.match(line.strip())
        if parts is None:
            raise UserError(f"{path}:{number}: a suppression is written as: KIND FILE:LINE [FILE:LINE]: REASON")
        places = tuple(filter(None, (parts["place"], parts["other"])))
        suppressions.append(_checked(Suppression(parts["kind"], places, parts["reason"], f"{path.name}:{number}")))
    return suppressions


def _checked(suppression: Suppression) -> Suppression:
    if not any(fnmatchcase(kind, suppression.kind) for kind in ALL_KINDS):
        raise UserError(
            f"{suppression.origin}: there is no kind of hazard {suppression.kind!r}; "
            f"there is: {', '.join(sorted(ALL_KINDS))}"
        )
    return suppression


def suppress(
    groups: Iterable[HazardGroup], suppressions: Sequence[Suppression]
) -> tuple[tuple[HazardGroup, ...], tuple[Suppression, ...]]:
    """The groups, with reasons in suppressed ones; and the suppressions without a match."""
    marked: list[HazardGroup] = []
    used: set[Suppression] = set()
    for each in groups:
        fitting = [suppression for suppression in suppressions if suppression.fits(each)]
        used.update(fitting)
        marked.append(replace(each, suppressed=fitting[0].reason) if fitting else each)
    return tuple(marked), tuple(one for one in suppressions if one not in used)
