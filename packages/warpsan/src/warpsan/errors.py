"""Typed exceptions with one-sentence messages: bad input, failures of the machine, and errors that end a launch."""

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
    """Bad input or usage. The message is one sentence: the error, its place, and the correct form.

    A command line prints the message and exits with 2.
    """


class MachineError(RuntimeError):
    """A failure of the machine, not of the program: no space, no compiler, a worker that died before its first task.

    A command line prints the message and exits with 3.
    """


class SimError(Exception):
    """Base class of all exceptions of the simulator.

    Attributes
    ----------
    hazards : tuple of Hazard
        Hazards of the stopped launch before the error, in code order.
    """

    hazards: tuple[Hazard, ...] = ()


class PtxSyntaxError(SimError):
    """Invalid PTX. ``line`` is the line of the PTX text, counted from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.line = line


class UnsupportedInstruction(SimError):
    """Opcode, modifier, type or special register without a model. The simulator never skips one silently."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message, self.line = message, line

    def again(self) -> UnsupportedInstruction:
        """A copy of the exception, to be raised for another launch."""
        return UnsupportedInstruction(self.message, self.line)


class NotAlgebraic(SimError):
    """An executed instruction without a meaning in a ring, in a launch with ``numerics="ring"``.

    The kernel may still be correct. ``instruction`` is the instruction's text; ``line`` is its line in the PTX, counted
    from 1.
    """

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(
            f"PTX line {instruction.line}: {instruction.text} is not algebraic: it has no meaning in a ring of integers"
        )
        self.instruction, self.line = instruction.text, instruction.line


class LaunchError(SimError, ValueError):
    """Invalid launch: unknown entry, number or type of arguments, grid, block or shared memory size."""


class IllegalAccess(SimError):
    """An access outside all buffers or a misaligned access, in a launch without the ``memory`` check."""


class KernelTrap(SimError):
    """End of a launch by the kernel itself: a trap or a breakpoint."""


class DeviceAssertion(KernelTrap):
    """Failed ``assert`` in a kernel. The message has the assertion's text, file, line, function and first thread."""


class Deadlock(SimError):
    """Threads wait for an impossible event. The message has the barrier, the arrivals and the expected count."""


class StepLimit(SimError):
    """The launch took more steps than allowed: an endless loop, or a low limit."""
