"""Translation of instructions to records in a ring: the ring's handlers precede those of the native engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from warpsan.engine import layout
from warpsan.engine.assembler import Assembler
from warpsan.engine.lanes import WORD64, Lanes
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.ring.flow import CodeFlow, flow_of
from warpsan.engine.ring.words import RingWords
from warpsan.numerics.ring import LARGE, Ring
from warpsan.ptx.grammar import Form, form_of
from warpsan.ptx.ir import Immediate, Instruction, Operand, Register
from warpsan.ptx.modifiers import find_handler, registering
from warpsan.ptx.types import PtxType
from warpsan.semantics.floating import base_of, is_half

__all__ = ["RING_HANDLERS", "RingAssembler", "algebraic"]

RingHandler = Callable[["RingAssembler", Instruction, Any], bool]

RING_HANDLERS: dict[str, RingHandler] = {}
"""Handlers by the beginning of an instruction's text. A handler that returns False leaves the instruction to the
native engine, because it computes no floating-point number."""

algebraic = registering(RING_HANDLERS)


@dataclass
class RingAssembler(Assembler):
    """An assembler with the floating-point instructions of a ring.

    Attributes
    ----------
    ring : Ring
    sites : dict of int to Instruction
        The instruction of each record that may end the run because it is not algebraic.
    """

    ring: Ring = field(kw_only=True)
    sites: dict[int, Instruction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.words = RingWords(self.ring)
        self.flow: CodeFlow = flow_of(self.entry)

    def name(self, operation: str, *, ordered: bool = False) -> str:
        """The name of an operation of this ring; if it does not depend on the order of codes, rings that differ only
        in that share it."""
        return f"{self.ring.name if ordered else self.ring.arithmetic}.{operation}"

    def source(self, operand: Operand, type_: str) -> int:
        """As in the base class; literals of 16-bit floating-point types are codes."""
        if type_ in ("f16", "bf16", "f16x2", "bf16x2"):
            literal = self.flow.literals.get(operand.name) if isinstance(operand, Register) else operand
            if isinstance(literal, Immediate):
                return super().source(
                    Immediate(_halves(self.ring, literal, type_)), "b32" if type_[-1] == "2" else "b16"
                )
        return super().source(operand, type_)

    def handle(self, instruction: Instruction) -> None:
        """Append the records of the current instruction, and set the words of the block that it ends.

        Raises
        ------
        NotNative, UnsupportedInstruction
        """
        handler = find_handler(RING_HANDLERS, instruction.text)
        if handler is None or not handler(self, instruction, form_of(instruction, Form)):
            super().handle(instruction)

    @property
    def suffix(self) -> str:
        """The name of the ring; sums do not depend on the order of codes."""
        return f".{self.ring.arithmetic}"

    def float_sum(self, type_: PtxType) -> tuple[str, Callable[..., Lanes]] | None:
        """The ring's sum of two words, of 32 bits or of 16."""
        words, base = self.words, base_of(type_)
        if is_half(type_):
            return "u16", lambda a, b: words.narrowed(words.add(words.widened(a, base), words.widened(b, base)), base)
        return ("u32", words.add) if type_.name == "f32" else None

    def ends(self, instruction: Instruction) -> bool:
        """Append a record that ends the run because the instruction is not algebraic."""
        self.sites[len(self.records)] = instruction
        self.record(NativeOperation(self.name("ends"), _end), [])
        return True

    def ends_unless(
        self,
        instruction: Instruction,
        name: str,
        holds: Callable[..., Lanes],
        rows: Sequence[int],
        types: Sequence[str],
    ) -> None:
        """Append a record that ends the run if a condition on rows fails for an active lane."""

        def build(code: OperationCode) -> None:
            condition = holds(*(code.source(k, type_) for k, type_ in enumerate(types)))
            code.leave_if((~condition & code.active).any(), layout.NOT_ALGEBRAIC)

        self.sites[len(self.records)] = instruction
        self.record(NativeOperation(self.name(name), build), rows)


def _end(code: OperationCode) -> None:
    code.builder.ret(WORD64(layout.NOT_ALGEBRAIC))


def _halves(ring: Ring, literal: Immediate, type_: str) -> int:
    """The bits of a 16-bit literal, or of two in one word, with codes for finite numbers."""
    dtype = np.dtype(np.float16 if type_.startswith("f16") else ml_dtypes.bfloat16)
    if isinstance(literal.value, float):
        bits = int(np.asarray(literal.value, dtype).view(np.uint16))
    else:
        bits = int(literal.value)
    result = 0
    for shift in (0, 16) if type_.endswith("x2") else (0,):
        half = np.array(bits >> shift & 0xFFFF, np.uint16)
        value = float(half.view(dtype))
        result |= (ring.constant(value) if abs(value) < LARGE else int(half)) << shift
    return result
