"""How blocks end: branches, exits, barriers. Further ends are registered by their instructions' own files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sdpalab.sim.barriers import Barriers, Reduction
from sdpalab.sim.decode import Decoder
from sdpalab.sim.errors import Deadlock, IllegalAccess, KernelTrap, StepLimit, UnsupportedInstruction
from sdpalab.sim.geometry import Dim3
from sdpalab.sim.ir import Instruction, Symbol
from sdpalab.sim.linking import branch_targets
from sdpalab.sim.machine import Machine, Resume
from sdpalab.sim.modifiers import Mods, find_handler
from sdpalab.sim.selection import Selection, indices, subset
from sdpalab.sim.types import TYPES

__all__ = [
    "ENDS",
    "End",
    "EndHandler",
    "Flow",
    "block_end",
    "build_end",
    "calls_nothing",
    "goto",
    "index_beyond",
    "polls_in_vain",
    "trapped",
]

_MAY_WAIT = "blocks run in any order, and one may only wait for others if all are resident"
_USUALLY_PROGRESS = (
    "use a cooperative launch, or let blocks take their work by an atomic counter and wait only for those before them"
)

End = Callable[[Selection], list[Resume]]
"""Given the lanes that reached the end of a block, where they (and lanes that they release) go on."""


class Flow(Protocol):
    """What the handler of a block's end may use."""

    machine: Machine
    decoder: Decoder
    barriers: Barriers


EndHandler = Callable[[Flow, Instruction, int], End]

ENDS: dict[str, EndHandler] = {}
"""Handlers by opcode, or by opcode and first modifier (``mbarrier.try_wait``), which goes first."""


def block_end(*names: str) -> Callable[[EndHandler], EndHandler]:
    """Register ``handler(flow, instruction, following block) -> End``."""

    def add(handler: EndHandler) -> EndHandler:
        for name in names:
            assert name not in ENDS, f"two handlers for {name}"
            ENDS[name] = handler
        return handler

    return add


def build_end(flow: Flow, instruction: Instruction | None, following: int) -> End:
    """What happens at the end of a block, under the guard of its last instruction."""
    if instruction is None:
        return goto(following)
    end = find_handler(ENDS, instruction)
    if end is None:
        raise UnsupportedInstruction(f"opcode {instruction.text} is not modelled", instruction.line)
    try:
        act = end(flow, instruction, following)
    except IndexError:
        raise UnsupportedInstruction(f"{instruction.text}: too few operands", instruction.line) from None
    if instruction.guard is None:
        return act
    predicate = flow.decoder.src(instruction, instruction.guard.register, TYPES["pred"])
    negated = instruction.guard.negated

    def guarded(sel: Selection) -> list[Resume]:
        mask = ~predicate[sel] if negated else predicate[sel]
        taken = np.count_nonzero(mask)
        if taken == len(mask):
            return act(sel)
        if not taken:
            return [(following, sel)]
        return [(following, subset(sel, ~mask)), *act(subset(sel, mask))]

    return guarded


def goto(target: int) -> End:
    """All lanes go on with ``target``."""

    def end(sel: Selection) -> list[Resume]:
        return [(target, sel)]

    return end


@block_end("bra")
def _bra(flow: Flow, instruction: Instruction, following: int) -> End:
    mods = Mods(instruction)
    mods.flag("uni")
    mods.done()
    target = instruction.operands[0]
    assert isinstance(target, Symbol)
    return goto(flow.machine.program.block_of_label[target.name])


@block_end("brx.idx")
def _brx(flow: Flow, instruction: Instruction, following: int) -> End:
    """Each lane goes to the target of its index; beyond the last the manual promises nothing, and the launch ends."""
    mods = Mods(instruction)
    mods.choice(("idx",))
    mods.flag("uni")
    mods.done()
    machine = flow.machine
    index = flow.decoder.src(instruction, instruction.operands[0], TYPES["u32"])
    blocks = np.array([machine.program.block_of_label[label.name] for label in branch_targets(instruction)])

    def end(sel: Selection) -> list[Resume]:
        chosen = index[sel]
        beyond = chosen >= len(blocks)
        if beyond.any():
            lane = int(indices(subset(sel, beyond))[0])
            raise index_beyond(instruction, int(chosen[beyond][0]), *machine.where(lane))
        targets = blocks[chosen]
        return [(int(target), subset(sel, targets == target)) for target in np.unique(targets)]

    return end


