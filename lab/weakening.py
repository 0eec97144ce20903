"""The campaign ``weakening``: as ``deletion``, with mutants whose memory order, scope or fence is weaker by one step.

A step is the next narrower scope, or the next weaker order; ``.acq_rel`` has two, without the release or the acquire.
Instructions without a written order have a default one: ``mbarrier.arrive`` and ``barrier.cluster.arrive`` release,
waits for mbarriers acquire, atomic operations are relaxed with the scope of the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lab.deletion import REASONS, SUBJECTS
from sdpalab.campaigns import deletion
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.campaigns.deletion_sites import Site
from sdpalab.errors import UserError
from warpsan.ptx import Instruction, parse
from warpsan.report import source_of

__all__ = ["run", "weakened", "weaker", "with_text"]

_SCOPES = {"sys": "gpu", "gpu": "cluster", "cluster": "cta", "gl": "cta"}
"""The next narrower scope; ``gl`` is that of ``membar``."""
_ALL_SCOPES = {*_SCOPES, "cta"}
_ORDERS = {
    "acq_rel": ("acquire", "release"),
    "acquire": ("relaxed",),
    "release": ("relaxed",),
    "relaxed": ("weak",),
    "volatile": ("weak",),
}
_ACCESSES = ("ld", "st", "atom", "red")
_ARRIVALS = ("arrive", "arrive_drop", "test_wait", "try_wait")
_OF_MBARRIERS = (*_ARRIVALS, "expect_tx", "parity")
"""Modifiers that stand before the order of an mbarrier's instruction."""


def weaker(instruction: Instruction) -> list[str]:
    """The texts of an instruction that are one step weaker; none if it has no order and no scope."""
    opcode, mods = instruction.opcode, list(instruction.mods)
    if opcode == "membar":  # it is fence.sc ("membar, fence")
        scope = "gpu" if mods[0] == "gl" else mods[0]
        return [*(f"membar.{mod}" for (mod,) in _narrower(mods)), f"fence.acq_rel.{scope}"]
    if opcode in _ACCESSES and "async" not in mods:
        texts = _weaker_access(opcode, mods)
    elif opcode == "fence" and not {"proxy", "mbarrier_init"} & set(mods):
        texts = _weaker_fence(mods)
    elif opcode == "mbarrier" and not {*_ARRIVALS}.isdisjoint(mods) and "noComplete" not in mods:
        texts = _weaker_arrival(mods)
    elif opcode == "barrier" and mods[:2] == ["cluster", "arrive"] and "relaxed" not in mods:
        texts = [["cluster", "arrive", "relaxed", *(mod for mod in mods[2:] if mod != "release")]]
    else:
        texts = []
    return [".".join((opcode, *each)) for each in texts]


def _narrower(mods: list[str]) -> list[list[str]]:
    """The modifiers with the next narrower scope, if one is written."""
    places = [place for place, mod in enumerate(mods) if mod in _SCOPES]
    return [[*mods[:place], _SCOPES[mods[place]], *mods[place + 1 :]] for place in places]


def _weaker_access(opcode: str, mods: list[str]) -> list[list[str]]:
    """Weaker modifiers of a memory access: atomic operations are never weak, and a weak access has no scope."""
    texts = _narrower(mods)
    for place, mod in enumerate(mods):
        for order in _ORDERS.get(mod, ()):
            after = mods[place + 1 :]
            if order != "weak":
                texts.append([*mods[:place], order, *after])
            elif opcode in ("ld", "st"):
                texts.append([*mods[:place], *(each for each in after if each not in _ALL_SCOPES)])
    if opcode in ("atom", "red") and mods and not _ALL_SCOPES & set(mods):
        texts.append(["relaxed", "cta", *mods] if not set(mods) & set(_ORDERS) else [mods[0], "cta", *mods[1:]])
    return texts


def _weaker_fence(mods: list[str]) -> list[list[str]]:
    """Weaker modifiers of a fence; one that only acquires or only releases has no weaker order."""
    orders = {"sc": ("acq_rel",), "acq_rel": ("acquire", "release")}
    return _narrower(mods) + [
        [*mods[:place], order, *mods[place + 1 :]] for place, mod in enumerate(mods) for order in orders.get(mod, ())
    ]


def _weaker_arrival(mods: list[str]) -> list[list[str]]:
    """Weaker modifiers of an mbarrier instruction, whose order has a scope, by default the CTA."""
    texts = _narrower(mods)
    if "relaxed" not in mods:
        bare = [mod for mod in mods if mod not in ("release", "acquire", *_ALL_SCOPES)]
        place = sum(mod in _OF_MBARRIERS for mod in bare)
        texts.append([*bare[:place], "relaxed", "cluster" if "cluster" in mods else "cta", *bare[place:]])
    return texts


def with_text(ptx: str, instruction: Instruction, text: str) -> str:
    """The PTX with other text for an instruction's opcode and modifiers; all lines keep their numbers."""
    lines = ptx.split("\n")
    before = lines[instruction.line - 1]
    after = re.sub(rf"(?<![\w.]){re.escape(instruction.text)}(?![\w.])", text, before, count=1)
    assert after != before, f"{instruction.text} is not on line {instruction.line}"
    lines[instruction.line - 1] = after
    return "\n".join(lines)


def weakened(ptx: str, entry: str, folders: Sequence[Path]) -> Iterator[tuple[Site, str]]:
    """The mutants of an entry, each with one instruction that is weaker by one step."""
    module = parse(ptx)
    for instruction in module.entries[entry].instructions:
        for text in weaker(instruction):
            source = source_of(module, instruction)
            site = Site(instruction.text, instruction.line, source, deletion.source_text(source, folders), text)
            yield site, with_text(ptx, instruction, text)


def run(names: Sequence[str], say: Say, workers: int | None = None) -> CampaignResult:
    """Weaken the named kernels, by default :data:`lab.deletion.SUBJECTS`, each code in a process of its own.

    Parameters
    ----------
    names : sequence of str
    say : callable
    workers : int, optional
        Number of processes. Default: one for each CPU.

    Raises
    ------
    UserError
        If there is no such kernel, or one is not clean itself.
    """
    if files := [name for name in names if name.endswith(".ptx")]:
        raise UserError(f"{files[0]}: the campaign weakening is for kernels; deletion also takes a FILE.ptx")
    codes = [(name, number) for name in names or SUBJECTS for number, _ in enumerate(deletion.targets([name], say))]
    say(deletion.HEAD)
    records: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for record in pool.map(_record, codes):
            deletion.say_record(say, record)
            records.append(record)
    return deletion.result_of(records, REASONS)


def _record(code: tuple[str, int]) -> dict[str, Any]:
    return deletion.target_record(*code, REASONS, weakened)
