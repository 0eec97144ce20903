"""Translation of instructions to records: operands become rows of a warp's registers, constants become rows that are
filled once.

A handler for an opcode takes the record of its modifiers (:mod:`warpsan.ptx.grammar`), and appends records; that of an
instruction that ends a block sets the words of the block. An opcode without a handler, or a modifier or operand outside
its grammar, raises UnsupportedInstruction; its record ends a launch when a lane reaches it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warpsan.analysis.definedness import Region
from warpsan.analysis.program import Program
from warpsan.checks.provenance import Origins
from warpsan.engine.arrays import Array
from warpsan.engine.host import HostCall, WatchedAccess
from warpsan.engine.lanes import WORD64, Lanes
from warpsan.engine.layout import OPERANDS, RECORD_WORDS, REFUSED
from warpsan.engine.operation import Function, NativeOperation, lanewise
from warpsan.errors import UnsupportedInstruction
from warpsan.ptx.grammar import Form, form_of
from warpsan.ptx.ir import Address, Entry, Immediate, Instruction, Negated, Operand, Pair, Register, Symbol, Vector
from warpsan.ptx.modifiers import Mods, find_handler, registering, unknown_register
from warpsan.ptx.types import TYPES, PtxType

__all__ = ["HANDLERS", "SPECIAL_REGISTERS", "Assembler", "Constant", "NotNative", "bits_of", "native"]

Handler = Callable[["Assembler", Instruction, Any], None]

_WITH_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
SPECIAL_REGISTERS = frozenset(
    {
        *(f"%{name}.{axis}" for name in _WITH_AXES for axis in "xyz"),
        *(f"%lanemask_{relation}" for relation in ("eq", "lt", "le", "ge", "gt")),
        *("%laneid", "%warpid", "%nwarpid", "%cluster_ctarank", "%cluster_nctarank", "%envreg1", "%envreg2"),
        *("%dynamic_smem_size", "%total_smem_size"),
    }
)
"""Special registers that have rows (:mod:`~warpsan.engine.values`)."""

HANDLERS: dict[str, Handler] = {}
"""Handlers by the beginning of an instruction's text; the longest match counts. Other opcodes are not modelled."""


class NotNative(Exception):
    """A kernel needs a feature that the native engine does not have."""


native = registering(HANDLERS)


@dataclass(frozen=True)
class Constant:
    """A row with one initial value: a literal's bits, a parameter's bytes, the address of a variable, the zeros of a
    hidden register that instructions share, a bound of the buffer that an access must stay in, or whether the launch
    has a cluster.

    Attributes
    ----------
    kind : {"literal", "parameter", "symbol", "hidden", "home begins", "home ends", "cluster"}
    value : int or str
        The bits; the offset in the parameter block; the name; the pc of the access.
    bits : int
        Bits of an element; 1 for a predicate.
    """

    kind: str
    value: int | str
    bits: int