def index_beyond(instruction: Instruction, index: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for an indexed branch with an index beyond its targets."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line}: index {index} of "
        f"{len(branch_targets(instruction))} targets, by block {block}, thread {thread}"
    )


def calls_nothing(instruction: Instruction, address: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for a call of an address where there is no function."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line} calls the address {address % 2**64:#x}, where there is no "
        f"function (block {block}, thread {thread})"
    )


@block_end("exit")
def _exit(flow: Flow, instruction: Instruction, following: int) -> End:
    Mods(instruction).done()
    return leave(flow)


def leave(flow: Flow) -> End:
    """The lanes are done; barriers that waited only for them are complete."""

    def end(sel: Selection) -> list[Resume]:
        flow.machine.live[sel] = False
        return [resume for unit in flow.machine.units.values() for resume in unit.exited()]

    return end


@block_end("trap", "brkpt")
def _trap(flow: Flow, instruction: Instruction, following: int) -> End:
    """Ends the launch; without a debugger a breakpoint does so too."""
    Mods(instruction).done()
    machine = flow.machine

    def end(sel: Selection) -> list[Resume]:
        raise trapped(machine, instruction, int(indices(sel)[0]))

    return end


def trapped(machine: Machine, instruction: Instruction, lane: int) -> KernelTrap:
    """The exception for a lane that ends the launch."""
    block, thread = machine.where(lane)
    source = machine.source(instruction)
    return KernelTrap(
        f"{instruction.text} at PTX line {instruction.line}{f' ({source})' if source else ''}, "
        f"by block {block}, thread {thread}"
    )


def too_many_steps(most: int, line: int) -> StepLimit:
    """The exception for a launch with a warp that takes more than ``most`` steps, in front of a block at a line."""
    return StepLimit(
        f"more than {most} steps, now at PTX line {line}: an endless loop, or a launch that needs a larger max_steps"
    )


def polls_in_vain(machine: Machine, instruction: Instruction, sel: Selection) -> Deadlock:
    """The exception for lanes that wait by ``instruction``, as all others do that could run; a hazard, too, if blocks
    have not begun that might help."""
    where, thread = machine.where(int(indices(sel)[0]))
    what = "polls for what no thread that has begun can write any more"
    if machine.geometry.ctas > machine.n_cta:
        for observer in machine.observers:
            observer.misuse("progress", sel, instruction, f"{what}: {_MAY_WAIT}", _USUALLY_PROGRESS)
    place = f"thread {thread} of block {where}"
    return Deadlock(f"{place} {what} (PTX line {instruction.line}), and so does every other that could run")


@block_end("bar", "barrier")
def _barrier(flow: Flow, instruction: Instruction, following: int) -> End:
    """PTX ISA, "bar, barrier"."""
    mods = Mods(instruction)
    mods.flag("cta")
    mods.flag("aligned")
    action = mods.choice(("sync", "arrive", "red"))
    operation = mods.choice(("popc", "and", "or")) if action == "red" else ""
    result_type = mods.type() if action == "red" else TYPES["pred"]
    mods.done()
    operands = list(instruction.operands)
    reduction = None
    if action == "red":
        result = flow.decoder.dst(instruction, operands.pop(0), result_type)
        predicate = flow.decoder.predicate(instruction, operands.pop())
        reduction = Reduction(operation, predicate, result)
    names = flow.decoder.src(instruction, operands[0], TYPES["u32"])
    threads = flow.decoder.src(instruction, operands[1], TYPES["u32"]) if len(operands) > 1 else None

    def end(sel: Selection) -> list[Resume]:
        resumed: list[Resume] = []
        values = names[sel]
        for name in (values[0],) if (values == values[0]).all() else np.unique(values):
            part = sel if (values == name).all() else subset(sel, values == name)
            need = 0 if threads is None else int(threads[part][0])
            resumed += flow.barriers.arrive(
                part, int(name), need, following, instruction, waits=action != "arrive", reduction=reduction
            )
        return resumed

    return end
