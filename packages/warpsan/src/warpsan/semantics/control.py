"""Control flow: branches, returns and ends of the launch (PTX ISA, "Control Flow Instructions", "trap", "brkpt"). Calls
are in :mod:`.call`."""

from __future__ import annotations

from warpsan.engine import layout
from warpsan.engine.assembler import Assembler, native
from warpsan.ptx.grammar import Computation
from warpsan.ptx.ir import Instruction, Symbol
from warpsan.ptx.linking import branch_targets
from warpsan.semantics.call import return_to_calls

__all__: list[str] = []


@native("bra")
def _bra(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    (target,) = instruction.operands
    assert isinstance(target, Symbol)
    asm.end |= {"end": layout.END_BRANCH, "target": asm.program.block_of_label[target.name]}


@native("brx")
def _brx(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Each lane goes to the target of its index; an index beyond the last is undefined in PTX, and the launch ends."""
    targets = [asm.program.block_of_label[label.name] for label in branch_targets(instruction)]
    asm.end |= {"end": layout.END_INDEXED, "end_a": asm.source(instruction.operands[0], "u32")}
    asm.end |= {"end_b": len(asm.lists), "end_c": len(targets), "end_d": -1}
    asm.lists += targets


@native("ret", "exit")
def _exit(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    if instruction.operands:
        return_to_calls(asm, instruction)
    else:
        asm.end["end"] = layout.END_EXIT


@native("trap", "brkpt")
def _stop(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    """Ends the launch; without a debugger a breakpoint does so too."""
    asm.end["end"] = layout.END_STOP
