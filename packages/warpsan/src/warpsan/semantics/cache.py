"""Cache control: prefetches, priorities and policies (PTX ISA, "prefetch", "applypriority", "discard",
"createpolicy"). The simulator has no caches, so only ``discard`` changes a value: it leaves undefined values."""

from __future__ import annotations

from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.ptx.forms import LINE, POLICY
from warpsan.ptx.grammar import Computation, Form
from warpsan.ptx.ir import Immediate, Instruction
from warpsan.semantics.move import store_operation
from warpsan.semantics.watched import watch_access

__all__: list[str] = []

_CHUNK = 16
"""Bytes of one write of discard."""


@native("prefetch", "prefetchu")
def _prefetch(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Has no effect, for any address."""
    asm.address(instruction.operands[0])


@native("applypriority")
def _applypriority(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Has no effect; the line must exist and be aligned."""
    _line(asm, instruction)


@native("discard")
def _discard(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Writes poison: the values are undefined."""
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


@native("createpolicy.fractional", "createpolicy.range", "createpolicy.cvt")
def _createpolicy(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """A cache policy: 64 bits that only ``.L2::cache_hint`` uses."""
    (target, *operands) = instruction.operands
    if form.name == "createpolicy.cvt":
        types = ["b64"]
    elif form.name == "createpolicy.fractional":
        types = ["f32"][: len(operands)]
    else:
        asm.address(operands.pop(0))
        types = ["u32", "u32"]
    if len(operands) != len(types):
        raise asm.unsupported("wrong number of operands")
    for operand, type_ in zip(operands, types, strict=True):
        asm.source(operand, type_)
    row, finish = asm.target(target, "b64")
    asm.lanewise("mov.b64", lambda x: x, [row], [asm.number(POLICY, "b64")], ["b64"], ["b64"])
    finish()
