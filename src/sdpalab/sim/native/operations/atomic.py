"""Atomic operations on integers (PTX ISA, "atom", "red"), by the rules of :mod:`sdpalab.sim.isa.atomics`."""

from __future__ import annotations

from sdpalab.sim.decode import Mods
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.atomics import UPDATES
from sdpalab.sim.isa.memory_mods import take_space
from sdpalab.sim.isa.steps import require
from sdpalab.sim.native import layout
from sdpalab.sim.native.access import addresses, located
from sdpalab.sim.native.assembler import Assembler, NotNative, native
from sdpalab.sim.native.atomics import NAMES, update
from sdpalab.sim.native.lanes import WORD64
from sdpalab.sim.native.operation import NativeOperation, OperationCode
from sdpalab.sim.native.operations.move import take_cache_hint
from sdpalab.sim.native.operations.watched import strong_effect, watch_access

__all__: list[str] = []


@native("atom", "red")
def _atomic(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    returns = instruction.opcode == "atom"
    mods.choice(("relaxed", "acquire", "release", "acq_rel"), default="relaxed")
    mods.choice(("cta", "cluster", "gpu", "sys"), default="gpu")
    space = take_space(mods)
    name = mods.choice(UPDATES)
    type_ = mods.type()
    require(mods, type_, UPDATES[name][1])
    operands = list(instruction.operands)
    take_cache_hint(asm, mods, operands)
    mods.done()
    if name not in NAMES or type_.is_float or space not in ("global", "shared", "generic"):
        raise NotNative(instruction.text)
    target, finish = asm.target(operands.pop(0), type_.name) if returns else (-1, _nothing)
    row, bits, offset = asm.address(operands[0])
    source = asm.source(operands[1], type_.name)
    if asm.watched:
        watch_access(asm, instruction, space, row, bits, offset, type_.bytes, "update", strong=strong_effect(asm, mods))

    def build(code: OperationCode) -> None:
        b = code.builder
        place = addresses(code, located(code, 5, space, bits), space, type_.bytes)
        b.store(place.value, code.at(code.pointer(layout.SCRATCH), WORD64(layout.SCRATCH_PLACES)), align=64)
        code.hand_over(update)

    words = [target, source, NAMES.index(name), type_.bytes, int(type_.signed), row, offset]
    asm.record(NativeOperation(f"atom.{space}.{bits}.{type_.bytes}", build), words)
    finish()


def _nothing() -> None:
    """There is no result."""
