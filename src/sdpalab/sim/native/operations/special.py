"""Roots, reciprocals, exponentials and related instructions, by the rules of :mod:`sdpalab.sim.isa.special`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from sdpalab.sim.decode import Mods
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.rounding import FORMATS, ROUNDINGS
from sdpalab.sim.native import layout
from sdpalab.sim.native.assembler import Assembler, NotNative, native
from sdpalab.sim.native.lanes import POINTER, WORD64, Lanes, where
from sdpalab.sim.native.layout import WARP
from sdpalab.sim.native.numeric import canonical, flushed, narrowed, round_to, widened
from sdpalab.sim.native.numpy_loops import loop_of
from sdpalab.sim.native.operation import NativeOperation, OperationCode
from sdpalab.sim.native.operations.floating import Compute, base_of, clamped, is_half
from sdpalab.sim.types import PtxType

__all__: list[str] = []

_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_LOOPS: dict[str, tuple[np.ufunc, str, tuple[str, ...]]] = {
    "ex2": (np.exp2, "f32", ("f32", *_HALVES)),
    "lg2": (np.log2, "f64", ("f32",)),
    "sin": (np.sin, "f64", ("f32",)),
    "cos": (np.cos, "f64", ("f32",)),
    "tanh": (np.tanh, "f64", ("f32", *_HALVES)),
}
"""The NumPy function of each, the type in which it is evaluated, and the types of the instruction."""


def _called(code: OperationCode, x: Lanes, first: int) -> Lanes:
    """NumPy's loop on a row; operands ``first`` and up are its address and its data's, 32 bits each."""
    b = code.builder
    signature = ir.FunctionType(ir.VoidType(), [POINTER] * 4)
    halves = [code.operand(first + k) for k in range(4)]
    function, data = (
        b.inttoptr(b.or_(b.shl(halves[k + 1], WORD64(32)), b.and_(halves[k], WORD64(0xFFFFFFFF))), type_)
        for k, type_ in ((0, signature.as_pointer()), (2, POINTER))
    )
    rows = []
    for _ in range(2):
        row = b.alloca(x.value.type)
        row.align = 64
        rows.append(row)
    b.store(x.value, rows[0], align=64)
    words = code.at(code.pointer(layout.SCRATCH), WORD64(0))
    addresses = [b.ptrtoint(row, WORD64) for row in rows]
    for k, word in enumerate((*addresses, WORD64(x.count), WORD64(x.bits // 8), WORD64(x.bits // 8))):
        b.store(word, code.at(words, WORD64(8 * k)), align=8)
    arguments, count, steps = (code.at(words, WORD64(8 * k)) for k in (0, 2, 3))
    b.call(function, [arguments, count, steps, data])
    return Lanes(b, b.load(rows[1], typ=x.value.type, align=64), x.type)


def _approximated(asm: Assembler, instruction: Instruction, name: str, type_: PtxType, *, ftz: bool) -> None:
    """An instruction that NumPy evaluates."""
    ufunc, within, types = _LOOPS[name]
    if type_.name not in types:
        raise NotNative(f"{name} of .{type_.name}")
    base, half = base_of(type_), is_half(type_)
    flushes_result_only = name == "ex2" and type_.name == "f32"

    def build(code: OperationCode) -> None:
        held = {"f16": "u16", "bf16": "u16"}.get(base, base)
        x = code.source(1, held, WARP * type_.lanes)
        x = flushed(x, base) if ftz and not flushes_result_only else x
        wide = widened(x, base) if half else x
        result = _called(code, wide.to(within), 2).to("f32")
        if ftz and flushes_result_only:
            result = where(result < 2.0**-126, result.like(0), result)
        result = narrowed(result, base) if half else result
        result = flushed(result, base) if ftz and not flushes_result_only else result
        code.store(0, canonical(result, base))

    row = asm.source(instruction.operands[1], type_.name)
    place, finish = asm.target(instruction.operands[0], type_.name)
    words = [part for address in loop_of(ufunc, within) for part in _halves_of(address)]
    asm.record(NativeOperation(f"{name}.approx{'.ftz' * ftz}.{type_.name}", build), [place, row, *words])
    finish()


def _halves_of(address: int) -> tuple[int, int]:
    """The lower and the upper 32 bits as signed words."""
    low, high = np.array([address], np.uint64).view(np.int32).tolist()
    return low, high


@native("ex2", "lg2", "sin", "cos", "tanh")
def _transcendental(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    mods.choice(("approx",))
    type_ = mods.type()
    ftz = instruction.opcode != "tanh" and mods.flag("ftz")
    mods.done()
    _approximated(asm, instruction, instruction.opcode, type_, ftz=ftz)


def _algebraic(name: str) -> tuple[Compute, Compute]:
    """rcp, sqrt or rsqrt in the argument's type; and in f64, to be rounded."""
    functions: dict[str, tuple[Compute, Compute]] = {
        "rcp": (lambda x: x.like(1) / x, lambda x: x.like(1) / x),
        "sqrt": (lambda x: x.call("sqrt"), lambda x: x.call("sqrt")),
        "rsqrt": (lambda x: (x.to("f64").like(1) / x.to("f64").call("sqrt")).to(x.type), lambda x: x),
    }
    return functions[name]


@native("rcp", "sqrt", "rsqrt")
def _root(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    name = instruction.opcode
    rounding = mods.choice(("approx",) if name == "rsqrt" else ("approx", *ROUNDINGS))
    type_ = mods.type()
    ftz = mods.flag("ftz")
    mods.done()
    allowed = ("f32", "f64") if rounding == "rn" or name == "rsqrt" else ("f32",)
    if type_.name not in allowed or (type_.name == "f64" and ftz):
        raise NotNative(f"{instruction.text}")
    exact, wide = _algebraic(name)
    compute: Callable[..., Lanes] = exact
    if rounding not in ("approx", "rn"):
        compute = lambda x: round_to(wide(x.to("f64")), FORMATS["f32"], rounding).to("f32")  # noqa: E731
    target, source = instruction.operands
    asm.compute(
        f"{name}.{rounding}{'.ftz' * ftz}.{type_.name}",
        clamped(compute, type_, ftz=ftz),
        [(target, type_.name)],
        [(source, type_.name)],
    )
