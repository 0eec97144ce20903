"""The control fields of a machine instruction, which the compiler sets to schedule its issue.

From sm_70 on an instruction has 128 bits, with the control fields in its upper word. The hardware does not check
register dependences: an instruction issues a fixed number of clocks after the previous one (the stall count). An
instruction of unpredictable latency holds one of the warp's six scoreboards, and later instructions wait for it.

Sources: Jia, Maggioni, Staiger, Scarpazza, "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018),
2.1; positions of the fields from CuAssembler and TuringAs, equal for sm_70 to sm_90.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SCOREBOARDS", "Control"]

SCOREBOARDS = 6
"""Scoreboards of a warp."""

_SHIFT = 41
"""Position of the control fields in the upper word: bits 105 to 125 of the instruction."""
_NONE = 7


@dataclass(frozen=True)
class Control:
    """Control fields of one instruction.

    Attributes
    ----------
    stall : int
        Clocks until the warp may issue its next instruction, 0 to 15.
    yields : bool
        Whether the scheduler should prefer another warp next.
    write_barrier : int or None
        Scoreboard, 0 to 5, that is busy until the result is written.
    read_barrier : int or None
        Scoreboard that is busy until the operands are read.
    wait_mask : int
        One bit for each scoreboard that must be free before this instruction issues.
    reuse : int
        One bit for each operand slot whose register stays in the operand cache.
    """

    stall: int
    yields: bool
    write_barrier: int | None
    read_barrier: int | None
    wait_mask: int
    reuse: int

    @classmethod
    def decode(cls, upper: int) -> Control:
        """The control fields of an instruction, from its upper 64 bits."""
        bits = upper >> _SHIFT
        write, read = bits >> 5 & 7, bits >> 8 & 7
        return cls(
            stall=bits & 15,
            yields=not bits >> 4 & 1,  # a set bit means that the warp continues
            write_barrier=None if write == _NONE else write,
            read_barrier=None if read == _NONE else read,
            wait_mask=bits >> 11 & 63,
            reuse=bits >> 17 & 15,
        )

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The scoreboards of the wait mask."""
        return tuple(number for number in range(SCOREBOARDS) if self.wait_mask >> number & 1)

    def __str__(self) -> str:
        wait = "".join(str(number) if self.wait_mask >> number & 1 else "-" for number in range(SCOREBOARDS))
        read, write = ("-" if each is None else each for each in (self.read_barrier, self.write_barrier))
        return f"[B{wait}:R{read}:W{write}:{'Y' if self.yields else '-'}:S{self.stall:02}]"