@dataclass
class Assembler:
    """Records, rows and constants of one entry while it is decoded."""

    entry: Entry
    program: Program
    checked: bool
    counted: bool
    target_name: str
    numerics: str
    records: list[list[int]] = field(default_factory=list)
    operations: dict[str, NativeOperation] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    constants: dict[Constant, int] = field(default_factory=dict)
    specials: dict[str, int] = field(default_factory=dict)
    temporaries: dict[tuple[int, int], int] = field(default_factory=dict)
    sums: dict[tuple[str, ...], int] = field(default_factory=dict)
    looks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For records that look at the registers of products, the instructions that use these."""
    loaded: dict[int, list[int]] = field(default_factory=dict)
    """Loads from tensor memory whose registers an instruction may use too early, by the pc of the instruction."""
    lists: list[int] = field(default_factory=list)
    refused: dict[int, UnsupportedInstruction] = field(default_factory=dict)
    """Exceptions for lanes that reach a record, by its number."""
    places: dict[int, int] = field(default_factory=dict)
    """The pc of a record's instruction, by the number of the record."""
    uses: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """The registers of a record that may be undefined, with the role of each, by the number of the record."""
    host_calls: list[HostCall | WatchedAccess] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    types: dict[str, PtxType] = field(default_factory=dict)
    ones: list[int] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    top: int = 0
    guard: int = 0
    tracking: bool = False
    """Whether undefined bytes of memory are followed."""
    track_unwritten_global: bool = False
    """Whether reads of unwritten global memory are detected."""
    regions: dict[int, Region] = field(default_factory=dict)
    """Registers written before reconvergence, by the pc of a branch that only selects values; used with tracking."""
    origins: Origins = field(default_factory=dict)
    """The origins of access addresses, for the ``provenance`` check."""
    volatile_is_data: bool = False
    """Whether volatile accesses are weak (:mod:`warpsan.checks.orders`)."""
    default_scope_is_cta: bool = False
    """Whether an mbarrier instruction without a scope has the scope ``.cta``."""
    version: float = 9.0
    """The PTX version."""
    variables: Collection[str] = ()
    """Names with an address: variables, functions, and parameters whose address is taken."""
    frames: dict[frozenset[str], int] = field(default_factory=dict)
    """Start of the lists of recursive functions, by their call cycle."""
    stack_bytes: int = 0
    """Stack bytes of a warp, for recursive functions."""
    recorded: frozenset[int] = frozenset()
    """Instructions whose accesses Python receives, by their pc."""
    end: dict[str, int] = field(default_factory=dict)
    """Words of the block that the current instruction ends, by the name of their field in
    :class:`~warpsan.engine.memory.Block`."""
    _used: int = 0
    _instruction: Instruction | None = None
    """The instruction whose records are appended."""

    def __post_init__(self) -> None:
        self.types.update(self.entry.registers)
        files = self.program.files
        begins = {bits: self.allocate(bits, files[bits]) for bits in sorted(files)}
        for name, (bits, row) in self.program.rows.items():
            self.rows[name] = begins[bits] + row * row_bytes(bits)

    def allocate(self, bits: int, many: int = 1) -> int:
        """Allocate rows of elements of ``bits``."""
        size = row_bytes(bits)
        if bits > 1:
            self.top = -(-self.top // 64) * 64
        begin = self.top
        self.top += size * many
        return begin

    # ---- operands ---------------------------------------------------------------------------------------------------

    def type_of(self, operand: Operand) -> PtxType | None:
        """The declared type of a register; None for anything else."""
        return self.types.get(operand.name) if isinstance(operand, Register) else None

    def source(self, operand: Operand, type_: str) -> int:
        """The row that holds an operand as a type."""
        wanted = TYPES[type_]
        if isinstance(operand, Negated) and wanted.kind == "pred":
            row = self.temporary(1)
            self.lanewise("not.pred", lambda p: ~p, [row], [self.source(operand.register, "pred")], ["pred"], ["pred"])
            return row
        if isinstance(operand, Immediate):
            return self.constant(Constant("literal", _literal(operand, wanted), bits_of(wanted)))
        if isinstance(operand, Symbol) and operand.name in self.variables:
            return self.constant(Constant("symbol", operand.name, bits_of(wanted)))
        if not isinstance(operand, Register):
            raise self.unsupported(f"operand {operand} is not modelled")
        declared = self.types.get(operand.name)
        if declared is None:
            if operand.name == "%is_explicit_cluster" and wanted.kind == "pred":
                return self.constant(Constant("cluster", operand.name, 1))
            if wanted.bits != 32 or operand.name not in SPECIAL_REGISTERS:
                raise self.unsupported(unknown_register(operand.name))
            if operand.name not in self.specials:
                self.specials[operand.name] = self.allocate(32)
            return self.specials[operand.name]
        row = self._row(operand.name)
        if (declared.kind == "pred") != (wanted.kind == "pred") or declared.bits < wanted.bits:
            raise self.unsupported(f"a .{declared.name} register cannot be read as .{type_}")
        if declared.bits == wanted.bits:
            return row
        narrow = self.temporary(wanted.bits)
        self.resize(row, declared.bits, narrow, wanted.bits, signed=False)
        return narrow

    def target(self, operand: Operand, type_: str) -> tuple[int, Callable[[], None]]:
        """The row for a result of a type, and the action after the record that writes it."""
        given = TYPES[type_]
        if isinstance(operand, Symbol) and operand.name == "_":
            return self.temporary(bits_of(given)), _nothing
        if not isinstance(operand, Register):
            raise self.unsupported("expected a register to write to")
        row, declared = self._row(operand.name), self.types[operand.name]
        if declared.bits == given.bits and (declared.kind == "pred") == (given.kind == "pred"):
            return row, _nothing
        if declared.bits < given.bits or "pred" in (declared.kind, given.kind) or given.is_float:
            raise self.unsupported(f"a .{declared.name} register cannot take a .{type_} result")
        narrow = self.temporary(given.bits)
        return narrow, lambda: self.resize(narrow, given.bits, row, declared.bits, signed=given.signed)

    def _row(self, name: str) -> int:
        """The row of a register."""
        if name not in self.rows:
            raise self.unsupported(unknown_register(name))
        return self.rows[name]

    def resize(self, source: int, source_bits: int, target: int, target_bits: int, *, signed: bool) -> None:
        """Append the record that copies a row to one of another width."""
        kind = "s" if signed else "u"
        types = [f"{kind}{target_bits}"], [f"{kind}{source_bits}"]
        name = f"resize.{types[0][0]}.{types[1][0]}"
        self.lanewise(name, lambda x: x.to(types[0][0]), [target], [source], *types)

    def constant(self, constant: Constant) -> int:
        """The row of a constant."""
        if constant not in self.constants:
            self.constants[constant] = self.allocate(constant.bits)
        return self.constants[constant]

    def number(self, value: int, type_: str) -> int:
        """The row of an integer constant."""
        return self.source(Immediate(value), type_)

    def hidden(self, name: str, bits: int) -> int:
        """The row of a register without a PTX name, such as the carry flag: zeros at first."""
        return self.constant(Constant("hidden", name, bits))

    def temporary(self, bits: int) -> int:
        """A row that lasts for one instruction."""
        self._used += 1
        key = bits, self._used
        if key not in self.temporaries:
            self.temporaries[key] = self.allocate(bits)
        return self.temporaries[key]

    def hidden_sums(self, names: tuple[str, ...]) -> int:
        """The first of the rows in which the sums of wgmma's accumulators are kept while products are in flight."""
        if names not in self.sums:
            self.sums[names] = self.allocate(32, len(names))
        return self.sums[names]

    def number_of(self, operation: NativeOperation) -> int:
        """The number of an operation in records."""
        self.operations.setdefault(operation.name, operation)
        return self.numbers.setdefault(operation.name, len(self.numbers))

    @property
    def watched(self) -> bool:
        """Whether accesses to memory are checked, counted or recorded."""
        return self.checked or self.counted or bool(self.recorded)

    def pair(self, operand: Operand) -> tuple[Operand, Operand | None]:
        """Both destinations of ``p|q``; None for the second where there is only one."""
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)

    def vector(self, operand: Operand) -> tuple[Operand, ...]:
        """The elements of ``{a, b}``, or the single operand."""
        return operand.items if isinstance(operand, Vector) else (operand,)

    def address(self, operand: Operand) -> tuple[int, int, int]:
        """The row of an address operand, its bits, and an offset to add."""
        if not isinstance(operand, Address):
            raise self.unsupported("expected an address in brackets")
        if not -(1 << 31) <= operand.offset < 1 << 31:
            raise self.unsupported("an offset of more than 31 bits is not modelled")
        if operand.base is None:
            return self.constant(Constant("literal", operand.offset & (1 << 64) - 1, 64)), 64, 0
        if isinstance(operand.base, Symbol):
            if operand.base.name not in self.variables:
                raise self.unsupported(f"unknown variable {operand.base.name}")
            return self.constant(Constant("symbol", operand.base.name, 64)), 64, operand.offset
        declared = self.type_of(operand.base)
        bits = 32 if declared is not None and declared.bits == 32 else 64
        return self.source(operand.base, f"u{bits}"), bits, operand.offset

    @property
    def suffix(self) -> str:
        """The suffix of names of operations that depend on a ring."""
        return ""

    def float_sum(self, type_: PtxType) -> tuple[str, Callable[..., Lanes]] | None:
        """In a ring, the type in which an atomic operation adds, and the sum of two words; None for sums of numbers."""
        return None

    # ---- records ----------------------------------------------------------------------------------------------------

    def record(self, operation: NativeOperation, operands: Sequence[int]) -> None:
        """Append a record, under the guard of the instruction."""
        words = [self.number_of(operation), self.guard, *operands]
        assert len(operands) <= RECORD_WORDS - OPERANDS, f"{operation.name} has too many operands"
        self.places[len(self.records)] = -1 if self._instruction is None else self._instruction.pc
        self.records.append(words + [0] * (RECORD_WORDS - len(words)))

    def call(self, name: str, function: Callable[..., int], operands: Sequence[int]) -> None:
        """Append the record of an operation that a translated function executes."""
        self.record(NativeOperation(name, lambda code: code.hand_over(function)), operands)

    def lanewise(
        self,
        name: str,
        function: Function,
        targets: Sequence[int],
        sources: Sequence[int],
        results: Sequence[str],
        types: Sequence[str],
    ) -> None:
        """Append a record of a lanewise operation on rows."""
        operation = self.operations.get(name) or lanewise(name, function, results, types)
        self.record(operation, [*targets, *sources])

    def compute(
        self,
        name: str,
        function: Function,
        targets: Sequence[tuple[Operand, str]],
        sources: Sequence[tuple[Operand, str]],
    ) -> None:
        """Append a lanewise computation of an instruction's results; ``name`` covers every input of ``function``.

        Targets and sources are operands with the types that they have in the operation.
        """
        rows = [self.source(operand, type_) for operand, type_ in sources]
        places = [self.target(operand, type_) for operand, type_ in targets]
        results, types = [type_ for _, type_ in targets], [type_ for _, type_ in sources]
        self.lanewise(name, function, [row for row, _ in places], rows, results, types)
        for _, finish in places:
            finish()

    def elementwise(self, instruction: Instruction, name: str, function: Function, target: str, *sources: str) -> None:
        """As :meth:`compute`, for the operands of an instruction in order, with their types."""
        first, *others = instruction.operands
        self.compute(name, function, [(first, target)], list(zip(others, sources, strict=True)))

    def instruction(self, instruction: Instruction) -> None:
        """Append the records of an instruction.

        Raises
        ------
        UnsupportedInstruction
        """
        _handler_of(instruction)  # precedes the guard
        self.begin(instruction)
        self.handle(instruction)

    def handle(self, instruction: Instruction) -> None:
        """Append the records of the current instruction, and set the words of the block that it ends.

        Raises
        ------
        UnsupportedInstruction
        """
        _handler_of(instruction)(self, instruction, form_of(instruction, Form))

    def end_block(self, instruction: Instruction, words: dict[str, int]) -> None:
        """As :meth:`handle`, for an instruction that ends a block with these words."""
        self.end = words
        self.handle(instruction)

    def unsupported(self, why: str) -> UnsupportedInstruction:
        """The exception for the instruction whose records are appended."""
        assert self._instruction is not None
        return Mods(self._instruction).unsupported(why)

    def refuse(self, instruction: Instruction, why: UnsupportedInstruction) -> None:
        """Append the record of an instruction that is not modelled: the launch ends when a lane reaches it."""
        with suppress(UnsupportedInstruction):  # its guard may be unsupported too
            self.begin(instruction)
        self.end_with(why)

    def end_with(self, why: UnsupportedInstruction) -> None:
        """Append the record that ends the launch when a lane reaches it."""
        self.refused[len(self.records)] = why
        self.record(NativeOperation("refused", lambda code: code.builder.ret(WORD64(REFUSED))), [])

    def begin(self, instruction: Instruction) -> None:
        """Create the records that follow those of an instruction, under its guard."""
        self._used, self.guard, self._instruction = 0, 0, instruction
        self.guard = self.guard_word(instruction)

    def guard_word(self, instruction: Instruction) -> int:
        """The guard of an instruction as a word of its records."""
        if instruction.guard is None:
            return 0
        row = self.source(instruction.guard.register, "pred")
        return row | 1 | (2 if instruction.guard.negated else 0)

    def records_array(self) -> Array:
        """All records, int32 [records, words]."""
        return np.array(self.records, dtype=np.int32).reshape(-1, RECORD_WORDS)


