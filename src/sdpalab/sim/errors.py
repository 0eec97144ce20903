"""What the simulator refuses or finds impossible: typed exceptions, one clear sentence each."""

from __future__ import annotations

__all__ = [
    "Deadlock",
    "IllegalAccess",
    "LaunchError",
    "PtxSyntaxError",
    "SimError",
    "StepLimit",
    "UnsupportedInstruction",
]


class SimError(Exception):
    """Base of everything the simulator raises."""


class PtxSyntaxError(SimError):
    """The PTX cannot be read. ``line`` is the line of the PTX text, counted from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.line = line


class UnsupportedInstruction(SimError):
    """An opcode, modifier, type or special register that is not modelled. Never skipped silently."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.line = line


class LaunchError(SimError, ValueError):
    """The launch itself is wrong: unknown entry, number or type of arguments, grid, block or shared memory."""


class IllegalAccess(SimError):
    """An access outside every buffer or a misaligned one, in a launch without the ``memory`` check to record it."""


class Deadlock(SimError):
    """Threads wait for what can never come. The message names the barrier, who arrived and who is expected."""


class StepLimit(SimError):
    """The launch ran for more steps than allowed: an endless loop, or a limit that is too small."""
