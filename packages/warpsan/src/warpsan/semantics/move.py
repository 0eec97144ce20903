"""Data movement: mov, ld, st, cvta (PTX ISA, "Data Movement and Conversion Instructions")."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from warpsan.engine.access import addresses, gather_all, located, scatter_all, side_by_side
from warpsan.engine.assembler import Assembler, Constant, native
from warpsan.engine.lanes import WORD64, Lanes
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.watch import wait_for_grids
from warpsan.host.memory import GLOBAL_BASE, WINDOW_BITS, generic_base
from warpsan.ptx.accesses import LoadStore
from warpsan.ptx.arithmetic import SpaceTest, ToSpace
from warpsan.ptx.forms import CLOCKS, of_kernel
from warpsan.ptx.grammar import Computation, Form
from warpsan.ptx.ir import Address, Immediate, Instruction, Operand, Param, Register, Symbol, Variable, Vector
from warpsan.ptx.types import PtxType
from warpsan.semantics.watched import Access, check_step, strong_effect, watch_access

__all__ = ["load_operation", "local_load", "local_store", "store_operation", "without_policy"]

_COALESCED = ("global", "generic")
"""Spaces in which the lanes of a warp mostly access places side by side."""
PARAMETER_BITS = (1 << 32) - 1
"""Mask of the bits of an address in the parameter space that are used."""


@native("mov")
def _mov(asm: Assembler, instruction: Instruction, form: Computation) -> None:
    type_ = form.type
    target, origin = instruction.operands
    if isinstance(origin, Register) and origin.name in CLOCKS:
        _read_clock(asm, target, type_, *CLOCKS[origin.name])
    elif isinstance(target, Vector):
        _unpack(asm, target, origin, type_.bits)
    elif isinstance(origin, Vector):
        _pack(asm, target, origin, type_.bits)
    else:
        row = asm.source(origin, type_.name)
        _copy(asm, target, type_, row)


def _copy(asm: Assembler, target: Operand, type_: PtxType, row: int) -> None:
    """Append the record that copies a row to a register."""
    place, finish = asm.target(target, type_.name)
    bits = "pred" if type_.kind == "pred" else f"b{type_.bits}"
    asm.lanewise(f"mov.{bits}", lambda x: x, [place], [row], [bits], [bits])
    finish()


def _read_clock(asm: Assembler, target: Operand, type_: PtxType, width: int, shift: int) -> None:
    """Steps of the cluster so far, equal for all lanes; every reading increases it."""
    if type_.bits != width or type_.is_float:
        raise asm.unsupported(f"the clock has {width} bits")

    def build(code: OperationCode) -> None:
        b, word = code.builder, code.field("clock")
        behind = b.add(b.load(word, typ=WORD64), WORD64(1))
        b.store(behind, word)
        now = code.spread(b.add(behind, code.context("steps_taken")), "u64")
        code.store(0, (now >> shift).to(f"u{width}"))

    row, finish = asm.target(target, type_.name)
    asm.record(NativeOperation(f"clock.{width}.{shift}", build), [row])
    finish()


def _unpack(asm: Assembler, target: Vector, origin: Operand, bits: int) -> None:
    part = bits // len(target.items)

    def function(whole: Lanes) -> tuple[Lanes, ...]:
        return tuple((whole >> k * part).to(f"b{part}") for k in range(len(target.items)))

    targets = [(item, f"b{part}") for item in target.items]
    asm.compute(f"unpack.{bits}.{part}", function, targets, [(origin, f"b{bits}")])


def _pack(asm: Assembler, target: Operand, origin: Vector, bits: int) -> None:
    part = bits // len(origin.items)

    def function(*parts: Lanes) -> Lanes:
        whole = parts[0].to(f"b{bits}")
        for k, each in enumerate(parts[1:], 1):
            whole = whole | (each.to(f"b{bits}") << k * part)
        return whole

    sources = [(item, f"b{part}") for item in origin.items]
    asm.compute(f"pack.{bits}.{part}", function, [(target, f"b{bits}")], sources)


@native("cvta")
def _cvta(asm: Assembler, instruction: Instruction, form: ToSpace) -> None:
    to, space, type_ = form.to, form.space, form.type.name
    if space == "param" and not to:  # a 32-bit register has lost the upper half of its value
        asm.elementwise(instruction, f"cvta.param.{type_}", lambda x: (x & PARAMETER_BITS) + GLOBAL_BASE, type_, type_)
        return
    base = generic_base(space) if space != "param" else 0
    shift = -base if to else base
    asm.elementwise(instruction, f"cvta.{shift}.{type_}", lambda x: x + shift, type_, type_)


@native("isspacep")
def _isspacep(asm: Assembler, instruction: Instruction, form: SpaceTest) -> None:
    space = form.space
    windows = {name: generic_base(name) >> WINDOW_BITS for name in ("shared", "shared::cluster", "local")}

    def function(address: Lanes) -> Lanes:
        window = address >> WINDOW_BITS
        if space in windows:
            return window == windows[space]
        return (window != windows["shared"]) & (window != windows["local"])

    asm.elementwise(instruction, f"isspacep.{space}", function, "pred", "u64")


# ---- loads and stores ------------------------------------------------------------------------------------------------


def without_policy(asm: Assembler, instruction: Instruction, hint: bool) -> list[Operand]:
    """The operands without the L2 cache policy, the last one with ``hint``, which changes no value."""
    operands = list(instruction.operands)
    if hint:
        asm.source(operands.pop(), "b64")
    return operands


@native("ld", "ldu")
def _ld(asm: Assembler, instruction: Instruction, form: LoadStore) -> None:
    target, address = without_policy(asm, instruction, form.hint)
    vector, type_ = form.vector, form.type
    items = asm.vector(target)
    if len(items) != vector:
        raise asm.unsupported(f"expected {vector} registers")
    space = "global" if form.space == "const" else form.space
    if space == "param":
        if isinstance(address, Address) and isinstance(address.base, Register):
            _load_by_address(asm, instruction, form, items, address)
        else:
            _load_parameter(asm, items, address, type_)
        return
    row, bits, offset = asm.address(address)
    places = [asm.target(item, type_.name) for item in items]
    operation, rows = load_operation(space, bits, type_.bits, vector), [place for place, _ in places]
    done = False
    if asm.watched:
        width, strong = vector * type_.bytes, strong_effect(asm, instruction)
        access = Access(operation.name, _gathered(space, type_.bits, vector), rows)
        done = watch_access(asm, instruction, space, row, bits, offset, width, "load", strong=strong, access=access)
    if not done:
        asm.record(operation, [row, offset, *rows])
    for _, finish in places:
        finish()


def _load_by_address(
    asm: Assembler, instruction: Instruction, form: LoadStore, items: tuple[Operand, ...], address: Address
) -> None:
    """A parameter by its address: kernel parameters lie in global memory, and nothing writes them."""
    type_ = form.type
    if form.too_wide:
        raise asm.unsupported(form.too_wide)
    row, bits, offset = asm.address(address)
    space = "global" if of_kernel(asm.entry, instruction) else "local"
    if space == "global":
        place, shift = asm.temporary(64), asm.number(offset, "u64")
        types = [f"u{bits}", "u64"]
        asm.lanewise(f"param.{bits}", _of_parameters, [place], [row, shift], ["u64"], types)
        row, bits, offset = place, 64, 0
    places = [asm.target(item, type_.name) for item in items]
    operation = load_operation(space, bits, type_.bits, len(items))
    asm.record(operation, [row, offset, *(each for each, _ in places)])
    for _, finish in places:
        finish()


def _of_parameters(address: Lanes, shift: Lanes) -> Lanes:
    return ((address.to("u64") + shift) & PARAMETER_BITS) + GLOBAL_BASE


def _load_parameter(asm: Assembler, items: tuple[Operand, ...], address: Operand, type_: PtxType) -> None:
    base = address.base if isinstance(address, Address) else None
    variable = _parameter(asm, address)
    if variable is not None:
        _check_reach(asm, address, len(items) * type_.bytes, variable)
        places = [asm.target(item, type_.name) for item in items]
        row, bits, offset = asm.address(address)
        operation = load_operation("local", bits, type_.bits, len(items), aligned=False)
        asm.record(operation, [row, offset, *(place for place, _ in places)])
        for _, finish in places:
            finish()
        return
    param = next((each for each in asm.entry.params if isinstance(base, Symbol) and each.name == base.name), None)
    if param is None or not isinstance(address, Address):
        raise asm.unsupported("expected a parameter's name")
    _check_reach(asm, address, len(items) * type_.bytes, param)
    for k, item in enumerate(items):
        place = param.offset + address.offset + k * type_.bytes
        _copy(asm, item, type_, asm.constant(Constant("parameter", place, type_.bits)))


def _parameter(asm: Assembler, address: Operand) -> Variable | None:
    """The ``.param`` variable of a device function or a call at an address: it lies in local memory."""
    base = address.base if isinstance(address, Address) else None
    variable = asm.entry.variables.get(base.name) if isinstance(base, Symbol) else None
    return variable if variable is not None and variable.space == "param" else None


def _check_reach(asm: Assembler, address: Operand, size: int, parameter: Variable | Param) -> None:
    if not isinstance(address, Address) or address.offset < 0 or address.offset + size > parameter.size:
        raise asm.unsupported(f"reaches beyond the {parameter.size} bytes of parameter {parameter.name}")


def local_load(element: int, *, aligned: bool) -> NativeOperation:
    """The operation that loads an element of each lane's local memory: operands are address, offset and target."""
    return load_operation("local", 64, element, 1, aligned=aligned)


