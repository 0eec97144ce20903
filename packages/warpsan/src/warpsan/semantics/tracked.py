"""Records that track undefined bytes of memory through loads, stores and matrix products
(:mod:`warpsan.engine.watch.undefined_bytes`, :mod:`warpsan.engine.watch.undefined_global`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warpsan.engine import layout
from warpsan.engine.assembler import Assembler
from warpsan.engine.lanes import WORD64, Lanes
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.shadows import origin_row, shadow_bytes, shadow_row
from warpsan.engine.watch.undefined_bytes import (
    shadows_from_memory,
    shadows_of_matrices,
    shadows_to_global,
    shadows_to_matrices,
    shadows_to_memory,
)
from warpsan.engine.watch.undefined_global import shadows_from_global
from warpsan.engine.watch.undefined_products import shadows_of_product
from warpsan.ptx.accesses import LoadStore, MatrixAccess
from warpsan.ptx.grammar import Form, form_of
from warpsan.ptx.ir import Instruction
from warpsan.semantics.watched import Place

__all__ = ["track_load", "track_product", "track_store"]

_SPACES = ("shared", "shared::cluster", "generic", "global")
_Act = Callable[..., int]


def track_load(asm: Assembler, instruction: Instruction, targets: Sequence[str]) -> None:
    """Append the record that gives the targets of a load their shadows; an empty name stands for a target without
    one."""
    if instruction.opcode == "ldmatrix":
        _track(asm, instruction, instruction.operands[1], targets, "undefined.matrices", shadows_of_matrices)
    else:
        _track(asm, instruction, instruction.operands[1], targets, "undefined.load", shadows_from_memory)


def track_store(asm: Assembler, instruction: Instruction, sources: Sequence[str]) -> None:
    """Append the record that makes bytes undefined that were stored from such registers, and notes a use for global
    memory."""
    if instruction.opcode == "stmatrix":
        _track(asm, instruction, instruction.operands[0], sources, "undefined.rows", shadows_to_matrices)
    else:
        _track(asm, instruction, instruction.operands[0], sources, "undefined.store", shadows_to_memory)


def _track(asm: Assembler, instruction: Instruction, address: Any, names: Sequence[str], name: str, act: _Act) -> None:
    """Append a record that passes the lanes' places in memory to a function."""
    form = form_of(instruction, Form)
    assert isinstance(form, LoadStore | MatrixAccess)
    space = form.space
    assert space in _SPACES, space
    where = len(asm.lists)
    for each in names:
        asm.lists += [shadow_row(asm, each), origin_row(asm, each), shadow_bytes(asm, each)] if each else [-1, -1, 4]
    if isinstance(form, MatrixAccess):
        place = Place(space, *asm.address(address), 16, 8 * len(names), -1)
        words = [len(names), int(form.trans), where, instruction.pc + 1]
    else:
        size = form.type.bytes
        place = Place(space, *asm.address(address), size * len(names), layout.WARP, -1)
        words = [size, len(names), where, instruction.pc + 1]

    def handed(code: OperationCode, space: str, places: Lanes) -> Any:
        function = act
        if space == "global":
            if act is shadows_from_memory and asm.track_unwritten_global:
                function = shadows_from_global
            elif act is shadows_to_memory:
                function = shadows_to_global
            else:
                return WORD64(layout.DONE)
        b = code.builder
        registers, record = b.ptrtoint(code.registers, WORD64), b.ptrtoint(code.record, WORD64)
        return code.call(function, registers, record, b.zext(code.mask, WORD64), b.ptrtoint(code.base, WORD64))

    def build(code: OperationCode) -> None:
        place.in_space(code, place.put(code), handed)

    asm.uses[len(asm.records)] = tuple((each, "as a stored value") for each in names)
    asm.record(
        NativeOperation(f"{name}.{place.name}{'.global' * asm.track_unwritten_global}", build),
        [*place.operands, *words],
    )


def track_product(asm: Assembler, fragments: Sequence[Sequence[str]]) -> None:
    """Append the record that gives the sums of an mma of 16 by 8 their shadows; the names of the registers with
    shadows in A, B, C and D, or empty ones."""
    a, b, c, d = fragments
    rows = [(*part, *[""] * (room - len(part))) for part, room in ((a, 4), (b, 2), (c, 4), (d, 4))]
    where = len(asm.lists)
    for row in (shadow_row, origin_row):
        asm.lists += [row(asm, name) if name else -1 for part in rows for name in part]
    operation = NativeOperation("undefined.product", lambda code: code.hand_over(shadows_of_product))
    asm.record(operation, [where, int(len(d) == 2)])
