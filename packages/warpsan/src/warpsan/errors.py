"""Typed exceptions, one clear sentence each: bad input, a failure of the machine, and what ends a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.ptx.ir import Instruction
    from warpsan.report.hazards import Hazard

__all__ = [
    "Deadlock",
    "DeviceAssertion",
    "IllegalAccess",
    "KernelTrap",
    "LaunchError",
    "MachineError",
    "NotAlgebraic",
    "PtxSyntaxError",
    "SimError",
    "StepLimit",
    "UnsupportedInstruction",
    "UserError",
]


class UserError(ValueError):
    """Bad input or usage. The message is one sentence: what is wrong, where, and what would be right.

    A command line prints the message and exits with 2.
    """


class MachineError(RuntimeError):
    """The machine failed, not the program: no space, no compiler, a worker that died before it got work.

    A command line prints the message and exits with 3.
    """


class SimError(Exception):
    """Base of everything the simulator raises.

    Attributes
    ----------
    hazards : tuple of Hazard
        Hazards of the stopped launch before the error, in the order of the code.
    """

    hazards: tuple[Hazard, ...] = ()


class PtxSyntaxError(SimError):
    """The PTX cannot be read. ``line`` is the line of the PTX text, counted from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.line = line


class UnsupportedInstruction(SimError):
    """An opcode, modifier, type or special register that is not modelled. Never skipped silently."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message, self.line = message, line

    def again(self) -> UnsupportedInstruction:
        """The same, to be raised for another launch."""
        return UnsupportedInstruction(self.message, self.line)


class NotAlgebraic(SimError):
    """In a launch with ``numerics="ring"``, an instruction that has no meaning in a ring was executed.

    The kernel is not wrong for that. ``instruction`` is its text and ``line`` its line of the PTX, counted from 1.
    """

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(
            f"PTX line {instruction.line}: {instruction.text} is not algebraic: it has no meaning in a ring of integers"
        )
        self.instruction, self.line = instruction.text, instruction.line


class LaunchError(SimError, ValueError):
    """The launch itself is wrong: unknown entry, number or type of arguments, grid, block or shared memory."""


class IllegalAccess(SimError):
    """An access outside every buffer or a misaligned one, in a launch without the ``memory`` check to record it."""


class KernelTrap(SimError):
    """The kernel ended the launch itself: a trap or a breakpoint was executed."""


class DeviceAssertion(KernelTrap):
    """An ``assert`` in the kernel failed. The message has its text, file, line and function, and the first thread."""


class Deadlock(SimError):
    """Threads wait for an event that cannot happen. The message names the barrier, the arrivals and the expected
    count."""


class StepLimit(SimError):
    """The launch ran for more steps than allowed: an endless loop, or a limit that is too small."""