def local_store(element: int, *, aligned: bool) -> NativeOperation:
    """The operation that stores an element of each lane's local memory: operands are address, offset and source."""
    return store_operation("local", 64, element, 1, False, aligned=aligned)


def load_operation(space: str, bits: int, element: int, vector: int, *, aligned: bool = True) -> NativeOperation:
    """A load: operands are the row of the addresses, an offset, and the rows of the results. A load of a parameter
    may start at any byte."""
    width = element // 8 * vector

    def build(code: OperationCode) -> None:
        everyone = code.mask
        place = addresses(code, located(code, 0, space, bits), space, width, width if aligned else 1, reads=True)
        _gathered(space, element, vector, aligned=aligned)(code, place, everyone, 2)

    suffix = ".unaligned" * (not aligned)
    return NativeOperation(f"ld.{space}.{bits}.{element}x{vector}{suffix}", build)


def _gathered(
    space: str, element: int, vector: int, *, aligned: bool = True
) -> Callable[[OperationCode, Lanes, Any, int], None]:
    """The code that reads values from places; an illegal access reads poison."""

    def act(code: OperationCode, place: Lanes, everyone: Any, first: int) -> None:
        align = element // 8 if aligned else 1
        values = gather_all(code, place, f"u{element}", vector, align, coalesced=space in _COALESCED)
        code.mask = everyone
        for k, value in enumerate(values):
            code.store(first + k, value)

    return act


