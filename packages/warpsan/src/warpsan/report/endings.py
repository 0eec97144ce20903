"""Exceptions that end launches."""

from __future__ import annotations

from warpsan.errors import IllegalAccess, KernelTrap, StepLimit
from warpsan.host.geometry import Dim3
from warpsan.ptx.ir import Instruction
from warpsan.ptx.linking import branch_targets
from warpsan.report.hazard_log import InstructionSources, ThreadPlace

__all__ = [
    "calls_nothing",
    "illegal_access",
    "index_beyond",
    "mbarrier_misused",
    "too_deep",
    "too_many_steps",
    "trapped",
]


def index_beyond(instruction: Instruction, index: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for an indexed branch with an index past its targets."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line}: index {index} of "
        f"{len(branch_targets(instruction))} targets, by block {block}, thread {thread}"
    )


def calls_nothing(instruction: Instruction, address: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for a call of an address without a function."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line} calls the address {address % 2**64:#x}, where there is no "
        f"function (block {block}, thread {thread})"
    )


def illegal_access(
    sources: InstructionSources, kind: str, instruction: Instruction, space: str, offset: int, block: Dim3, thread: Dim3
) -> IllegalAccess:
    """The exception for a thread's illegal access, if no check records it."""
    source = sources.source(instruction)
    return IllegalAccess(
        f"{kind} access to {space} memory at offset {offset} by {instruction.text} at PTX line {instruction.line}"
        f"{f' ({source})' if source else ''}, block {block}, thread {thread}"
    )


def mbarrier_misused(what: str, instruction: Instruction, place: ThreadPlace) -> IllegalAccess:
    """The exception for a broken rule of mbarriers, if no check records it."""
    where = f"PTX line {instruction.line}, block {place.block}, thread {place.thread}"
    return IllegalAccess(f"{what}, by {instruction.text} at {where}")


def trapped(sources: InstructionSources, instruction: Instruction, block: Dim3, thread: Dim3) -> KernelTrap:
    """The exception for a trap."""
    source = sources.source(instruction)
    return KernelTrap(
        f"{instruction.text} at PTX line {instruction.line}{f' ({source})' if source else ''}, "
        f"by block {block}, thread {thread}"
    )


def too_many_steps(most: int, line: int) -> StepLimit:
    """The exception for a warp with more than ``most`` steps, before a block at a line."""
    return StepLimit(
        f"more than {most} steps, now at PTX line {line}: an endless loop, or a launch that needs a larger max_steps"
    )


def too_deep(instruction: Instruction, depth: int, block: Dim3, thread: Dim3) -> IllegalAccess:
    """The exception for a call that exceeds the thread's stack."""
    return IllegalAccess(
        f"{instruction.text} at PTX line {instruction.line}: calls within calls are {depth} deep, where the stack ends "
        f"(block {block}, thread {thread})"
    )
