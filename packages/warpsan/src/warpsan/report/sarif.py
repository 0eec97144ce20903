"""Hazards as SARIF 2.1.0 (OASIS, "Static Analysis Results Interchange Format"), shown by CI beside the code.

There is one result for each kind and pair of source lines (:mod:`warpsan.report.groups`), at the line of the first
access. The conflicting access, the calls through which the code was inlined and the first instruction in the PTX are
related locations. Without line information the result lies in the PTX.

Sources within ``root`` are named relative to it; others by their file name alone, so that no path of this
machine is in the file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from warpsan.report.groups import HazardGroup, Party
from warpsan.report.source_text import split_place
from warpsan.sanitize.sanitizer import Sanitized

__all__ = ["RULES", "to_sarif"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

RULES: dict[str, tuple[str, str]] = {
    "async": (
        "An asynchronous operation in flight is disturbed",
        "A thread reads what a copy in flight still writes, or overwrites what it still reads. Wait for the group "
        "(cp.async.wait_group, counted from the newest) before the access, and check which copies the group holds.",
    ),
    "barrier": (
        "A CTA barrier is misused",
        "All arrivals at a barrier in one phase must name the same number of threads: a multiple of 32, and no more "
        "than arrive. All threads of a warp arrive by the same instruction, once. A reduction needs its own barrier.",
    ),
    "cluster": (
        "Another block of the cluster may have exited",
        "Its shared memory is gone when it exits. Put a barrier.cluster between the last access to it and the exit of "
        "the block that owns it.",
    ),
    "deadlock": (
        "Threads wait for an event that cannot happen",
        "A barrier expects more threads than can still arrive: its count is wrong, some threads wait at another "
        "barrier, or it stands in a branch that not all take.",
    ),
    "divergent": (
        "A warp-wide instruction is reached by part of a warp",
        "All lanes named in the mask of an aligned instruction must execute it together. Move it out of the branch, or "
        "name only the lanes that are there.",
    ),
    "endless": (
        "The kernel does not come to an end",
        "It took more steps than the limit: a loop whose condition never changes, or a wait for a flag that is "
        "never set. Raise --max-steps if the launch is merely long.",
    ),
    "lane-race": (
        "Lanes of one warp race in shared memory",
        "Since sm_70 the lanes of a warp need not run together. Put a __syncwarp() between the write of one lane and "
        "the access of another.",
    ),
    "mbarrier": (
        "An mbarrier is misused",
        "Initialise it once, with the number of arrivals of a phase, before any thread uses it (and a fence and a "
        "barrier behind that); expect exactly the bytes that the copies bring; touch its memory with nothing else.",
    ),
    "misaligned": (
        "An access is not aligned to its width",
        "A vector access of 4, 8 or 16 bytes needs an address that is a multiple of that. Check the row stride, the "
        "padding and the vector width.",
    ),
    "out-of-bounds": (
        "An access lies outside its buffer",
        "The address is in no buffer of the launch, or beyond the block's shared memory. Usually the last rows of a "
        "ragged tile lack a bound, or the launch gives too little dynamic shared memory.",
    ),
    "progress": (
        "A block waits for one that may not run before it ends",
        "Blocks are not all resident at once, and they begin in any order. Launch no more blocks than fit, as a "
        "cooperative launch does, or let a block wait only for those that drew an earlier ticket from an atomic.",
    ),
    "proxy": (
        "The asynchronous proxy has no order with ordinary accesses",
        "A bulk copy or wgmma reads what threads wrote, or the reverse, and a barrier alone does not order the two. "
        "Put a fence.proxy.async after the threads' accesses and before the barrier.",
    ),
    "race": (
        "Two accesses to the same bytes have no order",
        "Different warps access the same bytes, at least one writes, and no barrier orders them. Put a __syncthreads() "
        "or a named barrier between them; after an asynchronous copy, a wait by the issuer and then a barrier.",
    ),
    "registers": (
        "The warps of a block ask for more registers than it has",
        "setmaxnreg.inc waits until the block's other warps have given enough back with setmaxnreg.dec. Over all "
        "warps, the requested registers must not exceed those the block was launched with.",
    ),
    "tensor-map": (
        "A tensor copy is given no tensor map",
        "The address does not lead to a 128-byte descriptor. Pass one as a __grid_constant__ parameter, by value.",
    ),
    "trap": (
        "The kernel ends the launch itself",
        "An assert failed, or __trap() or a breakpoint was reached.",
    ),
    "uninitialised": (
        "What was never written is read",
        "Memory or a register holds whatever was there. Usually a tile was not filled to its last row, or was filled "
        "in another layout than it is read in; or a buffer was not cleared; or a variable is set in one branch only.",
    ),
    "result": (
        "A buffer does not hold what is expected",
        "The launch file says what the buffers hold after the launches, and within which tolerance. The message has "
        "the worst element.",
    ),
    "wgmma": (
        "A warpgroup's matrix product is misused",
        "Its registers must not be touched from its issue until wgmma.wait_group has waited for its group, and a "
        "wgmma.fence belongs between other accesses to them and the next product. All four warps execute it with the "
        "same descriptors.",
    ),
}
"""What each kind of hazard is, and what to do about it."""


def to_sarif(outcome: Sanitized, *, version: str, root: Path, directories: Iterable[Path] = ()) -> dict[str, Any]:
    """A SARIF log with one run.

    Parameters
    ----------
    outcome : Sanitized
    version : str
        Of the lab.
    root : Path
        Directory that paths in the file are relative to.
    directories : iterable of Path
        Where CUDA sources and headers are looked for by their file names.
    """
    kinds = sorted({*RULES, *(group.kind for group in outcome.groups)})
    folders, seen = list(directories), Counter[str]()
    ordered = sorted(outcome.groups, key=lambda group: ([split_place(place) for place in group.places], group.kind))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "sdpalab sanitize",
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
    title, help_text = RULES.get(kind, (f"The simulator's check reports {kind}", "The message says what is missing."))
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
    """A digest of the kind and the text of the lines, and not of their numbers, which an edit elsewhere changes.

    Of several groups with the same text, each counts those before it, in the order of the source.
    """
    parties = (group.here, *([group.other] if group.other else []))
    lines = [f"{party.place.rpartition(':')[0]}: {' '.join(party.line.split()) or party.place}" for party in parties]
    text = "\n".join((group.kind, *sorted(lines)))
    seen[text] += 1
    return hashlib.sha256(f"{text}\n{seen[text]}".encode()).hexdigest()


def _places(party: Party, ptx: str, who: str, root: Path, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Where an access is: its source line, the calls around it, and the instruction in the PTX if that is another."""
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
    """A source's path relative to ``root`` if it is found there, otherwise its file name."""
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(root.resolve()):
            return path.relative_to(root.resolve()).as_posix()
    return name