def _handler_of(instruction: Instruction) -> Handler:
    handler = find_handler(HANDLERS, instruction.text)
    if handler is None:
        raise UnsupportedInstruction(f"opcode {instruction.text} is not modelled", instruction.line)
    return handler


def _nothing() -> None:
    """Action after a record whose result is in its place."""


def bits_of(type_: PtxType) -> int:
    """The width of a row's elements: 1 for predicates."""
    return 1 if type_.kind == "pred" else type_.bits


def row_bytes(bits: int) -> int:
    """Bytes of a row: a predicate has a bit a lane."""
    return 4 if bits == 1 else 32 * bits // 8


def _literal(operand: Immediate, type_: PtxType) -> int:
    """A literal's bits as a type."""
    value = operand.value
    if type_.kind == "pred":
        return int(bool(value))
    if isinstance(value, float):
        if type_.is_float and type_.lanes == 1 and operand.float_bits != type_.bits:
            with np.errstate(all="ignore"):
                return int.from_bytes(np.asarray(value, np.float64).astype(type_.dtype).tobytes(), "little")
        raw = struct.pack("<f" if operand.float_bits == 32 else "<d", value)
        return int.from_bytes(raw, "little") & (1 << type_.bits) - 1
    return int(value) & (1 << type_.bits) - 1
