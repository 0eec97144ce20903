"""A program as arrays for the native loop: records, blocks, and the rows that a launch fills in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from warpsan.analysis.definedness import Undefined, find_undefined
from warpsan.analysis.derived import derived
from warpsan.analysis.fusion import MmaGroup, registers_read, registers_written
from warpsan.analysis.polling import polling_loops
from warpsan.analysis.program import BasicBlock, Program, instructions_of
from warpsan.analysis.regions import pure_regions
from warpsan.analysis.tensor_memory import uses_of_loads
from warpsan.checks.provenance import Origins, pointer_origins
from warpsan.engine import layout
from warpsan.engine.arrays import Array
from warpsan.engine.assembler import Assembler, Constant
from warpsan.engine.host import HostCall, WatchedAccess
from warpsan.engine.memory import Block
from warpsan.engine.operation import NativeOperation
from warpsan.engine.ring import RingAssembler
from warpsan.engine.shadows import add_shadows
from warpsan.engine.undefined import follow_stores, follow_undefined, meetings, ways_meet
from warpsan.errors import UnsupportedInstruction
from warpsan.numerics.ring import Ring
from warpsan.ptx.grammar import WRONG_OPERANDS, has_form
from warpsan.ptx.ir import Entry, Instruction, Operand
from warpsan.ptx.modifiers import Mods
from warpsan.ptx.synchronising import ProductFence
from warpsan.semantics.matrix import product_records
from warpsan.semantics.tensor_memory import look_at_loads
from warpsan.semantics.warpgroup import look_at_sets

__all__ = ["Decoded", "decode"]


@dataclass(frozen=True)
class Decoded:
    """The program of the native loop, for every launch of an entry with the same checks.

    Attributes
    ----------
    records, blocks : ndarray of int32
        :class:`~warpsan.engine.memory.Record` and :class:`~warpsan.engine.memory.Block`, a row each.
    operations : tuple of NativeOperation
        The operations, by their number in records.
    constants : dict of Constant to int
        Rows to fill with one value before a launch.
    specials : dict of str to int
        Rows of special registers.
    lists : ndarray of int32
        Operands that do not fit into a record.
    register_bytes : int
        Register bytes of one warp.
    predicates : int
        Bytes at the beginning, which hold predicates: false at first; all other bytes are poison.
    ones : tuple of int
        Further rows of predicates, which are true at first.
    refused : dict of int to UnsupportedInstruction
        By the number of a record, the exception that ends the launch when a lane gets there: a path that never runs has
        no effect.
    places : dict of int to int
        The pc of a record's instruction, by the number of the record; after those, each instruction's own pc, by its
        number.
    uses : dict of int to tuple of (str, str)
        The registers of a record that may be undefined, with the role of each, by the number of the record.
    looks : dict of int to tuple of int
        The instructions whose use of products' registers a record looks at, by the number of the record.
    sites : dict of int to Instruction
        In a ring, the instruction of each record that ends the run because it is not algebraic.
    host_calls : tuple of HostCall
        Calls of Python, by their number in records.
    origins : dict
        The origins of access addresses, for the ``provenance`` check.
    stack_bytes : int
        Stack bytes of a warp, for recursive functions.
    """

    records: Array
    blocks: Array
    operations: tuple[NativeOperation, ...]
    constants: dict[Constant, int]
    specials: dict[str, int]
    lists: Array
    register_bytes: int
    predicates: int
    ones: tuple[int, ...]
    refused: dict[int, UnsupportedInstruction]
    places: dict[int, int]
    uses: dict[int, tuple[tuple[str, str], ...]]
    looks: dict[int, tuple[int, ...]]
    sites: dict[int, Instruction]
    host_calls: tuple[HostCall | WatchedAccess, ...]
    origins: Origins
    stack_bytes: int


def decode(
    entry: Entry,
    program: Program,
    *,
    checked: bool,
    counted: bool,
    target: str,
    numerics: str,
    ring: Ring | None = None,
    tracking: bool = False,
    track_unwritten_global: bool = False,
    provenance: bool = False,
    volatile_is_data: bool = False,
    version: float = 9.0,
    variables: Collection[str] = (),
    recorded: frozenset[int] = frozenset(),
    default_scope_is_cta: bool = False,
) -> Decoded:
    """Decode an entry. ``checked`` and ``counted`` add the records of the checks and the counters, ``tracking`` those
    that follow undefined bytes of memory, ``track_unwritten_global`` those that detect reads of unwritten global
    memory, and ``provenance`` those of that check. With ``volatile_is_data``, volatile accesses are weak. ``recorded``
    has the instructions, by their pc, whose accesses recorders collect. With ``default_scope_is_cta``, mbarrier
    instructions without a scope have the scope ``.cta``.

    ``target`` is the module's ``.target``, ``version`` its PTX version, ``variables`` the names with an address, and
    ``numerics`` as in :func:`warpsan.launch`. With a ring, floating-point instructions are the ring's.

    Raises
    ------
    NotNative
        If the entry needs more than the native engine can hold.
    """
    asm = Assembler(entry, program, checked, counted, target, numerics)
    if ring is not None:
        asm = RingAssembler(entry, program, checked, counted, target, numerics, ring=ring)
    asm.volatile_is_data, asm.version, asm.recorded, asm.variables = volatile_is_data, version, recorded, variables
    asm.default_scope_is_cta, asm.track_unwritten_global = default_scope_is_cta, track_unwritten_global
    if provenance:
        asm.origins = pointer_origins(entry)
    predicates = asm.top if not program.files else _predicate_bytes(program)
    asm.loaded = uses_of_loads(program, entry) if checked else {}
    undefined = find_undefined(program, entry) if checked else Undefined({}, frozenset())
    if tracking and checked:
        asm.tracking, asm.regions = True, pure_regions(program, entry)
        undefined = find_undefined(program, entry, asm.regions, track_unwritten_global=track_unwritten_global)
    meeting = meetings(asm, undefined)
    add_shadows(asm, undefined)
    polling = polling_loops(entry, program)
    blocks = [
        _block(
            *(asm, program, basic, number, undefined, meeting.get(number, ())),
            polls=(number in polling.blocks) + (number in polling.endless),
        )
        for number, basic in enumerate(program.blocks)
    ]
    return Decoded(
        asm.records_array(),
        np.array([[each.get(name, 0) for name in Block.fields] for each in blocks], dtype=np.int32),
        tuple(asm.operations[name] for name in asm.numbers),
        asm.constants,
        asm.specials,
        np.array(asm.lists or [0], dtype=np.int32),
        -(-asm.top // 64) * 64,
        predicates,
        tuple(asm.ones),
        asm.refused,
        asm.places | {len(asm.records) + pc: pc for pc in range(len(entry.instructions))},
        asm.uses,
        asm.looks,
        asm.sites if isinstance(asm, RingAssembler) else {},
        tuple(asm.host_calls),
        asm.origins,
        asm.stack_bytes,
    )


_Refusals = (UnsupportedInstruction, *WRONG_OPERANDS)


def _refusal(
    asm: Assembler, why: Exception, instruction: Instruction, decode: Callable[[Instruction], None]
) -> UnsupportedInstruction:
    """The exception for an instruction. Records before it may need operands that it lacks; its handler reports that."""
    begin = len(asm.records)
    try:
        decode(instruction)
    except _Refusals as exact:
        why = exact
    del asm.records[begin:]
    if isinstance(why, UnsupportedInstruction):
        return why
    few = isinstance(why, IndexError)
    return Mods(instruction).unsupported("too few operands" if few else "wrong number of operands")


def _members(asm: Assembler, instruction: Instruction, mask: Operand) -> tuple[int, int]:
    """The kind of convergence that a block needs, and the row of its member mask."""
    try:
        asm.begin(instruction)
        return 2, asm.source(mask, "u32")
    except UnsupportedInstruction:  # its instruction fails too, and its record ends the launch
        return 0, 0


def _predicate_bytes(program: Program) -> int:
    return 4 * program.files.get(1, 0)


def _block(
    asm: Assembler,
    program: Program,
    basic: BasicBlock,
    number: int,
    undefined: Undefined,
    meeting: Sequence[int],
    *,
    polls: int,
) -> dict[str, int]:
    words: dict[str, int] = {}
    words["first"] = len(asm.records)
    items = [*basic.items, *filter(None, [basic.end])]
    if meeting and items:
        ways_meet(asm, meeting, instructions_of(items[0])[0])
    products = _product_registers(asm.entry) if asm.checked else frozenset[str]()
    follows = asm.tracking or bool(undefined.registers)
    if products:
        _look_at_products(asm, basic, 0, products)
    for place, item in enumerate(basic.items):
        begin = len(asm.records)
        try:
            for instruction in instructions_of(item):
                if instruction.guard is not None and _uses(instruction, products):
                    asm.begin(instruction)
                    look_at_sets(asm, (instruction,))
                look_at_loads(asm, instruction)
                if follows:
                    follow_undefined(asm, instruction, undefined)
            if isinstance(item, MmaGroup):
                _products(asm, item)
            else:
                asm.instruction(item)
                follow_stores(asm, item, undefined)
        except _Refusals as why:
            del asm.records[begin:]
            first = instructions_of(item)[0]
            asm.refuse(first, _refusal(asm, why, first, asm.instruction))
        if products and isinstance(item, Instruction) and has_form(item, ProductFence):
            _look_at_products(asm, basic, place + 1, products)
    words["size"] = basic.size
    words["polls"] = polls
    if basic.collective:
        words["collective"] = 1
        if basic.members is not None:
            words["collective"], words["members"] = _members(asm, *basic.members)
    if basic.end is not None:
        begin, before, guard = len(asm.records), dict(words), 0
        try:
            follow_undefined(asm, basic.end, undefined)
            asm.begin(basic.end)
            asm.guard = 0  # operands of an end are prepared for all lanes
            guard = asm.guard_word(basic.end)
            asm.end_block(basic.end, words)
        except _Refusals as why:
            del asm.records[begin:]
            words = before
            asm.refuse(basic.end, _refusal(asm, why, basic.end, lambda end: asm.end_block(end, {})))
        words["end_guard"] = guard
    elif basic.inner:
        words["end"] = layout.END_INNER
    elif number + 1 == len(program.blocks):  # running off the end is a return
        words["end"] = layout.END_EXIT
    words["last"] = len(asm.records)
    return words


@derived
def _product_registers(entry: Entry) -> frozenset[str]:
    """The registers that wgmma's products work on, and those of their descriptors."""
    products = (each for each in entry.instructions if each.opcode == "wgmma")
    return frozenset(name for each in products for name in (*registers_read(each), *registers_written(each)))


def _uses(instruction: Instruction, registers: frozenset[str]) -> bool:
    return not registers.isdisjoint((*registers_read(instruction), *registers_written(instruction)))


def _products(asm: Assembler, group: MmaGroup) -> None:
    """The records of a group of mma; in a ring, the instructions are separate."""
    if not isinstance(asm, RingAssembler):
        product_records(asm, group)
        return
    for instruction in group.instructions:
        asm.instruction(instruction)


def _look_at_products(asm: Assembler, basic: BasicBlock, first: int, products: frozenset[str]) -> None:
    """Append one check of the registers that instructions from ``first`` on share with products, up to the next
    wgmma.fence: products begin and end only between blocks. Guarded instructions have their own checks."""
    users: list[Instruction] = []
    for item in basic.items[first:]:
        if isinstance(item, Instruction) and has_form(item, ProductFence):
            break
        users += [each for each in instructions_of(item) if each.guard is None and _uses(each, products)]
    asm.guard = 0
    look_at_sets(asm, users)
