"""Questions about instructions that the table of instructions answers (:mod:`~warpsan.ptx.grammar`)."""

from __future__ import annotations

from warpsan.ptx import accesses, arithmetic, matrices, synchronising, tensor_memory
from warpsan.ptx.accesses import LoadStore
from warpsan.ptx.forms import FP8_PAIRS
from warpsan.ptx.grammar import FORMS, OPCODES, Computation, Form, Opcode, find_grammar, has_form, known_form
from warpsan.ptx.ir import Instruction
from warpsan.ptx.matrices import WarpProduct
from warpsan.ptx.synchronising import BulkReduction, Product, TensorReduction, WarpBarrier

__all__ = [
    "OPCODES",
    "Opcode",
    "ends_block",
    "is_warp_barrier",
    "loads_parameter",
    "opcode_of",
    "spaces_of",
    "unit_of",
    "updates_memory",
    "uses_fp8",
]

for _module in (accesses, arithmetic, matrices, synchronising, tensor_memory):
    assert _module is not None
_OF_FORMS, _OF_RECORDS = ({name.partition(".")[0] for name in names} for names in (FORMS, OPCODES))
assert _OF_FORMS == _OF_RECORDS, "forms without an opcode, or an opcode without one"

_UNKNOWN = Opcode("")
"""Record of an opcode without a model: an error when a lane executes it."""


def opcode_of(instruction: Instruction) -> Opcode:
    """The record of an instruction's form, if it has one, or of its opcode."""
    record = OPCODES.get(instruction.opcode, _UNKNOWN)
    if record.forms:
        return OPCODES.get(f"{instruction.opcode}.{instruction.mods[0]}", record)
    return record


def unit_of(instruction: Instruction) -> str:
    """The asynchronous unit of an instruction (:class:`~warpsan.ptx.grammar.Grammar`); empty without one."""
    grammar = find_grammar(instruction)
    return "" if grammar is None else grammar.unit


def ends_block(instruction: Instruction) -> bool:
    """Whether a basic block ends after an instruction (:class:`~warpsan.ptx.grammar.Grammar`)."""
    grammar = find_grammar(instruction)
    return grammar is not None and grammar.ends


def is_warp_barrier(instruction: Instruction) -> bool:
    """Whether an instruction is ``bar.warp``, which ends no block: the lanes of a warp reach it together."""
    return has_form(instruction, WarpBarrier)


def spaces_of(instruction: Instruction) -> frozenset[str]:
    """State spaces that an instruction names, without their windows (``::cta``); empty for a generic address."""
    form = known_form(instruction, Form)
    return frozenset() if form is None else form.named_spaces


def updates_memory(instruction: Instruction) -> bool:
    """Whether an instruction reads and writes memory in one operation: an atomic, or a copy with a reduction."""
    return opcode_of(instruction).memory == "update" or any(
        has_form(instruction, kind) for kind in (BulkReduction, TensorReduction)
    )


def uses_fp8(instruction: Instruction) -> bool:
    """Whether an instruction computes with 8-bit floating-point numbers."""
    form = known_form(instruction, Form)
    if isinstance(form, WarpProduct | Product):
        return not {"e4m3", "e5m2"}.isdisjoint(form.types)
    return isinstance(form, Computation) and not FP8_PAIRS.isdisjoint(form.flags)


def loads_parameter(instruction: Instruction) -> bool:
    """Whether an instruction loads from the parameter space."""
    form = known_form(instruction, LoadStore)
    return form is not None and form.loads_parameter
