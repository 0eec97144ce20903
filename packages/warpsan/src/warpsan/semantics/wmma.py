"""wmma m16n16k16 (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: wmma").

PTX leaves the fragment layout unspecified. Here it is that of the two mma.m16n8k16 to which sm_80 and later compile a
product, with the second half of an f16 A or B fragment repeating the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warpsan.engine.access import addresses
from warpsan.engine.assembler import Assembler, native
from warpsan.engine.lanes import POINTER, WORD32, Lanes, llvm_type
from warpsan.engine.layout import WARP
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.ptx.forms import A_ORDER, B_ORDER
from warpsan.ptx.ir import Instruction, Operand
from warpsan.ptx.matrices import WmmaMove, WmmaProduct
from warpsan.semantics.matrix import product_operation
from warpsan.semantics.sums import stacked
from warpsan.semantics.warp import needs_whole_warp
from warpsan.semantics.watched import watch_access

__all__: list[str] = []

_SIDE = 16
_PIECE = 16
"""Bytes of one move of a lane."""
_SUMS = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Blocks of a packed accumulator in register order."""


@native("wmma.mma")
def _multiply(asm: Assembler, instruction: Instruction, form: WmmaProduct) -> None:
    """Two products of 8 columns each. A and B fragments are in registers: their memory layout is not needed."""
    kind, result = form.kind, form.types[0]
    d, a, b, c = (asm.vector(operand) for operand in instruction.operands)
    held, type_ = (2, "b32") if result == "f16" else (4, "f32")
    left = [asm.source(item, "b32") for item in a[:4]]
    for half in range(2):
        right = [asm.source(item, "b32") for item in b[2 * half : 2 * half + 2]]
        sums = [asm.source(item, type_) for item in c[held * half : held * half + held]]
        places = [asm.target(item, type_)[0] for item in d[held * half : held * half + held]]
        operation = product_operation(asm, "wmma", (kind, kind), 16, result, again=half > 0)
        asm.record(operation, [*places, *left, *right, *sums])


@native("wmma.load", "wmma.store")
def _move(asm: Assembler, instruction: Instruction, form: WmmaMove) -> None:
    """A 16 x 16 tile between memory and a fragment. Each lane moves 16-byte pieces of the tile's 16 lines."""
    loads, matrix, space, type_ = form.name == "wmma.load", form.matrix, form.space, form.type
    first, second, *stride = instruction.operands
    fragment, address = (first, second) if loads else (second, first)
    size = type_.bytes
    rows = _places(asm, address, stride, size)
    # A is kept unchanged, B as its transpose: transpose the other layout in memory.
    flip = (form.order == "col") != (matrix == "b")
    doubled = matrix in "ab" and type_.name == "f16"
    orders = [_order(k, matrix, size, flip) for k in range(8 if doubled or size == 4 else 4)]
    items = asm.vector(fragment)
    if len(items) != len(orders):
        raise asm.unsupported("wrong number of registers")
    name = f"{form.name}.{matrix}.{size}.{space}{'.flip' * flip}"
    if loads:
        _watch(asm, instruction, space, rows, "load", [])
        registers, build = [asm.target(item, "b32")[0] for item in items], _load
    else:
        registers, build = [asm.source(item, "b32") for item in items], _store
        pieces = [asm.temporary(8 * _PIECE) for _ in rows] if asm.checked else []
        if pieces:
            held = NativeOperation(f"{name}.pieces", lambda code: _keep_pieces(code, len(rows), orders, size))
            asm.record(held, [*pieces, *registers])
        _watch(asm, instruction, space, rows, "store", pieces)
    operation = NativeOperation(name, lambda code: build(code, len(rows), orders, size, space))
    asm.record(operation, [*rows, *registers])


def _watch(asm: Assembler, instruction: Instruction, space: str, rows: list[int], does: str, pieces: list[int]) -> None:
    """Append the records that check, count and record the accesses of all turns, ``pieces`` of which are written."""
    for turn, row in enumerate(rows if asm.watched else ()):
        written = (_PIECE, pieces[turn : turn + 1]) if pieces else (0, ())
        watch_access(asm, instruction, space, row, 64, 0, _PIECE, does, written=written)


