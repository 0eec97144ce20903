"""Operations: the action of one record of a decoded program, for one warp, as a function of native code.

Each is a C function ``int64 operation(registers, record, mask, context)``: the warp's register rows, the record's
words, the active lanes as bits, and the context (:mod:`~warpsan.engine.context`). It returns a status;
registers of inactive lanes keep their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from warpsan.engine.context import Context
from warpsan.engine.lanes import BYTE, POINTER, WORD32, WORD64, Lanes, llvm_type
from warpsan.engine.layout import DONE, OPERANDS, WARP
from warpsan.engine.memory import Warp
from warpsan.engine.translate import Translator

__all__ = ["NativeOperation", "OperationCode", "lanewise"]

_ALIGN = 64
"""Alignment of rows and of all values that are loaded as a whole row."""


@dataclass(frozen=True)
class NativeOperation:
    """An operation by its name, which covers every input of its code, and the function that builds its code."""

    name: str
    build: Callable[[OperationCode], None]

    def add_to(self, translator: Translator) -> None:
        """Append the function to the LLVM module of a translator."""
        signature = ir.FunctionType(WORD64, [POINTER, POINTER, WORD32, POINTER])
        function = ir.Function(translator.module, signature, self.name)
        builder = ir.IRBuilder(function.append_basic_block())
        code = OperationCode(builder, translator, *function.args)
        self.build(code)
        if not builder.block.is_terminated:
            builder.ret(WORD64(DONE))


@dataclass(frozen=True)
class LoopValue:
    """A variable of a loop. LLVM keeps it in registers."""

    builder: Any
    place: Any
    type: str

    def get(self) -> Lanes:
        """Its current value."""
        return Lanes(self.builder, self.builder.load(self.place, typ=self.place.allocated_type), self.type)

    def set(self, value: Lanes) -> None:
        """Assign a value."""
        self.builder.store(value.value, self.place)


class OperationCode:
    """The code of one operation during its construction.

    Attributes
    ----------
    builder : llvmlite.ir.IRBuilder
    mask : llvmlite.ir.Value
        The active lanes, an ``i32``.
    """

    def __init__(
        self, builder: Any, translator: Translator, registers: Any, record: Any, mask: Any, context: Any
    ) -> None:
        self.builder, self.translator, self.mask = builder, translator, mask
        self._registers, self._record, self._context = registers, record, context
        self.together = False
        """Whether the lanes exchange values."""

    # ---- words ------------------------------------------------------------------------------------------------------

    def operand(self, k: Any) -> Any:
        """The record's operand ``k``, an ``int`` or an ``i64``, as an ``i64``."""
        b = self.builder
        place = WORD64(OPERANDS + k) if isinstance(k, int) else b.add(k, WORD64(OPERANDS))
        word = b.load(b.gep(self._record, [place], source_etype=WORD32), typ=WORD32)
        return b.sext(word, WORD64)

    def field(self, name: str) -> Any:
        """A pointer to a field of the context."""
        return self.at(self._context, WORD64(Context.offset_of(name)))

    def context(self, name: str) -> Any:
        """A field of the context, an ``i64``."""
        return self.builder.load(self.field(name), typ=WORD64)

    def pointer(self, name: str) -> Any:
        """A field of the context that is an address."""
        return self.builder.inttoptr(self.context(name), POINTER)

    def at(self, base: Any, offset: Any) -> Any:
        """A pointer moved by bytes."""
        return self.builder.gep(base, [offset], source_etype=BYTE)

    def row(self, k: Any) -> Any:
        """The address of the row of operand ``k``."""
        return self.at(self._registers, self.operand(k))

    @property
    def base(self) -> Any:
        """A pointer to the context."""
        return self._context

    @property
    def registers(self) -> Any:
        """A pointer to the warp's registers."""
        return self._registers

    @property
    def record(self) -> Any:
        """A pointer to the record."""
        return self._record

    @contextmanager
    def loop(self, many: Any) -> Iterator[Any]:
        """Code that is executed ``many`` times, an ``i64``. Yields the number of the iteration."""
        b = self.builder
        before, turn, after = b.block, b.append_basic_block("turn"), b.append_basic_block("after")
        b.cbranch(b.icmp_signed(">", many, WORD64(0)), turn, after)
        b.position_at_end(turn)
        number = b.phi(WORD64)
        yield number
        following = b.add(number, WORD64(1))
        number.add_incoming(WORD64(0), before)
        number.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, many), turn, after)
        b.position_at_end(after)

    def loop_value(self, value: Lanes) -> LoopValue:
        """A variable of a loop, with its initial value."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(value.value.type)
        changing = LoopValue(self.builder, place, value.type)
        changing.set(value)
        return changing

    def all_or_none(self, condition: Any, count: int = WARP) -> Lanes:
        """An ``i1`` in every element."""
        return self.spread(condition, "pred", count)

    def state(self, name: str) -> Any:
        """A pointer to a field of the current warp's state."""
        return self.at(self.pointer("current_warp"), WORD64(Warp.offset_of(name)))

    def call(self, function: Callable[..., int | None], *arguments: Any) -> Any:
        """Call a translated function of 64-bit integers; its result."""
        return self.builder.call(self.translator.function(function), list(arguments))

    def hand_over(self, function: Callable[..., int]) -> None:
        """Call a translated function of (registers, record, mask, context), and return its status."""
        b = self.builder
        registers, record, context = (
            b.ptrtoint(each, WORD64) for each in (self._registers, self._record, self._context)
        )
        b.ret(self.call(function, registers, record, b.zext(self.mask, WORD64), context))

    # ---- rows -------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Lanes:
        """The active lanes."""
        return self.lanes_of(self.mask)

    def lanes_of(self, word: Any) -> Lanes:
        """A bit for each lane as a predicate."""
        words = self.spread(word, "u32")
        bits = words & words.each("u32", [1 << lane for lane in range(WARP)])
        return bits != bits.like(0)

    def those(self, condition: Lanes) -> Any:
        """The active lanes for which a predicate holds, a bit for each, an ``i32``."""
        b = self.builder
        return b.and_(b.bitcast(condition.value, WORD32), self.mask)

    def any_of(self, condition: Lanes) -> Any:
        """Whether a predicate holds in any active lane, an ``i1``."""
        return self.builder.icmp_signed("!=", self.those(condition), WORD32(0))

    def source(self, k: Any, type_: str, count: int = WARP) -> Lanes:
        """The row of operand ``k``."""
        return self.load(self.row(k), type_, count)

    def load(self, pointer: Any, type_: str, count: int = WARP, align: int = _ALIGN) -> Lanes:
        """Lanes from memory."""
        b = self.builder
        if type_ == "pred":
            return self.lanes_of(b.load(pointer, typ=WORD32, align=4))
        return Lanes(b, b.load(pointer, typ=llvm_type(type_, count), align=align), type_)

    def store(self, k: int, value: Lanes) -> None:
        """Write the active lanes of the row of operand ``k``."""
        b, pointer = self.builder, self.row(k)
        if value.type == "pred":
            word = b.bitcast(value.value, WORD32)
            old = b.load(pointer, typ=WORD32, align=4)
            b.store(b.or_(b.and_(word, self.mask), b.and_(old, b.not_(self.mask))), pointer, align=4)
            return
        if value.floating or value.count != WARP:  # packed: two elements a lane
            value = value.as_type(f"u{value.bits * value.count // WARP}")
        with b.if_else(b.icmp_signed("==", self.mask, WORD32(-1)), likely=True) as (whole, part):
            with whole:
                b.store(value.value, pointer, align=_ALIGN)
            with part:
                # Frozen: otherwise LLVM makes a masked store of it all, which takes tens of cycles on AMD's processors.
                old = Lanes(b, b.load(pointer, typ=value.value.type, align=_ALIGN), value.type).frozen()
                b.store(b.select(self.active.value, value.value, old.value), pointer, align=_ALIGN)

    def one_by_one(self, parts: tuple[Any, Any], status: int) -> None:
        """If both of these words of lanes, an ``i32`` each, contain lanes, execute everything for one after the other,
        and return; if lanes exchange values, return a status.

        Actions before this call must be repeatable.
        """
        b, none = self.builder, WORD32(0)
        with b.if_then(b.and_(*(b.icmp_signed("!=", part, none) for part in parts)), likely=False):
            if self.together:
                b.ret(WORD64(status))
                return
            for part in parts:
                result = b.call(b.function, [self._registers, self._record, part, self._context])
                with b.if_then(b.icmp_signed("!=", result, WORD64(DONE))):
                    b.ret(result)
            b.ret(WORD64(DONE))

    def leave_if(self, condition: Any, status: int) -> None:
        """Return a status if an ``i1`` holds."""
        with self.builder.if_then(condition, likely=False):
            self.builder.ret(WORD64(status))

    def note(self, lanes: Any, function: Callable[..., int], *words: Any) -> None:
        """If any bit of an ``i32`` is set, call a translated function of (context, record, those lanes, words), and
        return its result unless it is 0."""
        b = self.builder
        with b.if_then(b.icmp_signed("!=", lanes, WORD32(0)), likely=False):
            context, record = b.ptrtoint(self._context, WORD64), b.ptrtoint(self._record, WORD64)
            status = self.call(function, context, record, b.zext(lanes, WORD64), *words)
            with b.if_then(b.icmp_signed("!=", status, WORD64(DONE))):
                b.ret(status)

    def constant(self, type_: str, value: float | int, count: int = WARP) -> Lanes:
        """The same constant in every element."""
        like = Lanes(self.builder, ir.Constant(llvm_type("u8", count), [0] * count), "u8")
        return like.constant(type_, value)

    def spread(self, value: Any, type_: str, count: int = WARP) -> Lanes:
        """A scalar in every element."""
        b, vector = self.builder, llvm_type(type_, count)
        one = b.insert_element(ir.Constant(vector, ir.Undefined), value, WORD32(0))
        zeros = ir.Constant(llvm_type("u32", count), [0] * count)
        return Lanes(b, b.shuffle_vector(one, one, zeros), type_)


Function = Callable[..., "Lanes | tuple[Lanes, ...]"]


def lanewise(name: str, function: Function, results: Sequence[str], sources: Sequence[str]) -> NativeOperation:
    """An operation that computes each lane's results from its own sources.

    Operands are the rows of the results, then those of the sources. A packed type has the suffix ``x2``; halves are
    passed as bits.
    """

    def build(code: OperationCode) -> None:
        values = [
            code.source(len(results) + k, _held(type_), 2 * WARP if type_.endswith("x2") else WARP)
            for k, type_ in enumerate(sources)
        ]
        out = function(*values)
        for k, value in enumerate(out if isinstance(out, tuple) else (out,)):
            code.store(k, value)

    return NativeOperation(name, build)


def _held(type_: str) -> str:
    """The type of the operators for a PTX type: halves are bits."""
    base = type_.removesuffix("x2")
    return {"f16": "u16", "bf16": "u16"}.get(base, base)
