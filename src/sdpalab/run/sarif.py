"""Hazards as SARIF 2.1.0 (OASIS, "Static Analysis Results Interchange Format"), shown by CI beside the code.

A hazard with line information lies in the CUDA source, with the PTX line as a related location; one without lies in
the PTX. Where another access conflicts, both of its places are related locations too.

Sources within ``root`` are named relative to it; others by their file name alone, so that no path of this
machine is in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sdpalab.run.sanitize import Sanitized, SanitizedHazard

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
        "Shared memory or a register holds whatever was there. Usually a tile was not filled to its last row, or was "
        "filled in another layout than it is read in; or a variable is set in one branch only.",
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
    kinds = sorted({*RULES, *(hazard.kind for hazard in outcome.hazards)})
    folders = list(directories)
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
                "results": [_result(hazard, kinds.index(hazard.kind), root, folders) for hazard in outcome.hazards],
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


def _result(hazard: SanitizedHazard, rule: int, root: Path, folders: Sequence[Path]) -> dict[str, Any]:
    ptx = _uri(hazard.ptx, root, folders)
    places = _places(hazard.source, ptx, hazard.ptx_line, "", root, folders)
    if hazard.other is not None:
        who = f"the conflicting access, {hazard.other.text}, "
        places += _places(hazard.other.source, ptx, hazard.other.ptx_line, who, root, folders)
    result: dict[str, Any] = {
        "ruleId": hazard.kind,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": hazard.message},
        "locations": places[:1],
        # Where in the code, and not what was seen there: the same hazard has it again after an unrelated edit.
        "partialFingerprints": {"kindAndPlace/v1": f"{hazard.kind}:{hazard.source or hazard.ptx_line}"},
        "properties": {"runs": list(hazard.runs), "block": hazard.block, "thread": hazard.thread},
    }
    if places[1:]:
        result["relatedLocations"] = [{"id": number, **place} for number, place in enumerate(places[1:], 1)]
    return result


def _places(
    source: str, ptx: str, ptx_line: int, who: str, root: Path, folders: Sequence[Path]
) -> list[dict[str, Any]]:
    """Where an instruction is: in the CUDA source if that is known, and in the PTX."""
    places = []
    name, _, line = source.rpartition(":")
    if name:
        places.append(_location(_uri(name, root, folders), int(line), f"{who}in the CUDA source"))
    if ptx_line:
        places.append(_location(ptx, ptx_line, f"{who}in the PTX"))
    return places


def _location(uri: str, line: int, what: str) -> dict[str, Any]:
    return {
        "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}},
        "message": {"text": what},
    }


def _uri(name: str, root: Path, folders: Sequence[Path]) -> str:
    """A source's path relative to ``root`` if it is found there, otherwise its file name."""
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file() and path.is_relative_to(root.resolve()):
            return path.relative_to(root.resolve()).as_posix()
    return name
