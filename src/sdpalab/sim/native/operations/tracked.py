"""Records that follow undefined bytes of shared memory through loads, stores and matrix products
(:mod:`..watch.undefined_bytes`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sdpalab.sim.decode import Mods
from sdpalab.sim.ir import Instruction
from sdpalab.sim.isa.memory_mods import take_space
from sdpalab.sim.native import layout, watch
from sdpalab.sim.native.assembler import Assembler, NotNative
from sdpalab.sim.native.lanes import WORD32, WORD64, Lanes
from sdpalab.sim.native.operation import NativeOperation, OperationCode
from sdpalab.sim.native.operations.watched import Place
from sdpalab.sim.types import TYPES

__all__ = ["track_load", "track_matrices", "track_product", "track_store"]

_MOST_REGISTERS = layout.RECORD_WORDS - layout.OPERANDS - 6


def _shape(instruction: Instruction) -> tuple[str, int, int]:
    """Space, bytes of an element and number of elements of a load or a store."""
    space = take_space(Mods(instruction))
    if space not in ("shared", "generic"):
        raise NotNative(f"undefined bytes of .{space}")
    size = next(TYPES[mod].bytes for mod in instruction.mods if mod in TYPES)
    return space, size, next((int(mod[1:]) for mod in instruction.mods if mod in ("v2", "v4", "v8")), 1)


def _at(
    asm: Assembler, instruction: Instruction, place: Place, name: str, act: Callable[..., int], words: Sequence[int]
) -> None:
    """Append a record that hands the lanes' offsets in shared memory to a function; elsewhere it does nothing."""

    def handed(code: OperationCode, space: str, places: Lanes) -> Any:
        if space != "shared":
            return WORD64(layout.DONE)
        b = code.builder
        registers, record = b.ptrtoint(code.registers, WORD64), b.ptrtoint(code.record, WORD64)
        return code.call(act, registers, record, b.zext(code.mask, WORD64), b.ptrtoint(code.base, WORD64))

    def build(code: OperationCode) -> None:
        place.in_space(code, place.put(code), handed)

    asm.record(NativeOperation(f"{name}.{place.name}", build), [*place.operands, *words])


def track_load(asm: Assembler, instruction: Instruction, shadows: Sequence[int], register_bytes: int) -> None:
    """Append the record that gives the targets of a load their shadows (rows, or -1)."""
    space, size, many = _shape(instruction)
    if len(shadows) != many or many > _MOST_REGISTERS:
        raise NotNative("undefined bytes in so many registers")
    place = Place(space, *asm.address(instruction.operands[1]), size * many, layout.WARP, -1)
    words = [size, many, register_bytes, *shadows]
    _at(asm, instruction, place, "undefined.load", watch.shadows_from_memory, words)


def track_store(asm: Assembler, instruction: Instruction, shadows: Sequence[int], register_bytes: int) -> None:
    """Append the record that marks bytes of shared memory undefined that were stored from such registers."""
    space, size, many = _shape(instruction)
    if len(shadows) != many or many > _MOST_REGISTERS:
        raise NotNative("undefined bytes in so many registers")
    place = Place(space, *asm.address(instruction.operands[0]), size * many, layout.WARP, -1)
    words = [size, many, register_bytes, *shadows]
    _at(asm, instruction, place, "undefined.store", watch.shadows_to_memory, words)


def track_matrices(asm: Assembler, instruction: Instruction, shadows: Sequence[int]) -> None:
    """Append the record that gives the targets of ldmatrix their shadows."""
    space = take_space(Mods(instruction))
    if space not in ("shared", "generic") or "m8n8" not in instruction.mods or "b16" not in instruction.mods:
        raise NotNative(instruction.text)
    place = Place(space, *asm.address(instruction.operands[1]), 16, 8 * len(shadows), -1)
    words = [len(shadows), int("trans" in instruction.mods), *shadows]
    _at(asm, instruction, place, "undefined.matrices", watch.shadows_of_matrices, words)


def track_product(asm: Assembler, a: Sequence[int], b: Sequence[int], c: Sequence[int], d: Sequence[int]) -> None:
    """Append the record that gives the sums of an mma of 16 by 8 their shadows."""
    if len(a) not in (2, 4) or len(b) not in (1, 2) or len(c) != len(d) or len(d) not in (2, 4):
        raise NotNative("undefined elements of such a product")
    rows = [[*part, *[-1] * (room - len(part))] for part, room in ((a, 4), (b, 2), (c, 4), (d, 4))]
    if len(d) == 2:
        rows[3][3] = -2

    def build(code: OperationCode) -> None:
        code.leave_if(code.builder.icmp_signed("!=", code.mask, WORD32(-1)), layout.DIVERGENT)
        code.hand_over(watch.shadows_of_product)

    asm.record(NativeOperation("undefined.product", build), [row for part in rows for row in part])
