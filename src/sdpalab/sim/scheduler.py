"""Basic blocks, and the order in which lanes run them.

The run queue maps a block to the lanes that wait to run it. The lowest block runs until it would pass the next
waiting one, and lanes that meet are merged, so that divergent lanes reconverge at the earliest common instruction.
Barriers take lanes out of the queue and put them back. Warp-wide instructions want whole warps: lanes of an
incomplete warp are parked in front of such a block, and run it incomplete only when nothing else can run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sdpalab.sim.barriers import Barriers, Reduction, Resume
from sdpalab.sim.decode import Decoder, Mods, Step
from sdpalab.sim.errors import StepLimit, UnsupportedInstruction
from sdpalab.sim.fusion import Product
from sdpalab.sim.ir import Instruction, Symbol
from sdpalab.sim.isa.tensor import product_step
from sdpalab.sim.machine import Machine
from sdpalab.sim.selection import Selection, count, merge, split_warps, subset
from sdpalab.sim.types import TYPES

__all__ = ["Scheduler"]

End = Callable[[Selection], list[Resume]]


@dataclass
class _Block:
    """Straight-line code: its closures, and what decides where its lanes go."""

    steps: list[Step]
    end: End
    size: int
    collective: bool
    line: int


class Scheduler:
    """Runs one machine's lanes from the entry to their exits."""

    def __init__(self, machine: Machine, max_steps: int) -> None:
        self.machine = machine
        self.max_steps = max_steps
        self.barriers = Barriers(machine)
        self.decoder = Decoder(machine)
        self.lane_instructions = 0
        self.steps = 0
        self.blocks = self._build()

    # ---- building ----------------------------------------------------------------------------------------------------

    def _build(self) -> list[_Block]:
        blocks = []
        for index, basic in enumerate(self.machine.program.blocks):
            steps = [
                product_step(self.decoder, item) if isinstance(item, Product) else self.decoder.step(item)
                for item in basic.items
            ]
            end = _goto(index + 1) if basic.end is None else self._end(basic.end, index + 1)
            blocks.append(_Block(steps, end, basic.size, basic.collective, basic.line))
        blocks[-1].end = self._exit  # running off the end is a return
        return blocks

    def _end(self, instruction: Instruction, following: int) -> End:
        end = self._unguarded_end(instruction, following)
        if instruction.guard is None:
            return end
        predicate = self.decoder.src(instruction, instruction.guard.register, TYPES["pred"])
        negated = instruction.guard.negated

        def guarded(sel: Selection) -> list[Resume]:
            mask = ~predicate[sel] if negated else predicate[sel]
            taken = np.count_nonzero(mask)
            if taken == len(mask):
                return end(sel)
            if not taken:
                return [(following, sel)]
            return [(following, subset(sel, ~mask)), *end(subset(sel, mask))]

        return guarded

    def _unguarded_end(self, instruction: Instruction, following: int) -> End:
        if instruction.opcode == "bra":
            target = instruction.operands[0]
            assert isinstance(target, Symbol)
            mods = Mods(instruction)
            mods.flag("uni")
            mods.done()
            return _goto(self.machine.program.block_of_label[target.name])
        if instruction.opcode in ("ret", "exit"):
            return self._exit
        if instruction.opcode == "trap":
            raise UnsupportedInstruction("trap is not modelled", instruction.line)
        return self._barrier(instruction, following)

    def _barrier(self, instruction: Instruction, following: int) -> End:
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
            result = self.decoder.dst(instruction, operands.pop(0), result_type)
            predicate = self.decoder.src(instruction, operands.pop(), TYPES["pred"])
            reduction = Reduction(operation, predicate, result)
        names = self.decoder.src(instruction, operands[0], TYPES["u32"])
        threads = self.decoder.src(instruction, operands[1], TYPES["u32"]) if len(operands) > 1 else None

        def end(sel: Selection) -> list[Resume]:
            resumed: list[Resume] = []
            values = names[sel]
            for name in (values[0],) if (values == values[0]).all() else np.unique(values):
                part = sel if (values == name).all() else subset(sel, values == name)
                need = 0 if threads is None else int(threads[part][0])
                resumed += self.barriers.arrive(
                    part, int(name), need, following, instruction, waits=action != "arrive", reduction=reduction
                )
            return resumed

        return end

    def _exit(self, sel: Selection) -> list[Resume]:
        self.machine.live[sel] = False
        return self.barriers.exited() if self.barriers.barriers else []

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all live lanes to their exits.

        Raises
        ------
        Deadlock
            If lanes wait at a barrier that nobody can complete.
        StepLimit
            If more than ``max_steps`` vector steps were taken since the machine's last reset.
        """
        machine, blocks = self.machine, self.blocks
        self.barriers.reset()
        start = slice(0, machine.lanes) if machine.live.all() else np.flatnonzero(machine.live)
        pending: dict[int, list[Selection]] = {0: [start]}
        parked: dict[int, list[Selection]] = {}
        budget = self.steps + self.max_steps
        end_of_code = len(blocks)
        while pending or parked:
            forced = not pending
            queue = parked if forced else pending
            at = min(queue)
            sels = queue.pop(at)
            if not forced and at in parked:
                sels += parked.pop(at)
            sel = merge(sels)
            next_waiting = min(pending, default=end_of_code)
            while True:
                block = blocks[at]
                if block.collective and not forced:
                    whole, partial = split_warps(sel)
                    if partial is not None:
                        parked.setdefault(at, []).append(partial)
                    if whole is None:
                        break
                    sel = whole
                forced = False
                self.steps += block.size
                self.lane_instructions += block.size * count(sel)
                if self.steps > budget:
                    raise StepLimit(
                        f"more than {self.max_steps} steps, now at PTX line {block.line}: an endless loop, "
                        "or a launch that needs a larger max_steps"
                    )
                for step in block.steps:
                    step(sel)
                resumed = block.end(sel)
                if len(resumed) == 1 and resumed[0][0] < next_waiting and resumed[0][0] not in parked:
                    at, sel = resumed[0]
                    continue
                for target, part in resumed:
                    pending.setdefault(target, []).append(part)
                break
        self.barriers.check_drained()


def _goto(target: int) -> End:
    def end(sel: Selection) -> list[Resume]:
        return [(target, sel)]

    return end
