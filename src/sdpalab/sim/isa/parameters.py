"""Parameters: those of the kernel, which are constants, and ``.param`` variables, through which device functions take
arguments and give results (PTX ISA, "Parameter State Space").

A ``.param`` variable lies in local memory. Where its address is not taken its bytes are columns of it, known when an
instruction is decoded: nothing is computed for a lane.
"""

from __future__ import annotations

import numpy as np

from sdpalab.sim.decode import Decoder, Step
from sdpalab.sim.ir import Address, Instruction, Operand, Register, Symbol, Variable
from sdpalab.sim.machine import Machine
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.selection import Array, Selection
from sdpalab.sim.types import PtxType

__all__ = ["load_parameter", "parameter_by_address", "parameter_column", "parameter_place", "store_parameter"]


def parameter_column(machine: Machine, variable: Variable, offset: int, size: int) -> Array:
    """``size`` bytes of a ``.param`` variable as raw values, one a lane: unsigned integers, or void if they have no
    such width."""
    stride = machine.local_stride
    lanes = machine.spaces["local"].data[: stride * machine.lanes].reshape(machine.lanes, stride)
    begin = machine.symbols.addresses[variable.name][1] + offset
    column: Array = lanes[:, begin : begin + size].view(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")[:, 0]
    return column


def parameter_place(decoder: Decoder, instruction: Instruction, operand: Operand) -> Array:
    """The raw values of an argument or result, one a lane: a register or a whole ``.param`` variable.

    Raises
    ------
    UnsupportedInstruction
        If it is neither.
    """
    machine = decoder.machine
    if isinstance(operand, Register):
        row = machine.row(operand.name)
        special = machine.special(operand.name) if row is None else row[0]
        if special is not None:
            return special
    variable = _variable(machine, operand)
    if variable is None:
        raise Mods(instruction).unsupported(f"expected a register or a .param variable, not {operand}")
    return parameter_column(machine, variable, 0, variable.size)


def _variable(machine: Machine, operand: Operand | None) -> Variable | None:
    """The ``.param`` variable that an operand names."""
    variable = machine.entry.variables.get(operand.name) if isinstance(operand, Symbol) else None
    return variable if variable is not None and variable.space == "param" else None


def parameter_by_address(machine: Machine, instruction: Instruction) -> bool:
    """Whether a ``ld.param`` has an address in a register in place of a parameter's name."""
    operand = instruction.operands[1]
    return isinstance(operand, Address) and isinstance(operand.base, Register)


def load_parameter(decoder: Decoder, instruction: Instruction, destinations: list[Array], type_: PtxType) -> Step:
    """``ld.param`` of ``destinations``, one for each element."""
    machine, operand = decoder.machine, instruction.operands[1]
    base = operand.base if isinstance(operand, Address) else None
    if _variable(machine, base) is not None:
        columns = [column.view(type_.dtype) for column in _columns(decoder, instruction, 1, len(destinations), type_)]

        def load(sel: Selection) -> None:
            for destination, column in zip(destinations, columns, strict=True):
                destination[sel] = column[sel]

        return load
    params = {param.name: param for param in machine.entry.params}
    if not (isinstance(operand, Address) and isinstance(base, Symbol) and base.name in params):
        raise Mods(instruction).unsupported("expected a parameter's name")
    param = params[base.name]
    size = len(destinations) * type_.bytes
    _check(instruction, operand.offset, size, param.size, param.name)
    begin = param.offset + operand.offset
    values = np.frombuffer(machine.params[begin : begin + size], dtype=type_.dtype)

    def step(sel: Selection) -> None:
        for destination, value in zip(destinations, values, strict=True):
            destination[sel] = value

    return step


def store_parameter(decoder: Decoder, instruction: Instruction, sources: list[Array], type_: PtxType) -> Step:
    """``st.param`` of ``sources``, one for each element."""
    columns = _columns(decoder, instruction, 0, len(sources), type_)

    def step(sel: Selection) -> None:
        for column, source in zip(columns, sources, strict=True):
            column[sel] = source[sel]

    return step


def _columns(decoder: Decoder, instruction: Instruction, place: int, many: int, type_: PtxType) -> list[Array]:
    """The elements that an access of a ``.param`` variable names."""
    operand = instruction.operands[place]
    variable = _variable(decoder.machine, operand.base if isinstance(operand, Address) else None)
    if variable is None or not isinstance(operand, Address):
        raise Mods(instruction).unsupported("expected the name of a .param variable of a function or call")
    _check(instruction, operand.offset, many * type_.bytes, variable.size, variable.name)
    return [
        parameter_column(decoder.machine, variable, operand.offset + k * type_.bytes, type_.bytes) for k in range(many)
    ]


def _check(instruction: Instruction, offset: int, size: int, limit: int, name: str) -> None:
    if offset < 0 or offset + size > limit:
        raise Mods(instruction).unsupported(f"reaches beyond the {limit} bytes of parameter {name}")
