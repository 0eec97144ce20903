"""setmaxnreg: warps release registers or request more (PTX ISA, "setmaxnreg").

Virtual registers do not run out, so the values stay. A warp that requests more registers than its block has left waits
here as on hardware, until others release enough, or forever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpsan.engine.machine import AsyncUnit, Machine
from warpsan.engine.selection import WARP, Indices, Mask, Selection, indices, split_warps, subset
from warpsan.host.limits import REGISTER_FILE, registers_at_launch
from warpsan.ptx.grammar import form_of
from warpsan.ptx.ir import Instruction
from warpsan.ptx.synchronising import RegisterCount
from warpsan.replay.decoder import Decoder, Step, opcode

__all__: list[str] = []

_NAME = "setmaxnreg"
_USUALLY = "usually a number that does not suit the block: the sum over its warps must not grow"


@dataclass
class _RegisterWait:
    sel: Selection
    wanted: int
    instruction: Instruction


class _Pool(AsyncUnit):
    """Registers of each thread. A block has at most the number that it can have been launched with."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.before = registers_at_launch(machine.entry, machine.geometry)
        self.block = min(REGISTER_FILE, self.before * machine.warps * WARP)
        self.exact = "maxnreg" in machine.entry.directives
        self.held = np.full(machine.lanes, self.before, dtype=np.int64)
        self.waiting: list[_RegisterWait] = []

    @staticmethod
    def of(machine: Machine) -> _Pool:
        """The machine's registers, created on first use."""
        unit = machine.units.get(_NAME)
        if not isinstance(unit, _Pool):
            unit = _Pool(machine)
            # Before barriers: a wait for registers is the cause of waits at barriers.
            machine.units = {_NAME: unit, **machine.units}
        return unit

    def reset(self) -> None:
        """Reset: every thread has its launch number of registers."""
        self.held.fill(self.before)
        self.waiting.clear()

    def ask(self, sel: Selection, wanted: int, instruction: Instruction) -> None:
        """Whole warps request ``wanted`` registers a thread. A request in the wrong direction changes nothing."""
        grows, held = form_of(instruction, RegisterCount).action == "inc", self.held[sel]
        wrong = held > wanted if grows else held < wanted
        if wrong.any():
            if self.exact:
                what = (
                    f"a thread is to have {wanted} registers, {'fewer' if grows else 'more'} than its {held[wrong][0]}"
                )
                self._report(subset(sel, wrong), instruction, what)
            if not wrong.all():
                self.ask(subset(sel, ~wrong), wanted, instruction)
            return
        # Releases go first, for the lanes that wait.
        self.waiting.insert(len(self.waiting) if grows else 0, _RegisterWait(sel, wanted, instruction))
        left: list[_RegisterWait] = []
        for entry in self.waiting:
            granted = self._grant(indices(entry.sel), entry.wanted)
            if not granted.all():
                left.append(_RegisterWait(subset(entry.sel, ~granted), entry.wanted, entry.instruction))
        self.waiting = left

    def _grant(self, lanes: Indices, wanted: int) -> Mask:
        """Which of these lanes get their registers, warp by warp: enough are free, or the lanes release some."""
        cta = self.machine.cta
        granted = np.zeros(len(lanes), dtype=np.bool_)
        slots = lanes // (WARP * self.machine.n_cta)
        for slot in np.unique(slots):
            mine = slots == slot
            chosen = lanes[mine]
            more = wanted - self.held[chosen]
            fits = (more <= 0) | (np.bincount(cta, weights=self.held)[cta[chosen]] + WARP * more <= self.block)
            self.held[chosen[fits]] = wanted
            granted[mine] = fits
        return granted

    def _report(self, sel: Selection, instruction: Instruction, what: str) -> None:
        for observer in self.machine.observers:
            observer.misuse("registers", sel, instruction, what, _USUALLY)


@opcode(_NAME)
def _setmaxnreg(decoder: Decoder, instruction: Instruction) -> Step:
    pool, wanted = _Pool.of(decoder.machine), form_of(instruction, RegisterCount).wanted

    def step(sel: Selection) -> None:
        lanes, _ = split_warps(sel)
        if lanes is not None:
            pool.ask(lanes, wanted, instruction)

    return step
