"""Synchronisation instructions of PTX, mutants of them, and the reasons why some are redundant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sdpalab.record import RECORD
from warpsan.ptx import Instruction

__all__ = ["Deletions", "Mutant", "Site", "is_synchronisation", "reason_of", "without"]

_ALWAYS = ("bar", "barrier", "mbarrier", "fence", "membar")
_MODIFIERS = {
    "cp": ("commit_group", "wait_group", "wait_all", "mbarrier"),
    "wgmma": ("fence", "commit_group", "wait_group"),
    "griddepcontrol": ("wait",),  # launch_dependents orders nothing
}


@dataclass(frozen=True)
class Site:
    """One synchronisation instruction: its text, its line in the PTX, and the CUDA line it comes from.

    ``weaker`` is the text of a mutant in place of the instruction, empty if the instruction is deleted.
    """

    opcode: str
    ptx_line: int
    source: str
    source_text: str
    weaker: str = ""


class Mutant(BaseModel):
    """A mutant of one site: the hazard that killed it and the run, or the reason why it is redundant, if any."""

    model_config = RECORD

    opcode: str
    ptx_line: int
    source: str
    text: str
    weaker: str = ""
    killed_by: str | None
    run: str = ""
    reason: str = ""


class Deletions(BaseModel):
    """The value of a job: all mutants of one code."""

    model_config = RECORD

    subject: str
    configurations: list[str]
    arch: str
    ptx_sha256: list[str]
    problems: list[str]
    strict: bool = True
    mutants: list[Mutant]


def is_synchronisation(instruction: Instruction) -> bool:
    """True for barriers, waits, commits and fences."""
    wanted = _MODIFIERS.get(instruction.opcode, ())
    return instruction.opcode in _ALWAYS or any(mod in wanted for mod in instruction.mods)


def without(ptx: str, site: Site) -> str:
    """The PTX with that instruction blanked out; all lines keep their numbers."""
    lines = ptx.split("\n")
    statement = rf"(@!?%\S+\s+)?{re.escape(site.opcode)}\b[^;]*;"
    lines[site.ptx_line - 1] = re.sub(statement, "", lines[site.ptx_line - 1], count=1)
    return "\n".join(lines)


def reason_of(kernel: str, site: Site, excuses: list[dict[str, Any]]) -> str:
    """The first reason for a survivor that is not used up, counted down in ``excuses``; empty if there is none."""
    for entry in excuses:
        named = (entry["kernel"], entry["opcode"]) == (kernel, site.opcode)
        named &= entry.get("weaker", "") == site.weaker
        if named and entry["text"] in site.source_text and entry["most"] > 0:
            entry["most"] -= 1
            return str(entry["reason"])
    return ""
