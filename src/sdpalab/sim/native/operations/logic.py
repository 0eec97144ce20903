"""Logic, shifts, bit fields and byte permutation (PTX ISA, "Logic and Shift Instructions", "prmt", "bfe", "popc"),
by the rules of :mod:`sdpalab.sim.isa.logic` and :mod:`~sdpalab.sim.isa.bits`."""

from __future__ import annotations

from collections.abc import Callable

from sdpalab.sim.decode import Mods
from sdpalab.sim.ir import Immediate, Instruction
from sdpalab.sim.isa.steps import require
from sdpalab.sim.native.assembler import Assembler, NotNative, native
from sdpalab.sim.native.lanes import Lanes, where

__all__: list[str] = []

_BITS = ("b16", "b32", "b64")
_WORDS = ("b32", "b64")


def _operands(
    asm: Assembler,
    instruction: Instruction,
    name: str,
    function: Callable[..., Lanes | tuple[Lanes, ...]],
    types: tuple[str, ...],
) -> None:
    """The destination and the sources of an instruction, each of its type."""
    if len(instruction.operands) != len(types):
        raise NotNative(f"{len(instruction.operands)} operands")
    target, *sources = zip(instruction.operands, types, strict=True)
    asm.compute(name, function, [target], sources)


@native("and", "or", "xor")
def _logic(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, ("pred", *_BITS))
    mods.done()
    functions = {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}
    opcode = instruction.opcode
    _operands(asm, instruction, f"{opcode}.{type_.name}", functions[opcode], (type_.name,) * 3)


@native("not")
def _not(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, ("pred", *_BITS))
    mods.done()
    _operands(asm, instruction, f"not.{type_.name}", lambda a: ~a, (type_.name,) * 2)


@native("cnot")
def _cnot(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, _BITS)
    mods.done()
    _operands(asm, instruction, f"cnot.{type_.name}", lambda a: (a == 0).to(a.type), (type_.name,) * 2)


