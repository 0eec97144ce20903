"""Ends of basic blocks: branches, calls, barriers, waits, warpgroup products (PTX ISA, "Control Flow Instructions",
"bar", "barrier.cluster", "mbarrier.try_wait", "wgmma.mma_async", "setmaxnreg")."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.analysis.program import Program
from warpsan.engine import layout
from warpsan.engine.assembler import Assembler
from warpsan.engine.ring import RingAssembler
from warpsan.engine.ring.products import warpgroup_numbers
from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.grammar import Computation, Form, form_of
from warpsan.ptx.ir import Instruction, Symbol
from warpsan.ptx.linking import branch_targets
from warpsan.ptx.modifiers import find_handler
from warpsan.ptx.synchronising import ClusterAction, MbarrierTest, ProductWait, RegisterCount
from warpsan.semantics.bulk import order_number, shared_address
from warpsan.semantics.call import call_words, return_words
from warpsan.semantics.warpgroup import product_list

__all__ = ["ENDS", "end_block"]

End = Callable[[Assembler, Program, Instruction, dict[str, int]], None]
ENDS: dict[str, End] = {}
"""Handlers by the beginning of an instruction's text; each fills the words of the block that the instruction ends."""


def end_block(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    """The action at the end of a block."""
    end = find_handler(ENDS, instruction)
    if end is None:
        raise UnsupportedInstruction(f"opcode {instruction.text} is not modelled", instruction.line)
    end(asm, program, instruction, words)


def _bra(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    form_of(instruction, Form)
    (target,) = instruction.operands
    assert isinstance(target, Symbol)
    words["end"], words["target"] = layout.END_BRANCH, program.block_of_label[target.name]


def _exit(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    form_of(instruction, Form)
    if instruction.operands:
        return_words(asm, instruction, words)
    else:
        words["end"] = layout.END_EXIT


def _brx(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    """Each lane goes to the target of its index; an index beyond the last is undefined in PTX, and the launch ends."""
    form_of(instruction, Form)
    targets = [program.block_of_label[label.name] for label in branch_targets(instruction)]
    words["end"], words["end_a"] = layout.END_INDEXED, asm.source(instruction.operands[0], "u32")
    words["end_b"], words["end_c"], words["end_d"] = len(asm.lists), len(targets), -1
    asm.lists += targets


def _call(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    """Calls of functions that the PTX defines, directly or through a register, and of ``vprintf``, ``__assertfail``,
    ``malloc`` and ``free``."""
    form_of(instruction, Form)
    call_words(asm, instruction, words)


def _stop(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    """Ends the launch; without a debugger a breakpoint does so too."""
    form_of(instruction, Form)
    words["end"] = layout.END_STOP


_BARRIERS = {"sync": layout.END_BARRIER, "arrive": layout.END_ARRIVE}


def _barrier(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    form, operands = form_of(instruction, Computation), list(instruction.operands)
    reduces, (mode,) = form.name.endswith("red"), form.modes
    words["end"] = layout.END_REDUCE if reduces else _BARRIERS[mode]
    words["end_token"] = int(instruction.opcode == "bar" or "aligned" in form.flags)
    words["end_pc"] = instruction.pc
    if reduces:
        row, _ = asm.target(operands.pop(0), form.type.name)
        words["target"] = ("popc", "and", "or").index(mode)
        words["end_d"], words["end_c"] = row, asm.source(operands.pop(), "pred")
    elif mode == "sync" and len(operands) == 1 and words["end_token"]:
        words["end_c"] = 1  # the code of __syncthreads(), if the barrier is the first
    words["end_a"] = asm.source(operands[0], "u32")
    words["end_b"] = asm.source(operands[1], "u32") if len(operands) > 1 else -1


def _cluster(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    """All threads of the cluster that have not exited take part; a thread waits for the phase in which it arrived."""
    form = form_of(instruction, ClusterAction)
    words["end"] = layout.END_CLUSTER_ARRIVE if form.action == "arrive" else layout.END_CLUSTER_WAIT
    words["end_a"], words["end_pc"] = int(form.order == "relaxed"), instruction.pc


def _try_wait(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    """Blocks until the phase of a parity or a state token is complete, whatever its time limit."""
    form = form_of(instruction, MbarrierTest)
    target, address, state, *limit = instruction.operands
    if limit:
        asm.source(limit[0], "u32")
    row, finish = asm.target(target, "pred")
    finish()
    words["end"], words["end_d"] = layout.END_TRY_WAIT, row
    words["end_e"], words["end_pc"] = order_number(asm, instruction), instruction.pc
    words["end_a"], words["end_b"] = shared_address(asm, address, form.space)
    words["end_c"] = asm.source(state, "u32" if form.parity else "b64")
    words["end_token"] = int(not form.parity)


def _mma_async(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    numbers = warpgroup_numbers(asm.words) if isinstance(asm, RingAssembler) else None
    content = product_list(asm, instruction, numbers)
    words["end"], words["end_a"] = layout.END_WGMMA, len(asm.lists)
    words["end_pc"] = instruction.pc
    asm.lists += content


def _wait_products(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    words["end"], words["end_a"] = layout.END_WGMMA_WAIT, form_of(instruction, ProductWait).keep


def _setmaxnreg(asm: Assembler, program: Program, instruction: Instruction, words: dict[str, int]) -> None:
    """Values stay. A warp that requests more registers than its block has left waits until others release some."""
    form = form_of(instruction, RegisterCount)
    words["end"], words["end_a"] = layout.END_REGISTERS, form.wanted
    words["end_b"] = int(form.action == "inc")
    words["end_c"], words["end_pc"] = int(asm.checked and "maxnreg" in asm.entry.directives), instruction.pc


ENDS.update({"bra": _bra, "brx": _brx, "call": _call, "ret": _exit, "exit": _exit, "trap": _stop, "brkpt": _stop})
ENDS.update({"bar": _barrier, "barrier": _barrier, "barrier.cluster": _cluster, "setmaxnreg": _setmaxnreg})
ENDS.update({"mbarrier.try_wait": _try_wait, "wgmma.mma_async": _mma_async, "wgmma.wait_group": _wait_products})