def _places(asm: Assembler, address: Operand, stride: list[Operand], size: int) -> list[int]:
    """Rows of the addresses of the pieces that each lane moves."""
    row, bits, offset = asm.address(address)
    per_line = _SIDE * size // 16
    lengths = asm.source(stride[0], "u32") if stride else asm.number(_SIDE, "u32")
    rows = []
    for turn in range(size // 2):
        place = asm.temporary(64)
        pieces = [lane + WARP * turn for lane in range(WARP)]

        def function(base: Lanes, length: Lanes, pieces: list[int] = pieces) -> Lanes:
            line = base.each("s64", [piece // per_line for piece in pieces])
            within = base.each("s64", [piece % per_line * 16 for piece in pieces])
            return base.to("s64") + offset + line * length.to("s64") * size + within

        name = f"wmma.place.{size}.{turn}.{bits}.{offset}"
        asm.lanewise(name, function, [place], [row, lengths], ["s64"], [f"u{bits}", "u32"])
        rows.append(place)
    return rows


def _order(register: int, matrix: str, size: int, flip: bool) -> list[int]:
    """Places of the elements of a register's row in the tile, line by line."""
    if size == 4:
        down, across, odd = register // 2 % 2, register // 4, register % 2
        cells = [(8 * down + lane // 4, 8 * across + 2 * (lane % 4) + odd) for lane in range(WARP)]
    else:
        order = {"a": A_ORDER, "b": B_ORDER}.get(matrix, _SUMS)
        down, across = order[register % 4]
        cells = [(8 * down + k // 8, 8 * across + k % 8) for k in range(64)]
    return [_SIDE * column + row if flip else _SIDE * row + column for row, column in cells]


def _turns(code: OperationCode, turns: int, space: str, *, reads: bool) -> Iterator[Lanes]:
    """Places of the 16-byte pieces of a tile that the lanes move in each turn, in the tile's order."""
    needs_whole_warp(code)
    everyone = code.mask
    for turn in range(turns):
        code.mask = everyone
        yield addresses(code, code.source(turn, "s64"), space, _PIECE, reads=reads)


def _pointers(place: Lanes) -> list[Any]:
    b = place.builder
    return [b.inttoptr(b.extract_element(place.value, WORD32(lane)), POINTER) for lane in range(WARP)]


def _load(code: OperationCode, turns: int, orders: list[list[int]], size: int, space: str) -> None:
    b, line = code.builder, llvm_type("u8", _PIECE)
    pieces: list[Lanes] = []
    for place in _turns(code, turns, space, reads=True):
        pieces += [Lanes(b, b.load(each, typ=line, align=_PIECE), "u8") for each in _pointers(place)]
    tile = stacked(pieces).as_type("u16" if size == 2 else "u32")
    for k, order in enumerate(orders):
        b.store(tile.shuffled(order).value, code.row(turns + k), align=64)


def _keep_pieces(code: OperationCode, turns: int, orders: list[list[int]], size: int) -> None:
    """The pieces that each lane writes, in a row for each turn."""
    tile, row = _tile_of(code, turns, orders, size), _PIECE * WARP
    for turn in range(turns):
        code.builder.store(tile.shuffled(range(row * turn, row * turn + row)).value, code.row(turn), align=64)


def _store(code: OperationCode, turns: int, orders: list[list[int]], size: int, space: str) -> None:
    tile = _tile_of(code, turns, orders, size)
    for turn, place in enumerate(_turns(code, turns, space, reads=False)):
        for lane, pointer in enumerate(_pointers(place)):
            first = _PIECE * (WARP * turn + lane)
            code.builder.store(tile.shuffled(range(first, first + _PIECE)).value, pointer, align=_PIECE)


def _tile_of(code: OperationCode, turns: int, orders: list[list[int]], size: int) -> Lanes:
    """The bytes of a tile, line by line, from a fragment in the rows after those of the turns."""
    type_, many = ("u16", 64) if size == 2 else ("u32", WARP)
    whole = stacked([code.source(turns + k, type_, many) for k in range(len(orders))])
    place_of = {cell: place for place, cell in enumerate(cell for order in orders for cell in order)}
    return whole.shuffled([place_of[cell] for cell in range(_SIDE * _SIDE)]).as_type("u8")
