"""Translation of instructions that order threads to closures, with operands bound to a machine's register rows.

Each opcode has a handler ``handler(decoder, instruction) -> step`` in :mod:`warpsan.replay`; ``step(selection)``
replays it for those lanes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from warpsan.engine.machine import Machine
from warpsan.engine.selection import Array, Mask, Selection
from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.ir import Immediate, Instruction, Negated, Operand, Register, Symbol, Vector
from warpsan.ptx.modifiers import Mods, registering, unknown_register
from warpsan.ptx.types import TYPES, PtxType, unsigned

__all__ = ["HANDLERS", "Decoder", "Handler", "Step", "opcode"]

Step = Callable[[Selection], None]
Handler = Callable[["Decoder", Instruction], Step]

HANDLERS: dict[str, Handler] = {}
"""Handlers by the beginning of an instruction's text; ``cp.async.bulk`` precedes ``cp.async``."""

opcode = registering(HANDLERS)


class Decoder:
    """Binds operands of one entry to the rows of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def _raw(self, instruction: Instruction, name: str) -> tuple[Array, PtxType]:
        row = self.machine.row(name)
        if row is None:
            raise Mods(instruction).unsupported(unknown_register(name))
        return row

    def src(self, instruction: Instruction, operand: Operand, type_: PtxType) -> Array:
        """An operand's values as ``type_``: shape (lanes,), or (lanes, 2) for packed types. Read-only for constants."""
        if isinstance(operand, Register):
            special = None if self.machine.row(operand.name) else self.machine.special(operand.name)
            if special is not None and type_.bits == 32:
                return special.view(type_.dtype)
            if special is not None and type_.kind == "pred" and special.dtype == np.bool_:
                return special
            values, declared = self._raw(instruction, operand.name)
            return self._view(instruction, values, declared, type_)
        if isinstance(operand, Immediate):
            return self._constant(instruction, operand, type_)
        place = self.machine.address_of(operand.name, type_.dtype) if isinstance(operand, Symbol) else None
        if place is not None:
            return place
        raise UnsupportedInstruction(f"{instruction.text}: operand {operand} is not modelled", instruction.line)

    def predicate(self, instruction: Instruction, operand: Operand) -> Callable[[Selection], Mask]:
        """A reader of a predicate operand, possibly ``!p``: a function from a selection to its values."""
        negated = isinstance(operand, Negated)
        values = self.src(instruction, operand.register if isinstance(operand, Negated) else operand, TYPES["pred"])
        return (lambda sel: ~values[sel]) if negated else (lambda sel: values[sel])

    def vector(self, operand: Operand) -> tuple[Operand, ...]:
        """The elements of ``{a, b}``, or the single operand."""
        return operand.items if isinstance(operand, Vector) else (operand,)

    def _view(self, instruction: Instruction, values: Array, declared: PtxType, type_: PtxType) -> Array:
        if (declared.kind == "pred") != (type_.kind == "pred") or declared.bits < type_.bits:
            raise UnsupportedInstruction(
                f"{instruction.text}: a .{declared.name} register cannot be read as .{type_.name}", instruction.line
            )
        if type_.kind == "pred":
            return values
        if type_.lanes == 2:
            return values.view(type_.dtype).reshape(-1, 2)
        step = declared.bits // type_.bits
        viewed = values.view(type_.dtype)
        return viewed if step == 1 else viewed[::step]  # little endian: the low part comes first

    def _constant(self, instruction: Instruction, operand: Immediate, type_: PtxType) -> Array:
        value = operand.value
        if type_.kind == "pred":
            constant = np.asarray(bool(value))
        elif type_.is_float and type_.lanes == 1 and isinstance(value, float):
            constant = np.asarray(value, dtype=np.float64).astype(type_.dtype)
            if operand.float_bits == type_.bits:  # keep the payload of a NaN
                constant = np.frombuffer(_pack(value, operand.float_bits), dtype=type_.dtype)[0]
        else:
            bits = int.from_bytes(_pack(value, operand.float_bits), "little") if isinstance(value, float) else value
            raw = np.asarray(bits & (1 << type_.bits) - 1).astype(unsigned(type_.bits))
            constant = np.frombuffer(raw.tobytes(), dtype=type_.dtype)
            if type_.lanes == 2:
                return np.broadcast_to(constant, (self.machine.lanes, 2))
            constant = constant[0]
        return np.broadcast_to(constant, self.machine.lanes)


def _pack(value: float | int, bits: int) -> bytes:
    return struct.pack("<f" if bits == 32 else "<d", value)
