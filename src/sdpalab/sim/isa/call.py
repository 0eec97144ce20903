"""Calls of device functions, and returns from them (PTX ISA, "call", "ret").

A function's parameters and results are registers or ``.param`` variables of its own, so a call copies the arguments and
notes where to go on; a return copies the results and goes there, for each call site by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sdpalab.sim.decode import Decoder
from sdpalab.sim.errors import UnsupportedInstruction
from sdpalab.sim.flow import End, Flow, block_end, calls_nothing, leave
from sdpalab.sim.frames import Frames
from sdpalab.sim.ir import Function, Immediate, Instruction, Operand, Register, Symbol, Vector
from sdpalab.sim.isa.parameters import parameter_place
from sdpalab.sim.isa.system_calls import SYSTEM_CALLS
from sdpalab.sim.linking import callee, function_address, function_label
from sdpalab.sim.machine import AsyncUnit, Machine, Resume
from sdpalab.sim.modifiers import Mods
from sdpalab.sim.names import short_name
from sdpalab.sim.selection import Array, Selection, indices, subset
from sdpalab.sim.types import TYPES

__all__: list[str] = []

_Copies = list[tuple[Array, Array]]
"""(to, from), one value a lane."""


@dataclass(frozen=True)
class _CallSite:
    """Where lanes go on that called a function, what they take along, and the frames that the call put aside."""

    resume: int
    results: _Copies
    frames: Frames | None


class _Calls(AsyncUnit):
    """The call sites of a machine's program, and for each function the site that each lane called it from."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.sites: list[_CallSite] = []
        self.caller = {name: np.zeros(machine.lanes, dtype=np.int64) for name in machine.entry.functions}
        self._frames: dict[frozenset[str], Frames] = {}
        labels = machine.entry.labels
        self._begins = sorted((labels[function_label(name)], name) for name in machine.entry.functions)

    @staticmethod
    def of(machine: Machine) -> _Calls:
        """The machine's calls, made on first use."""
        unit = machine.units.get("call")
        if not isinstance(unit, _Calls):
            unit = machine.units["call"] = _Calls(machine)
        return unit

    def frames(self, instruction: Instruction, name: str) -> Frames | None:
        """What a call of ``name`` puts aside; None if it does not come from within a circle of calls."""
        entry = self.machine.entry
        circle = entry.circles.get(name)
        inside = [each for begin, each in self._begins if begin <= instruction.pc < entry.start]
        if circle is None or not inside or inside[-1] not in circle:
            return None
        if circle not in self._frames:
            callers = [self.caller[each] for each in sorted(circle)]
            self._frames[circle] = Frames(self.machine, circle, callers)
        return self._frames[circle]


@block_end("call")
def _call(flow: Flow, instruction: Instruction, following: int) -> End:
    """Calls of functions that the PTX defines, directly or through a register, and of ``vprintf``, ``__assertfail``,
    ``malloc`` and ``free``."""
    mods = Mods(instruction)
    mods.flag("uni")
    mods.done()
    machine, name = flow.machine, callee(instruction)
    if not name:
        return _through_register(flow, instruction, following)
    given, _, taken = instruction.operands[:3]
    assert isinstance(given, Vector)
    assert isinstance(taken, Vector)
    if name in SYSTEM_CALLS and name not in machine.entry.functions:
        act = SYSTEM_CALLS[name](flow.decoder, instruction, given.items, taken.items)

        def system_call(sel: Selection) -> list[Resume]:
            act(sel)
            return [(following, sel)]

        return system_call
    function = machine.entry.functions.get(name)
    if function is None:
        raise mods.unsupported(f"the function {short_name(name)} is declared, and the PTX does not define it")
    return _enter(flow, instruction, function, following)


def _enter(flow: Flow, instruction: Instruction, function: Function, following: int) -> End:
    """A call of a function that the PTX defines."""
    machine = flow.machine
    given, _, taken = instruction.operands[:3]
    assert isinstance(given, Vector)
    assert isinstance(taken, Vector)
    arguments = _copies(flow.decoder, instruction, function, function.params, taken.items, "arguments")
    calls = _Calls.of(machine)
    results = _copies(flow.decoder, instruction, function, function.results, given.items, "results")
    site, frames = len(calls.sites), calls.frames(instruction, function.name)
    calls.sites.append(_CallSite(following, [(target, source) for source, target in results], frames))
    caller, target = calls.caller[function.name], machine.program.block_of_label[function_label(function.name)]

    def end(sel: Selection) -> list[Resume]:
        values = [source[sel].copy() for _, source in arguments]
        if frames is not None:
            frames.push(sel, instruction)
        for (formal, _), value in zip(arguments, values, strict=True):
            formal[sel] = value
        caller[sel] = site
        return [(target, sel)]

    return end


def _through_register(flow: Flow, instruction: Instruction, following: int) -> End:
    """Each lane calls the function whose address it has."""
    machine = flow.machine
    addresses = flow.decoder.src(instruction, instruction.operands[1], TYPES["u64"])
    ends: dict[int, End] = {}
    errors: dict[int, UnsupportedInstruction] = {}
    for name in machine.entry.targets:
        address = function_address(machine.module, name)
        try:
            ends[address] = _enter(flow, instruction, machine.entry.functions[name], following)
        except UnsupportedInstruction as error:  # one with other parameters: not what is called here
            errors[address] = error

    def end(sel: Selection) -> list[Resume]:
        resumed: list[Resume] = []
        values = addresses[sel]
        for value in np.unique(values):
            part = subset(sel, values == value)
            if int(value) in errors:
                raise errors[int(value)]
            if int(value) not in ends:
                raise calls_nothing(instruction, int(value), *machine.where(int(indices(part)[0])))
            resumed += ends[int(value)](part)
        return resumed

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
        values = caller[sel].copy()  # a frame that is restored has others
        for number in (values[0],) if (values == values[0]).all() else np.unique(values):
            site = calls.sites[number]
            part = sel if (values == number).all() else subset(sel, values == number)
            results = [source[part].copy() for _, source in site.results]
            if site.frames is not None:
                site.frames.pop(part)
            for (target, _), value in zip(site.results, results, strict=True):
                target[part] = value
            resumed.append((site.resume, part))
        return resumed

    return end


def _copies(
    decoder: Decoder,
    instruction: Instruction,
    function: Function,
    formal: tuple[Register | Symbol, ...],
    actual: tuple[Operand, ...],
    what: str,
) -> _Copies:
    """(formal, actual) for each parameter or result."""
    mods = Mods(instruction)
    if len(formal) != len(actual):
        raise mods.unsupported(f"{short_name(function.name)} has {len(formal)} {what}, and {len(actual)} are given")
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
                f"{value.itemsize} bytes are passed for {own.itemsize} bytes of {short_name(function.name)}"
            )
        pairs.append((own, value))
    return pairs
