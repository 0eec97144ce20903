"""Calls of device functions, and returns from them (PTX ISA, "call", "ret").

A function's parameters and results are registers or ``.param`` variables of its own, so a call copies the arguments and
notes where to go on; a return copies the results and goes there, for each call site by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpalab.sim.decode import Decoder, Mods
from sdpalab.sim.flow import End, Flow, block_end, leave
from sdpalab.sim.ir import Immediate, Instruction, Operand, Register, Symbol, Vector
from sdpalab.sim.isa.parameters import parameter_place
from sdpalab.sim.isa.system_calls import SYSTEM_CALLS
from sdpalab.sim.linking import callee, function_label
from sdpalab.sim.machine import AsyncUnit, Machine, Resume
from sdpalab.sim.selection import Array, Selection, subset
from sdpalab.sim.types import TYPES

__all__: list[str] = []

_Copies = list[tuple[Array, Array]]
"""(to, from), one value a lane."""


@dataclass(frozen=True)
class _CallSite:
    """Where lanes go on that called a function, and what they take along."""

    resume: int
    results: _Copies


class _Calls(AsyncUnit):
    """The call sites of a machine's program, and for each function the site that each lane called it from."""

    def __init__(self, machine: Machine) -> None:
        self.sites: list[_CallSite] = []
        self.caller = {name: np.zeros(machine.lanes, dtype=np.int64) for name in machine.entry.functions}

    @staticmethod
    def of(machine: Machine) -> _Calls:
        """The machine's calls, made on first use."""
        unit = machine.units.get("call")
        if not isinstance(unit, _Calls):
            unit = machine.units["call"] = _Calls(machine)
        return unit


@block_end("call")
def _call(flow: Flow, instruction: Instruction, following: int) -> End:
    """Direct calls of functions that the PTX defines, and of ``vprintf`` and ``__assertfail``."""
    mods = Mods(instruction)
    mods.flag("uni")
    mods.done()
    machine, name = flow.machine, callee(instruction)
    if not name:
        raise mods.unsupported("calls through a register are not modelled")
    given, _, taken = instruction.operands
    assert isinstance(given, Vector)
    assert isinstance(taken, Vector)
    if name in SYSTEM_CALLS:
        act = SYSTEM_CALLS[name](flow.decoder, instruction, given.items, taken.items)

        def system_call(sel: Selection) -> list[Resume]:
            act(sel)
            return [(following, sel)]

        return system_call
    function = machine.entry.functions.get(name)
    if function is None:
        raise mods.unsupported(f"the function {name} is declared, and the PTX does not define it")
    arguments = _copies(flow.decoder, instruction, function.params, taken.items, "arguments")
    calls = _Calls.of(machine)
    results = _copies(flow.decoder, instruction, function.results, given.items, "results")
    site = len(calls.sites)
    calls.sites.append(_CallSite(following, [(target, source) for source, target in results]))
    caller, target = calls.caller[name], machine.program.block_of_label[function_label(name)]

    def end(sel: Selection) -> list[Resume]:
        _copy(arguments, sel)
        caller[sel] = site
        return [(target, sel)]

    return end


@block_end("ret")
def _ret(flow: Flow, instruction: Instruction, following: int) -> End:
    mods = Mods(instruction)
    mods.flag("uni")
    mods.done()
    if not instruction.operands:
        return leave(flow)
    function = instruction.operands[0]
    assert isinstance(function, Symbol)
    calls = _Calls.of(flow.machine)
    caller = calls.caller[function.name]

    def end(sel: Selection) -> list[Resume]:
        resumed: list[Resume] = []
        values = caller[sel]
        for number in (values[0],) if (values == values[0]).all() else np.unique(values):
            site = calls.sites[number]
            part = sel if (values == number).all() else subset(sel, values == number)
            _copy(site.results, part)
            resumed.append((site.resume, part))
        return resumed

    return end


def _copy(copies: _Copies, sel: Selection) -> None:
    """Copy all values; what is written may be read by another of the copies."""
    values = [source[sel].copy() for _, source in copies]
    for (target, _), value in zip(copies, values, strict=True):
        target[sel] = value


def _copies(
    decoder: Decoder,
    instruction: Instruction,
    formal: tuple[Register | Symbol, ...],
    actual: tuple[Operand, ...],
    what: str,
) -> _Copies:
    """(formal, actual) for each parameter or result."""
    mods = Mods(instruction)
    if len(formal) != len(actual):
        raise mods.unsupported(f"{callee(instruction)} has {len(formal)} {what}, and {len(actual)} are given")
    pairs = []
    for inner, outer in zip(formal, actual, strict=True):
        if isinstance(inner, Register) and decoder.machine.row(inner.name) is None:
            continue  # it is never read
        own = parameter_place(decoder, instruction, inner)
        if isinstance(outer, Immediate) and f"b{8 * own.itemsize}" in TYPES:
            value = decoder.src(instruction, outer, TYPES[f"b{8 * own.itemsize}"])
        else:
            value = parameter_place(decoder, instruction, outer)
        if value.itemsize != own.itemsize:
            raise mods.unsupported(
                f"{value.itemsize} bytes are passed for {own.itemsize} bytes of {callee(instruction)}"
            )
        pairs.append((own, value))
    return pairs
