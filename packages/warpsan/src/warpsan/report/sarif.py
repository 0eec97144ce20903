"""Hazards as SARIF 2.1.0 (OASIS, "Static Analysis Results Interchange Format"), which CI displays beside the code.

There is one result per kind and pair of source lines (:mod:`warpsan.report.groups`), at the line of the first access.
Related locations are the conflicting access, the calls that inlined the code, and the first instruction in the PTX.
Without line information the location is in the PTX.

Source names are relative to ``root`` for files within it, and plain file names otherwise: the file contains no path of
this machine.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from warpsan.report.explanations import EXPLANATIONS, Explanation
from warpsan.report.groups import HazardGroup, Party
from warpsan.report.source_text import split_place
from warpsan.sanitize.sanitizer import Sanitized

__all__ = ["to_sarif"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(outcome: Sanitized, *, version: str, root: Path, directories: Iterable[Path] = ()) -> dict[str, Any]:
    """A SARIF log with one run.

    Parameters
    ----------
    outcome : Sanitized
    version : str
        Version of warpsan.
    root : Path
        Directory for relative paths in the file.
    directories : iterable of Path
        Search directories for CUDA sources and headers, by file name.
    """
    kinds = sorted({*EXPLANATIONS, *(group.kind for group in outcome.groups)})
    folders, seen = list(directories), Counter[str]()
    ordered = sorted(outcome.groups, key=lambda group: ([split_place(place) for place in group.places], group.kind))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "warpsan",
                        "version": version,
                        "rules": [_rule(kind) for kind in kinds],
                    }
                },
                "columnKind": "utf16CodeUnits",
                "properties": {"target": outcome.target, "config": outcome.config, "device": outcome.device},
                "results": [_result(group, kinds.index(group.kind), root, folders, seen) for group in ordered],
            }
        ],
    }


def _rule(kind: str) -> dict[str, Any]:
    unknown = Explanation(f"A check reports {kind}", "The message says what is missing.", "")
    title, help_text = (each := EXPLANATIONS.get(kind, unknown)).title, each.text
    return {
        "id": kind,
        "name": "".join(part.capitalize() for part in kind.split("-")),
        "shortDescription": {"text": title},
        "fullDescription": {"text": f"{title}. {help_text}"},
        "help": {"text": help_text},
        "defaultConfiguration": {"level": "error"},
    }


def _result(group: HazardGroup, rule: int, root: Path, folders: Sequence[Path], seen: Counter[str]) -> dict[str, Any]:
    places = _places(group.here, group.instructions[0], "", root, folders)
    if group.other is not None:
        who = f"the conflicting access, {group.other.text}, "
        places += _places(group.other, "", who, root, folders)
    result: dict[str, Any] = {
        "ruleId": group.kind,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": group.message},
        "locations": places[:1],
        "partialFingerprints": {"kindAndLines/v2": _fingerprint(group, seen)},
        "properties": {"runs": list(group.runs), "instructions": list(group.instructions)},
    }
    if places[1:]:
        result["relatedLocations"] = [{"id": number, **place} for number, place in enumerate(places[1:], 1)]
    if group.suppressed:
        result["suppressions"] = [{"kind": "inSource", "status": "accepted", "justification": group.suppressed}]
    return result


def _fingerprint(group: HazardGroup, seen: Counter[str]) -> str:
    """A digest of the kind and the text of the lines, independent of line numbers, which change with edits elsewhere.

    Groups with the same text are numbered in source order.
    """
    parties = (group.here, *([group.other] if group.other else []))
    lines = [f"{party.place.rpartition(':')[0]}: {' '.join(party.line.split()) or party.place}" for party in parties]
    text = "\n".join((group.kind, *sorted(lines)))
    seen[text] += 1
    return hashlib.sha256(f"{text}\n{seen[text]}".encode()).hexdigest()


def _places(party: Party, ptx: str, who: str, root: Path, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Locations of an access: source line, inlining calls, and the instruction in the PTX if it has a source line."""
    places = [(party.place, 0 if party.place == ptx else party.column, f"{who}in the source")]
    for frame in party.frames:
        place, _, column = frame.rpartition(":")
        if place != party.place:
            places.append((place, int(column), f"{who}inlined from or called at"))
    if ptx and ptx != party.place:
        places.append((ptx, 0, "in the PTX"))
    located = [(*split_place(place), column, what) for place, column, what in places]
    return [_location(_uri(name, root, folders), line, column, what) for name, line, column, what in located if name]


def _location(uri: str, line: int, column: int, what: str) -> dict[str, Any]:
    region = {"startLine": max(1, line), **({"startColumn": column} if column else {})}
    return {
        "physicalLocation": {"artifactLocation": {"uri": uri}, "region": region},
        "message": {"text": what},
    }


def _uri(name: str, root: Path, folders: Sequence[Path]) -> str:
    """Path of a source relative to ``root`` if found there, otherwise its file name."""
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(root.resolve()):
            return path.relative_to(root.resolve()).as_posix()
    return name
