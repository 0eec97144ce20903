"""Cache control: prefetches, priorities and policies (PTX ISA, "prefetch", "applypriority", "discard",
"createpolicy"). The simulator has no caches, so only ``discard`` changes a value: it leaves undefined values."""

from __future__ import annotations

from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.ptx.forms import LINE, POLICY, PRIORITIES
from warpsan.ptx.ir import Immediate, Instruction
from warpsan.ptx.modifiers import Mods, take_space
from warpsan.semantics.move import store_operation
from warpsan.semantics.watched import watch_access

__all__: list[str] = []

_CHUNK = 16
"""Bytes of one write of discard."""


@native("prefetch", "prefetchu")
def _prefetch(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Has no effect, for any address."""
    if instruction.opcode == "prefetchu":
        mods.choice(("L1",))
    else:
        space = take_space(mods)
        levels = ("L1", "L2") if space in ("global", "local", "generic") else ()
        maps = ("tensormap",) if space in ("const", "param", "generic") else ()
        mods.choice((*levels, *PRIORITIES[:2], *maps) if space == "global" else (*levels, *maps))
    mods.done()
    asm.address(instruction.operands[0])


@native("applypriority")
def _applypriority(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Has no effect; the line must exist and be aligned."""
    mods.flag("global")
    mods.choice(("L2::evict_normal",))
    mods.done()
    _line(asm, instruction)


@native("discard")
def _discard(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Writes poison: the values are undefined."""
    mods.flag("global")
    mods.choice(("L2",))
    mods.done()
    row, bits, offset = _line(asm, instruction)
    poison = asm.number(-1, "b64")
    for begin in range(offset, offset + LINE, _CHUNK):
        if asm.watched:
            watch_access(
                *(asm, instruction, "global", row, bits, begin, _CHUNK, "store"), written=(8, (poison, poison))
            )
        asm.record(store_operation("global", bits, 64, 2, asm.checked), [row, begin, poison, poison])


def _line(asm: Assembler, instruction: Instruction) -> tuple[int, int, int]:
    """The operands ``[a], 128``: the record that checks the addresses, and their row, bits and offset."""
    if instruction.operands[1] != Immediate(LINE):
        raise asm.unsupported(f"the size must be {LINE}")
    row, bits, offset = asm.address(instruction.operands[0])

    def build(code: OperationCode) -> None:
        addresses(code, located(code, 0, "global", bits), "global", LINE)

    asm.record(NativeOperation(f"line.{bits}", build), [row, offset])
    return row, bits, offset


@native("createpolicy")
def _createpolicy(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """A cache policy: 64 bits that only ``.L2::cache_hint`` uses."""
    form = mods.choice(("fractional", "range", "cvt"))
    target, *operands = instruction.operands
    if form == "cvt":
        mods.choice(("L2",))
        types = ["b64"]
    else:
        if form == "range":
            mods.flag("global")
        mods.choice(PRIORITIES)
        mods.choice(("L2::evict_first", "L2::evict_unchanged"), default="")
        types = ["f32"][: len(operands)] if form == "fractional" else ["u32", "u32"]
        if form == "range":
            asm.address(operands.pop(0))
    mods.choice(("b64",))
    mods.done()
    if len(operands) != len(types):
        raise mods.unsupported("wrong number of operands")
    for operand, type_ in zip(operands, types, strict=True):
        asm.source(operand, type_)
    row, finish = asm.target(target, "b64")
    asm.lanewise("mov.b64", lambda x: x, [row], [asm.number(POLICY, "b64")], ["b64"], ["b64"])
    finish()
