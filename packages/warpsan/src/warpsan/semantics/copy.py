"""Asynchronous copies: cp.async, its groups and waits (PTX ISA, "Data Movement: Asynchronous Copy").

In the late mode, a copy poisons its destination at issue, and reads its source and writes the data only when the
issuing lane waits for its group: the latest that the program allows. In the early mode, it completes at once.
"""

from __future__ import annotations

from warpsan.engine import layout
from warpsan.engine.access import addresses, located
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.copies import issue_copies, wait_for_copies
from warpsan.engine.lanes import WORD64, where
from warpsan.engine.memory import ThreadCopy
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.ptx.grammar import Form
from warpsan.ptx.ir import Immediate, Instruction
from warpsan.ptx.synchronising import AsyncCopy, CopyWait
from warpsan.semantics.move import without_policy
from warpsan.semantics.watched import watch_copy

__all__: list[str] = []


@native("cp.async.commit_group")
def _commit_group(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Closes the lane's current group."""

    def build(code: OperationCode) -> None:
        groups = code.state("copy_groups")
        before = code.load(groups, "s32", align=8)
        code.builder.store(where(code.active, before + 1, before).value, groups, align=8)

    asm.record(NativeOperation("cp.async.commit_group", build), [])


@native("cp.async.wait_all", "cp.async.wait_group")
def _wait(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Completes all copies of the lane, or those of all groups but the last few."""
    keep = form.keep if isinstance(form, CopyWait) else -1
    asm.call("cp.async.wait", wait_for_copies, [keep])


@native("cp.async")
def _cp_async(asm: Assembler, instruction: Instruction, form: AsyncCopy) -> None:
    """Each lane copies 4, 8 or 16 bytes from global to shared memory."""
    operands = without_policy(asm, instruction, form.hint)
    size, *rest = operands[2:]
    assert isinstance(size, Immediate)
    width = int(size.value)
    target, bits, offset = asm.address(instruction.operands[0])
    source, source_bits, source_offset = asm.address(instruction.operands[1])
    lengths = asm.source(rest[0], "u32") if rest else -1
    if asm.watched:
        goal, origin = (target, bits, offset), (source, source_bits, source_offset)
        watch_copy(asm, instruction, goal, origin, width, lengths)

    def build(code: OperationCode) -> None:
        b = code.builder
        goal = addresses(code, located(code, 0, "shared", bits), "shared", width)
        mask = code.mask
        sizes = code.constant("s64", width)
        if rest:
            given = code.source(4, "u32")
            sizes = where(given > width, given.like(width), given).to("s64")
            # Without a read, every address is legal.
            code.mask = b.and_(mask, b.bitcast((sizes != 0).value, mask.type))
        origin = addresses(code, located(code, 2, "global", source_bits), "global", width, lengths=sizes)
        sizes = where(code.active, sizes, 0)  # an illegal source is not read
        code.mask = mask
        number = b.load(code.state("copies_in_flight"), typ=WORD64)
        place = b.add(b.mul(code.context("current"), WORD64(layout.MOST_COPIES)), number)
        entry = code.at(code.pointer("copies"), b.mul(place, WORD64(ThreadCopy.byte_size)))

        def word(name: str) -> object:
            return code.at(entry, WORD64(ThreadCopy.offset_of(name)))

        b.store(b.zext(mask, WORD64), word("mask"))
        b.store(WORD64(width), word("width"))
        b.store(code.operand(5), word("pc"))
        groups = code.load(code.state("copy_groups"), "s32", align=8)
        for name, value in (
            ("group", groups),
            ("target", goal),
            ("source", origin),
            ("bytes", sizes),
        ):
            b.store(value.value, word(name), align=8)
        b.ret(code.call(issue_copies, *(b.ptrtoint(each, WORD64) for each in (code.base, entry))))

    name = f"cp.async.{width}.{bits}.{source_bits}{'.sized' * bool(rest)}"
    asm.record(NativeOperation(name, build), [target, offset, source, source_offset, lengths, instruction.pc])