def _lookup(table: int, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The disjunction of the rows of a look-up table in which the result is 1."""
    result = a.like(0)
    for row in range(8):
        if table >> row & 1:
            x, y, z = (each if row >> 2 - k & 1 else ~each for k, each in enumerate((a, b, c)))
            result = result | (x & y & z)
    return result


@native("lop3")
def _lop3(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    combine = mods.choice(("or", "and"), default="")
    require(mods, mods.type(), ("b32",))
    mods.done()
    target, a, b, c, table = instruction.operands[:5]
    first, second = asm.pair(target)
    if not isinstance(table, Immediate) or not isinstance(table.value, int) or (second is None) == bool(combine):
        raise NotNative("lop3 of this form")
    code = table.value & 0xFF
    sources = [(each, "b32") for each in (a, b, c)]
    if second is None:
        asm.compute(f"lop3.{code}", lambda x, y, z: _lookup(code, x, y, z), [(first, "b32")], sources)
        return

    def function(x: Lanes, y: Lanes, z: Lanes, q: Lanes) -> tuple[Lanes, Lanes]:
        result = _lookup(code, x, y, z)
        return result, (result != 0) | q if combine == "or" else (result != 0) & q

    targets = [(first, "b32"), (second, "pred")]
    asm.compute(f"lop3.{combine}.{code}", function, targets, [*sources, (instruction.operands[5], "pred")])


# ---- shifts ----------------------------------------------------------------------------------------------------------


def _shifted(x: Lanes, amount: Lanes, *, left: bool) -> Lanes:
    """A shift by any amount: zeros, or copies of the sign, from the width on. ``amount`` is u32."""
    width = x.bits
    beyond = amount >= width
    by = where(beyond, amount.like(0), amount).to(f"u{width}")
    if left:
        return where(beyond, x.like(0), x << by.as_type(x.type))
    if x.signed:
        by = where(beyond, amount.like(width - 1), amount).to(f"u{width}")
        return x >> by.as_type(x.type)
    return where(beyond, x.like(0), x >> by.as_type(x.type))


@native("shl", "shr")
def _shift(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    left = instruction.opcode == "shl"
    require(mods, type_, _BITS if left else (*_BITS, "u16", "u32", "u64", "s16", "s32", "s64"))
    mods.done()
    _operands(
        asm,
        instruction,
        f"{instruction.opcode}.{type_.name}",
        lambda x, n: _shifted(x, n, left=left),
        (type_.name, type_.name, "u32"),
    )


@native("shf")
def _funnel_shift(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    left = mods.choice(("l", "r")) == "l"
    clamp = mods.choice(("wrap", "clamp")) == "clamp"
    require(mods, mods.type(), ("b32",))
    mods.done()

    def function(low: Lanes, high: Lanes, amount: Lanes) -> Lanes:
        n = where(amount > 32, amount.like(32), amount) if clamp else amount & 31
        right = n if not left else n.like(32) - n
        return _shifted(high, right.like(32) - right, left=True) | _shifted(low, right, left=False)

    name = f"shf.{'l' if left else 'r'}.{'clamp' if clamp else 'wrap'}"
    _operands(asm, instruction, name, function, ("b32", "u32", "u32", "u32"))


# ---- counting --------------------------------------------------------------------------------------------------------


def _leading_zeros(x: Lanes) -> Lanes:
    """Zeros above the highest set bit; the width for zero."""
    x = x.as_type(f"u{x.bits}")
    count = x.like(x.bits)
    value, step = x, x.bits // 2
    while step:
        high = value >> step
        some = high != 0
        count = where(some, count - step, count)
        value = where(some, high, value)
        step //= 2
    return count - value


def _population(x: Lanes) -> Lanes:
    ones = {byte: int.from_bytes(bytes([byte]) * (x.bits // 8), "little") for byte in (0x55, 0x33, 0x0F, 0x01)}
    pairs = x - ((x >> 1) & ones[0x55])
    nibbles = (pairs & ones[0x33]) + ((pairs >> 2) & ones[0x33])
    counts = (nibbles + (nibbles >> 4)) & ones[0x0F]
    return (counts * ones[0x01]) >> x.bits - 8


@native("popc", "clz")
def _count(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, _WORDS)
    mods.done()
    count = _population if instruction.opcode == "popc" else _leading_zeros
    name = f"{instruction.opcode}.{type_.name}"
    _operands(asm, instruction, name, lambda x: count(x).to("u32"), ("u32", type_.name))


@native("bfind")
def _bfind(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """The highest bit that differs from the sign; all ones where there is none."""
    amount = mods.flag("shiftamt")
    type_ = mods.type()
    require(mods, type_, ("u32", "u64", "s32", "s64"))
    mods.done()

    def function(x: Lanes) -> Lanes:
        zeros = _leading_zeros(where(x < 0, ~x, x) if x.signed else x).to("u32")
        none = zeros == type_.bits
        return where(none, zeros.like(-1), zeros if amount else zeros.like(type_.bits - 1) - zeros)

    _operands(asm, instruction, f"bfind{'.shiftamt' * amount}.{type_.name}", function, ("u32", type_.name))


@native("brev")
def _brev(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, _WORDS)
    mods.done()
    _operands(asm, instruction, f"brev.{type_.name}", lambda x: x.call("bitreverse"), (type_.name,) * 2)


# ---- bit fields ------------------------------------------------------------------------------------------------------


def _field(position: Lanes, length: Lanes, bits: int) -> tuple[Lanes, Lanes]:
    """Where a field begins and how long it is: the low bytes of two operands, the length at most the type's."""
    size = length & 0xFF
    return position & 0xFF, where(size > bits, size.like(bits), size)


@native("bfe")
def _bfe(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Extract a field; beyond the top bit it is zero or, signed, the top bit."""
    type_ = mods.type()
    require(mods, type_, ("u32", "u64", "s32", "s64"))
    mods.done()

    def function(x: Lanes, position: Lanes, length: Lanes) -> Lanes:
        start, size = _field(position, length, type_.bits)
        spare = size.like(type_.bits) - size
        return _shifted(_shifted(_shifted(x, start, left=False), spare, left=True), spare, left=False)

    types = (type_.name, type_.name, "u32", "u32")
    _operands(asm, instruction, f"bfe.{type_.name}", function, types)


@native("bfi")
def _bfi(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    type_ = mods.type()
    require(mods, type_, _WORDS)
    mods.done()

    def function(x: Lanes, into: Lanes, position: Lanes, length: Lanes) -> Lanes:
        start, size = _field(position, length, type_.bits)
        mask = _shifted(_shifted(x.like(1), size, left=True) - 1, start, left=True)
        return (into & ~mask) | (_shifted(x, start, left=True) & mask)

    types = (type_.name, type_.name, type_.name, "u32", "u32")
    _operands(asm, instruction, f"bfi.{type_.name}", function, types)


# ---- bytes -----------------------------------------------------------------------------------------------------------


@native("prmt")
def _prmt(asm: Assembler, instruction: Instruction, mods: Mods) -> None:
    """Any four of the eight bytes of b and a; selector bit 3 spreads a byte's sign."""
    type_ = mods.type()
    require(mods, type_, ("b32",))
    mods.done()  # the modes are not native
    selector = instruction.operands[3]
    types = ("b32", "b32", "b32", "b32")
    if isinstance(selector, Immediate) and isinstance(selector.value, int):
        code = selector.value & 0xFFFF
        _operands(asm, instruction, f"prmt.{code}", lambda x, y, z: _picked(x, y, code), types)
    else:
        _operands(asm, instruction, "prmt", _permuted, types)


def _picked(x: Lanes, y: Lanes, code: int) -> Lanes:
    """Bytes by a selector that is known."""
    result = x.like(0)
    for k in range(4):
        place = code >> 4 * k & 15
        byte = ((y if place & 4 else x) >> 8 * (place & 3)) & 0xFF
        if place & 8:
            byte = where((byte & 0x80) != 0, byte.like(0xFF), 0)
        result = result | (byte << 8 * k)
    return result


def _permuted(x: Lanes, y: Lanes, selector: Lanes) -> Lanes:
    both = (y.to("u64") << 32) | x.to("u64")
    result = x.like(0)
    for k in range(4):
        place = (selector >> 4 * k) & 15
        byte = ((both >> ((place & 7) << 3).to("u64")) & 0xFF).to("b32")
        spread = where((byte & 0x80) != 0, byte.like(0xFF), 0)
        result = result | (where((place & 8) != 0, spread, byte) << 8 * k)
    return result