@native("st")
def _st(asm: Assembler, instruction: Instruction, form: LoadStore) -> None:
    address, value = without_policy(asm, instruction, form.hint)
    space, vector, type_ = form.space, form.vector, form.type
    items = asm.vector(value)
    if len(items) != vector:
        raise asm.unsupported(f"expected {vector} values")
    sources = [asm.source(item, f"b{type_.bits}") for item in items]
    if space == "param":
        variable = _parameter(asm, address)
        if variable is None:
            raise asm.unsupported("expected the name of a .param variable of a function or call")
        _check_reach(asm, address, vector * type_.bytes, variable)
        space = "local"
    row, bits, offset = asm.address(address)
    strong, aligned = strong_effect(asm, instruction), form.space != "param"
    checked = asm.checked and space != "local" and strong < 0
    operation, done = store_operation(space, bits, type_.bits, vector, checked, aligned=aligned), False
    if asm.watched:
        width, written = vector * type_.bytes, (type_.bytes, sources)
        access = Access(operation.name, _scattered(space, bits, type_.bits, vector, checked), sources)
        done = watch_access(
            *(asm, instruction, space, row, bits, offset, width, "store"), strong=strong, written=written, access=access
        )
    if not done:
        asm.record(operation, [row, offset, *sources])


def store_operation(
    space: str, bits: int, element: int, vector: int, checked: bool, *, aligned: bool = True
) -> NativeOperation:
    """A store. With ``checked``, no lane may find another lane's value in its place after it; without ``aligned``,
    it may start at any byte of a parameter."""
    width = element // 8 * vector

    def build(code: OperationCode) -> None:
        place = addresses(code, located(code, 0, space, bits), space, width, width if aligned else 1)
        _scattered(space, bits, element, vector, checked, aligned=aligned)(code, place, code.mask, 2)

    suffix = ".checked" * checked + ".unaligned" * (not aligned)
    return NativeOperation(f"st.{space}.{bits}.{element}x{vector}{suffix}", build)


def _scattered(
    space: str, bits: int, element: int, vector: int, checked: bool, *, aligned: bool = True
) -> Callable[[OperationCode, Lanes, Any, int], None]:
    """The code that writes values to places, and checks the lanes' values afterwards."""

    def act(code: OperationCode, place: Lanes, everyone: Any, first: int) -> None:
        align = element // 8 if aligned else 1
        values = [code.source(first + k, f"u{element}") for k in range(vector)]
        scatter_all(code, place, values, align, coalesced=space in _COALESCED)
        if not checked:
            return
        b = code.builder
        width = vector * element // 8
        with b.if_then(b.not_(side_by_side(code, place, width)[1]), likely=False):
            left = gather_all(code, place, f"u{element}", vector, align, coalesced=False)
            differ = functools.reduce(operator.or_, (a != b for a, b in zip(left, values, strict=True)))
            check_step(code, space, located(code, 0, space, bits), code.those(differ), width)

    return act


# ---- no effect on values ---------------------------------------------------------------------------------------------


@native("nanosleep")
def _nanosleep(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Has no effect: there is no wait."""


@native("pmevent")
def _pmevent(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """An event for profilers, without another effect."""
    if not isinstance(instruction.operands[0], Immediate):
        raise asm.unsupported("expected an immediate")


@native("griddepcontrol.wait", "griddepcontrol.launch_dependents")
def _griddepcontrol(asm: Assembler, instruction: Instruction, form: Form) -> None:
    """Launches run one after the other, so the grids that a grid depends on are complete; a check uses the accesses
    after it."""
    if form.name == "griddepcontrol.wait" and asm.checked:
        asm.call("griddepcontrol.wait", wait_for_grids, [])
