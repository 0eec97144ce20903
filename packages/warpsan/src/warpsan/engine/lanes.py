"""Values of all 32 lanes of a warp, from which the code of an operation is generated once.

An operation is a Python function of :class:`Lanes` that is called once, when the library is built: every operator that
it applies appends LLVM instructions on vectors of 32 elements. ``lambda a, b: a + b`` is a complete addition, in every
type, and its result does not depend on a compiler's vectorisation of a loop. No instruction has a fast-math flag or is
contracted: the bits do not depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from warpsan.ptx.types import TYPES

__all__ = ["BYTE", "POINTER", "WORD32", "WORD64", "Lanes", "llvm_type", "where", "where_any"]

BYTE, WORD32, WORD64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
_BIT = ir.IntType(1)

_TOWARDS_ZERO = 3 | 8
"""The rounding mode of an instruction of AVX-512, without exceptions."""
_ORDERED = {"==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def _element(type_: str) -> Any:
    """The LLVM type of one element. Halves are kept as their bits: arithmetic on them goes through f32."""
    if type_ == "pred":
        return _BIT
    if type_ == "f32":
        return ir.FloatType()
    if type_ == "f64":
        return ir.DoubleType()
    return ir.IntType(int(type_[1:]) if type_ == "u128" else TYPES[type_].bits // TYPES[type_].lanes)


def llvm_type(type_: str, count: int = 32) -> Any:
    """The LLVM vector of ``count`` elements of a PTX type."""
    return ir.VectorType(_element(type_), count)


def _constant(type_: str, value: float | int, count: int) -> Any:
    element = _element(type_)
    if type_ in ("f32", "f64"):
        held: Any = float(np.float32(value)) if type_ == "f32" else float(value)
    else:
        held = int(value) & (1 << element.width) - 1
    return ir.Constant(ir.VectorType(element, count), [ir.Constant(element, held)] * count)


class Lanes:
    """One value a lane, in a PTX type; packed types have two elements a lane.

    Attributes
    ----------
    builder : llvmlite.ir.IRBuilder
    value : llvmlite.ir.Value
    type : str
        The PTX type of the operators: ``u``, ``s`` and ``b`` of 8 to 64 bits, f32, f64 or pred. Halves are bits.
    """

    __slots__ = ("builder", "type", "value")

    def __init__(self, builder: Any, value: Any, type_: str) -> None:
        self.builder, self.value, self.type = builder, value, type_

    # ---- making values ----------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Elements."""
        return int(self.value.type.count)

    @property
    def bits(self) -> int:
        """Width of an element."""
        return {"f32": 32, "f64": 64}.get(self.type) or int(_element(self.type).width)

    @property
    def floating(self) -> bool:
        """Whether operators compute in floating point."""
        return self.type in ("f32", "f64")

    @property
    def signed(self) -> bool:
        """Whether comparisons, shifts and divisions are signed."""
        return self.type.startswith("s")

    def like(self, value: float | int) -> Lanes:
        """The same constant in every element, in this value's type."""
        return Lanes(self.builder, _constant(self.type, value, self.count), self.type)

    def constant(self, type_: str, value: float | int) -> Lanes:
        """The same constant in every element, in a type."""
        return Lanes(self.builder, _constant(type_, value, self.count), type_)

    def each(self, type_: str, values: Sequence[int]) -> Lanes:
        """A constant for each element."""
        element = _element(type_)
        constant = ir.Constant(ir.VectorType(element, len(values)), [ir.Constant(element, v) for v in values])
        return Lanes(self.builder, constant, type_)

    def _new(self, value: Any, type_: str | None = None) -> Lanes:
        return Lanes(self.builder, value, type_ or self.type)

    def _with(self, other: Lanes | float | int) -> Lanes:
        return other if isinstance(other, Lanes) else self.like(other)

    # ---- arithmetic -------------------------------------------------------------------------------------------------

    def _binary(self, other: Lanes | float | int, integer: str, floating: str = "") -> Lanes:
        name = floating if self.floating else integer
        return self._new(getattr(self.builder, name)(self.value, self._with(other).value))

    def __add__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "add", "fadd")

    def __sub__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "sub", "fsub")

    def __mul__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "mul", "fmul")

    def __truediv__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "", "fdiv")

    def __floordiv__(self, other: Lanes | float | int) -> Lanes:
        """Division towards zero; integer divisors must not be zero."""
        return self._binary(other, "sdiv" if self.signed else "udiv")

    def __mod__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "srem" if self.signed else "urem")

    def __and__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "and_")

    def __or__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "or_")

    def __xor__(self, other: Lanes | float | int) -> Lanes:
        return self._binary(other, "xor")

    def __invert__(self) -> Lanes:
        return self ^ -1

    def __neg__(self) -> Lanes:
        if self.floating:
            return self._new(self.builder.fneg(self.value))
        return self.like(0) - self

    def __lshift__(self, by: Lanes | int) -> Lanes:
        """Shift by less than the width; :func:`shifted_left` takes any amount."""
        return self._binary(by, "shl")

    def __rshift__(self, by: Lanes | int) -> Lanes:
        return self._binary(by, "ashr" if self.signed else "lshr")

    # ---- comparison -------------------------------------------------------------------------------------------------

    def _compare(self, other: Lanes | float | int, operator: str) -> Lanes:
        left, right = self.value, self._with(other).value
        if self.floating:
            compare = self.builder.fcmp_unordered if operator == "!=" else self.builder.fcmp_ordered
        else:
            compare = self.builder.icmp_signed if self.signed else self.builder.icmp_unsigned
        return self._new(compare(operator, left, right), "pred")

    def __eq__(self, other: Lanes | float | int) -> Lanes:  # type: ignore[override]
        return self._compare(other, "==")

    def __ne__(self, other: Lanes | float | int) -> Lanes:  # type: ignore[override]
        """True where an operand is NaN."""
        return self._compare(other, "!=")

    def __lt__(self, other: Lanes | float | int) -> Lanes:
        return self._compare(other, "<")

    def __le__(self, other: Lanes | float | int) -> Lanes:
        return self._compare(other, "<=")

    def __gt__(self, other: Lanes | float | int) -> Lanes:
        return self._compare(other, ">")

    def __ge__(self, other: Lanes | float | int) -> Lanes:
        return self._compare(other, ">=")

    __hash__ = None  # type: ignore[assignment]

    @property
    def nan(self) -> Lanes:
        """The elements that are NaN."""
        return self != self

    # ---- conversion -------------------------------------------------------------------------------------------------

    def as_type(self, type_: str) -> Lanes:
        """The same bits as another type; of another width, as more or fewer elements, the lowest first."""
        if _element(type_) == _element(self.type):
            return self._new(self.value, type_)
        width = {"f32": 32, "f64": 64}.get(type_) or int(_element(type_).width)
        return self._new(self.builder.bitcast(self.value, llvm_type(type_, self.count * self.bits // width)), type_)

    def to(self, type_: str) -> Lanes:
        """The same number in another type: exact, wrapped, rounded to nearest even, or (to integers) towards zero.

        To integers, the number must fit.
        """
        target, b = llvm_type(type_, self.count), self.builder
        to_float = type_ in ("f32", "f64")
        if self.floating and to_float:
            name = "fpext" if type_ == "f64" else "fptrunc"
            return self if self.type == type_ else self._new(getattr(b, name)(self.value, target), type_)
        if self.floating:
            return self._new((b.fptosi if type_[0] == "s" else b.fptoui)(self.value, target), type_)
        if to_float:
            return self._new((b.sitofp if self.signed else b.uitofp)(self.value, target), type_)
        width = int(_element(type_).width)
        if width == self.bits:
            return self._new(self.value, type_)
        convert = b.trunc if width < self.bits else b.sext if self.signed else b.zext
        return self._new(convert(self.value, target), type_)

    def frozen(self) -> Lanes:
        """This value, with LLVM's undefined elements (a conversion out of range) replaced by some value."""
        b = self.builder
        instruction = ir.Instruction(b.block, self.value.type, "freeze", [self.value])
        b._insert(instruction)
        return self._new(instruction)

    def half_to_float(self) -> Lanes:
        """f16 bits as f32, by the processor."""
        halves = self.builder.bitcast(self.value, ir.VectorType(ir.HalfType(), self.count))
        return self._new(self.builder.fpext(halves, llvm_type("f32", self.count)), "f32")

    def rounded_to_zero(self) -> Lanes:
        """16 elements of 32 bits as f32, rounded towards zero by AVX-512."""
        arguments, result = [self.value, WORD32(_TOWARDS_ZERO)], llvm_type("f32", 16)
        name = f"llvm.x86.avx512.{'s' if self.signed else 'u'}itofp.round.v16f32.v16i32"
        return self._new(self.builder.call(_declared(self.builder, name, arguments, result), arguments), "f32")

    def call(self, intrinsic: str, *others: Lanes) -> Lanes:
        """An LLVM intrinsic such as ``sqrt``, of this type."""
        arguments = [self.value, *(other.value for other in others)]
        kind = {"f32": "f32", "f64": "f64"}.get(self.type) or f"i{self.bits}"
        name = f"llvm.{intrinsic}.v{self.count}{kind}"
        return self._new(self.builder.call(_declared(self.builder, name, arguments), arguments))

    def greatest(self) -> Any:
        """The greatest integer of all elements, a scalar."""
        return self.reduced("smax" if self.signed else "umax")

    def reduced(self, operation: str) -> Any:
        """All integers combined by an operation of LLVM's, such as ``or`` and ``smin``, a scalar."""
        name = f"llvm.vector.reduce.{operation}.v{self.count}i{self.bits}"
        return self.builder.call(_declared(self.builder, name, [self.value], _element(self.type)), [self.value])

    def any(self) -> Any:
        """Whether a predicate holds in any lane, as an LLVM ``i1``."""
        assert self.type == "pred"
        word = self.builder.bitcast(self.value, ir.IntType(self.count))
        return self.builder.icmp_unsigned("!=", word, ir.Constant(word.type, 0))

    def all(self) -> Any:
        """Whether a predicate holds in every lane, as an LLVM ``i1``."""
        return self.builder.not_((~self).any())

    def shuffled(self, order: Sequence[int], other: Lanes | None = None) -> Lanes:
        """Elements of this value, followed by those of another, in a given order."""
        mask = ir.Constant(ir.VectorType(WORD32, len(order)), [ir.Constant(WORD32, place) for place in order])
        second = self.value if other is None else other.value
        return self._new(self.builder.shuffle_vector(self.value, second, mask))


def _declared(builder: Any, name: str, arguments: Sequence[Any], result: Any = None) -> Any:
    """The declaration of an intrinsic in the module that is being built."""
    module = builder.module
    if name in module.globals:
        return module.globals[name]
    signature = ir.FunctionType(result or arguments[0].type, [argument.type for argument in arguments])
    return ir.Function(module, signature, name)


def where_any(condition: Lanes, otherwise: Sequence[Lanes], compute: Callable[[], Sequence[Lanes]]) -> list[Lanes]:
    """The results of ``compute`` if a condition holds in any lane; otherwise other values, without computing."""
    b, before = condition.builder, condition.builder.block
    with b.if_then(condition.any()):
        computed, after = list(compute()), b.block
    values = []
    for other, value in zip(otherwise, computed, strict=True):
        phi = b.phi(value.value.type)
        phi.add_incoming(other.value, before)
        phi.add_incoming(value.value, after)
        values.append(Lanes(b, phi, value.type))
    return values


def where(condition: Lanes, yes: Lanes, no: Lanes | float | int) -> Lanes:
    """``yes`` where the condition holds, else ``no``."""
    other = no if isinstance(no, Lanes) else yes.like(no)
    return Lanes(yes.builder, yes.builder.select(condition.value, yes.value, other.value), yes.type)
