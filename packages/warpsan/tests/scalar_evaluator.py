"""Random PTX programs of integers and floats with branches and loops, and their evaluation for one thread.

A program is a tree of statements. :func:`render` writes it as PTX for the simulator; :func:`evaluate` runs it for one
thread with Python integers and exact fractions. The two share no parser, decoder or arithmetic. The semantics follow
the PTX manual, "Integer Arithmetic", "Logic and Shift", "Comparison and Selection", "Floating Point" and "cvt".
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from exact_floats import Number, add, decode, encode, mul, negated, round_integer

__all__ = ["REGISTERS", "Program", "evaluate", "expected_bits", "random_program", "render"]

REGISTERS = {"h": (16, 3), "r": (32, 6), "d": (64, 4), "s": (16, 2), "f": (32, 4), "g": (64, 3)}
"""Register classes: bits and count. h, r, d hold integers; s, f, g hold f16, f32 and f64."""
_PREDICATES = 3
_FLOATS = {"s": "f16", "f": "f32", "g": "f64"}
_CLASS = {16: "h", 32: "r", 64: "d"}
_NAN = {"f16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}


@dataclass(frozen=True)
class Op:
    """One instruction: its text with ``{0}``, ``{1}``... for the operands, and its function of the sources."""

    text: str
    target: str
    sources: tuple[str | int, ...]
    compute: Callable[..., int]
    guard: tuple[str, bool] | None = None


@dataclass(frozen=True)
class If:
    """``then`` if the predicate (possibly negated) holds, ``otherwise`` if not."""

    predicate: str
    negated: bool
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Loop:
    """``body``, repeated by the two low bits of a register plus one."""

    count: str
    body: tuple[Statement, ...]


Statement = Op | If | Loop


@dataclass(frozen=True)
class Program:
    """Statements, with initial and final register values."""

    body: tuple[Statement, ...]


# ---- function of one instruction -------------------------------------------------------------------------------------


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def _integer_ops(draw: random.Random) -> tuple[str, str, tuple[str, ...], Callable[..., int]]:
    """Text, target class, source classes ("p": predicate, "r": shift count) and function of an integer instruction."""
    bits = draw.choice([16, 32, 32, 32, 64, 64])
    sign = draw.choice("us")
    own, mask = _CLASS[bits], (1 << bits) - 1

    def read(value: int) -> int:
        return _signed(value, bits) if sign == "s" else value

    def quotient(x: int, y: int) -> int:
        x, y = read(x), read(y | 1)
        return (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)

    def shifted(x: int, count: int) -> int:
        return read(x) >> min(count, bits) if sign == "s" else x >> min(count, bits)

    def high(x: int, y: int) -> int:
        return read(x) * read(y) >> bits

    kind = f"{sign}{bits}"
    two, three = (own, own), (own, own, own)
    table: list[tuple[str, str, tuple[str, ...], Callable[..., int]]] = [
        (f"add.{kind} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: x + y),
        (f"sub.{kind} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: x - y),
        (f"mul.lo.{kind} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: x * y),
        (f"mul.hi.{kind} {{0}}, {{1}}, {{2}};", own, two, high),
        (f"mad.lo.{kind} {{0}}, {{1}}, {{2}}, {{3}};", own, three, lambda x, y, z: x * y + z),
        (f"mad.hi.{kind} {{0}}, {{1}}, {{2}}, {{3}};", own, three, lambda x, y, z: high(x, y) + z),
        (f"min.{kind} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: min(read(x), read(y))),
        (f"max.{kind} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: max(read(x), read(y))),
        (f"or.b{bits} {{2}}, {{2}}, 1; div.{kind} {{0}}, {{1}}, {{2}};", own, two, quotient),
        (
            f"or.b{bits} {{2}}, {{2}}, 1; rem.{kind} {{0}}, {{1}}, {{2}};",
            own,
            two,
            lambda x, y: read(x) - quotient(x, y) * read(y | 1),
        ),
        (f"and.b{bits} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: x & y),
        (f"or.b{bits} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: x | y),
        (f"xor.b{bits} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: x ^ y),
        (f"not.b{bits} {{0}}, {{1}};", own, (own,), lambda x: ~x),
        (f"neg.s{bits} {{0}}, {{1}};", own, (own,), lambda x: -x),
        (f"abs.s{bits} {{0}}, {{1}};", own, (own,), lambda x: abs(_signed(x, bits))),
        (f"shl.b{bits} {{0}}, {{1}}, {{2}};", own, (own, "r"), lambda x, n: 0 if n >= bits else x << n),
        (f"shr.{kind} {{0}}, {{1}}, {{2}};", own, (own, "r"), shifted),
        (f"selp.b{bits} {{0}}, {{1}}, {{2}}, {{3}};", own, (own, own, "p"), lambda x, y, p: x if p else y),
        (f"sad.{kind} {{0}}, {{1}}, {{2}}, {{3}};", own, three, lambda x, y, z: z + abs(read(x) - read(y))),
    ]
    if bits > 16:
        half = _CLASS[bits // 2]

        def narrow(value: int) -> int:
            return _signed(value, bits // 2) if sign == "s" else value

        def field(x: int, at: int, length: int) -> int:
            at, length = at & 255, length & 255
            unsigned = (x >> at & (1 << length) - 1) if at < bits else 0
            if sign == "u" or length == 0:
                return unsigned
            top = x >> min(at + length - 1, bits - 1) & 1
            return (unsigned | -top << length) if at + length <= bits else unsigned | -top << max(0, bits - at)

        def inserted(x: int, y: int, at: int, length: int) -> int:
            at, length = at & 255, length & 255
            where = (((1 << length) - 1) << at) & mask
            return y & ~where | x << at & where

        table += [
            (f"mul.wide.{sign}{bits // 2} {{0}}, {{1}}, {{2}};", own, (half, half), lambda x, y: narrow(x) * narrow(y)),
            (f"popc.b{bits} {{0}}, {{1}};", "r", (own,), lambda x: x.bit_count()),
            (f"clz.b{bits} {{0}}, {{1}};", "r", (own,), lambda x: bits - x.bit_length()),
            (f"brev.b{bits} {{0}}, {{1}};", own, (own,), lambda x: int(f"{x:0{bits}b}"[::-1], 2)),
            (f"bfe.{kind} {{0}}, {{1}}, {{2}}, {{3}};", own, (own, "r", "r"), field),
            (f"bfi.b{bits} {{0}}, {{1}}, {{2}}, {{3}}, {{4}};", own, (own, own, "r", "r"), inserted),
            (f"cvt.{kind}.{sign}{bits // 2} {{0}}, {{1}};", own, (half,), narrow),
            (f"cvt.{sign}{bits // 2}.{kind} {{0}}, {{1}};", half, (own,), lambda x: x),
        ]
    if bits == 32:
        lut = draw.getrandbits(8)

        def by_table(x: int, y: int, z: int) -> int:
            picked = (lut >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | z >> i & 1) & 1 for i in range(32))
            return sum(bit << i for i, bit in enumerate(picked))

        def permuted(x: int, y: int, selector: int) -> int:
            source, result = (y << 32 | x).to_bytes(8, "little"), 0
            for i in range(4):
                nibble = selector >> 4 * i & 15
                byte = source[nibble & 7]
                result |= (byte if nibble < 8 else 255 * (byte >> 7)) << 8 * i
            return result

        def wrapped(low: int, top: int, count: int) -> int:
            return (top << 32 | low) << (count & 31) >> 32

        def funnel(low: int, top: int, count: int) -> int:
            return (top << 32 | low) >> min(count, 32)

        table += [
            (f"lop3.b32 {{0}}, {{1}}, {{2}}, {{3}}, {lut};", own, three, by_table),
            ("prmt.b32 {0}, {1}, {2}, {3};", own, three, permuted),
            ("shf.l.wrap.b32 {0}, {1}, {2}, {3};", own, three, wrapped),
            ("shf.r.clamp.b32 {0}, {1}, {2}, {3};", own, three, funnel),
        ]
    order = draw.choice(["eq", "ne", "lt", "le", "gt", "ge"])
    holds: dict[str, Callable[[int, int], bool]] = {
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
    }
    compare = (f"setp.{order}.{kind} {{0}}, {{1}}, {{2}};", "p", two, lambda x, y: int(holds[order](read(x), read(y))))
    return draw.choice([*table, compare, compare, compare])


def _float_ops(draw: random.Random) -> tuple[str, str, tuple[str, ...], Callable[..., int]]:
    """As above, for a floating-point instruction. NaN is always the canonical one."""
    own = draw.choice("sffg")
    name, rounding = _FLOATS[own], draw.choice(["rn", "rz", "rm", "rp"])
    if own != "f":
        rounding = "rn"  # the others are modelled for f32 only

    def value(bits: int) -> Number:
        return decode(bits, name)

    def bits_of(number: Number, how: str = rounding, format_name: str = name) -> int:
        bits = encode(number, format_name, how)
        return _NAN[format_name] if bits is None else bits

    def fused(x: int, y: int, z: int) -> int:
        return bits_of(add(mul(value(x), value(y)), value(z), rounding))

    def least(x: int, y: int) -> int:
        a, b = value(x), value(y)
        if a is None or b is None:
            return bits_of(b if a is None else a, "rn")
        return x if _key(a) <= _key(b) else y

    def to_integer(x: int) -> int:
        number = value(x)
        if number is None:
            return -(1 << 31) if own == "g" else 0
        if number[1] == math.inf:
            return -(1 << 31) if number[0] else (1 << 31) - 1
        whole = round_integer(number[0], Fraction(number[1]), "rz")
        return max(-(1 << 31), min((1 << 31) - 1, -whole if number[0] else whole))

    def from_integer(x: int) -> int:
        number = _signed(x, 32)
        return bits_of((number < 0, Fraction(abs(number))))

    two, three = (own, own), (own, own, own)
    table: list[tuple[str, str, tuple[str, ...], Callable[..., int]]] = [
        (
            f"add.{rounding}.{name} {{0}}, {{1}}, {{2}};",
            own,
            two,
            lambda x, y: bits_of(add(value(x), value(y), rounding)),
        ),
        (
            f"sub.{rounding}.{name} {{0}}, {{1}}, {{2}};",
            own,
            two,
            lambda x, y: bits_of(add(value(x), negated(value(y)), rounding)),
        ),
        (f"mul.{rounding}.{name} {{0}}, {{1}}, {{2}};", own, two, lambda x, y: bits_of(mul(value(x), value(y)))),
        (f"fma.{rounding}.{name} {{0}}, {{1}}, {{2}}, {{3}};", own, three, fused),
        (f"cvt.rzi.s32.{name} {{0}}, {{1}};", "r", (own,), to_integer),
        (f"cvt.{rounding}.{name}.s32 {{0}}, {{1}};", own, ("r",), from_integer),
    ]
    if own != "s":
        table.append((f"min.{name} {{0}}, {{1}}, {{2}};", own, two, least))
        table.append((f"setp.lt.{name} {{0}}, {{1}}, {{2}};", "p", two, lambda x, y: int(_less(value(x), value(y)))))
    if own == "f":
        table += [
            ("cvt.f32.f16 {0}, {1};", "f", ("s",), lambda x: bits_of(decode(x, "f16"), "rn")),
            ("cvt.rn.f16.f32 {0}, {1};", "s", ("f",), lambda x: bits_of(value(x), "rn", "f16")),
            ("cvt.f64.f32 {0}, {1};", "g", ("f",), lambda x: bits_of(value(x), "rn", "f64")),
            (f"cvt.{rounding}.f32.f64 {{0}}, {{1}};", "f", ("g",), lambda x: bits_of(decode(x, "f64"))),
        ]
    return draw.choice(table)


def _key(number: tuple[bool, Fraction]) -> tuple[Fraction | float, bool]:
    """Sort key: by value, with -0 before +0."""
    return (-number[1] if number[0] else number[1]), not number[0]


def _less(x: Number, y: Number) -> bool:
    if x is None or y is None:
        return False
    return _key(x)[0] < _key(y)[0]


# ---- programs --------------------------------------------------------------------------------------------------------


def random_program(seed: int, size: int = 40) -> Program:
    """A program of about ``size`` instructions."""
    draw = random.Random(seed)
    return Program(tuple(_statements(draw, size, depth=0)))


def _statements(draw: random.Random, size: int, depth: int) -> list[Statement]:
    statements: list[Statement] = []
    while size > 0:
        shape = draw.random()
        inner = min(size, draw.randint(2, 8))
        if shape < 0.1 and depth < 3:
            sides = tuple(_statements(draw, inner, depth + 1)), tuple(_statements(draw, inner // 2, depth + 1))
            statements.append(If(_pick(draw, "p"), draw.random() < 0.5, *sides))
        elif shape < 0.16 and depth < 2:
            statements.append(Loop(_pick(draw, "r"), tuple(_statements(draw, inner, depth + 1))))
        else:
            inner = 1
            statements.append(_op(draw))
        size -= inner
    return statements


def _op(draw: random.Random) -> Op:
    text, target, sources, compute = (_float_ops if draw.random() < 0.35 else _integer_ops)(draw)
    names = tuple(_pick(draw, kind) for kind in sources)
    plain = text.count(";") == 1
    if plain and "cvt" not in text and sources[-1] == "r" and draw.random() < 0.3:
        immediate = draw.choice([0, 1, 7, 31, 32, 40, draw.getrandbits(8)])
        return Op(text, _pick(draw, target), (*names[:-1], immediate), compute)
    guard = (_pick(draw, "p"), draw.random() < 0.5) if plain and draw.random() < 0.15 else None
    return Op(text, _pick(draw, target), names, compute, guard)


def _pick(draw: random.Random, kind: str) -> str:
    return f"{kind}{draw.randrange(_PREDICATES if kind == 'p' else REGISTERS[kind][1])}"


def evaluate(program: Program, first: dict[str, int]) -> dict[str, int]:
    """Registers after a program, from the registers before it; predicates begin as false."""
    state = {**{f"p{k}": 0 for k in range(_PREDICATES)}, **first}
    _run(program.body, state)
    return state


def _run(body: Sequence[Statement], state: dict[str, int]) -> None:
    for statement in body:
        if isinstance(statement, If):
            _run(
                statement.then if bool(state[statement.predicate]) != statement.negated else statement.otherwise, state
            )
        elif isinstance(statement, Loop):
            for _ in range((state[statement.count] & 3) + 1):
                _run(statement.body, state)
        elif statement.guard is None or bool(state[statement.guard[0]]) != statement.guard[1]:
            if statement.text.startswith("or.b") and statement.text.count(";") == 2:
                state[str(statement.sources[1])] |= 1  # divisors are made odd in place
            sources = [state[name] if isinstance(name, str) else name for name in statement.sources]
            bits = REGISTERS.get(statement.target[0], (1, 0))[0]
            state[statement.target] = statement.compute(*sources) & (1 << bits) - 1


def expected_bits(state: dict[str, int], name: str, actual: int) -> bool:
    """Whether a register has the expected bits; any NaN matches NaN."""
    form = _FLOATS.get(name[0])
    if form is not None and decode(state[name], form) is None:
        return decode(actual, form) is None
    return state[name] == actual


# ---- PTX -------------------------------------------------------------------------------------------------------------


def render(program: Program) -> str:
    """An entry ``fuzz(in, out)``: each thread loads all registers, 64 bits apart, runs the program and stores them."""
    names = [f"{kind}{k}" for kind, (_, many) in REGISTERS.items() for k in range(many)]
    types = {"h": "b16", "r": "b32", "d": "b64", "s": "b16", "f": "f32", "g": "f64"}
    lines = [f".reg .{types[kind]} %{kind}<{many}>;" for kind, (_, many) in REGISTERS.items()]
    lines += [f".reg .pred %p<{_PREDICATES}>, %more; .reg .b32 %t, %n<64>; .reg .b64 %a, %b, %o;"]
    lines += ["ld.param.u64 %a, [fuzz_in]; ld.param.u64 %b, [fuzz_out]; mov.u32 %t, %tid.x;"]
    lines += [f"mul.wide.u32 %o, %t, {8 * len(names)}; add.u64 %a, %a, %o; add.u64 %b, %b, %o;"]
    lines += [f"setp.ne.u32 %p{k}, 0, 0;" for k in range(_PREDICATES)]
    lines += [f"ld.global.{types[name[0]]} %{name}, [%a+{8 * k}];" for k, name in enumerate(names)]
    _render(program.body, lines, [0])
    lines += [f"st.global.{types[name[0]]} [%b+{8 * k}], %{name};" for k, name in enumerate(names)]
    body = "\n".join([*lines, "ret;"])
    return (
        ".version 8.0\n.target sm_89\n.address_size 64\n"
        f".visible .entry fuzz(.param .u64 fuzz_in, .param .u64 fuzz_out)\n{{\n{body}\n}}\n"
    )


def _render(body: Sequence[Statement], lines: list[str], labels: list[int]) -> None:
    for statement in body:
        labels[0] += 1
        mark = labels[0]
        if isinstance(statement, If):
            lines.append(f"@{'' if statement.negated else '!'}%{statement.predicate} bra ELSE{mark};")
            _render(statement.then, lines, labels)
            lines += [f"bra.uni JOIN{mark};", f"ELSE{mark}:"]
            _render(statement.otherwise, lines, labels)
            lines.append(f"JOIN{mark}:")
        elif isinstance(statement, Loop):
            counter = f"%n{mark % 64}"
            lines += [f".reg .b32 %count{mark};", f"and.b32 %count{mark}, %{statement.count}, 3;", f"LOOP{mark}:"]
            _render(statement.body, lines, labels)
            lines += [f"mov.b32 {counter}, %count{mark};", f"sub.u32 %count{mark}, %count{mark}, 1;"]
            lines += [f"setp.ne.u32 %more, {counter}, 0;", f"@%more bra LOOP{mark};"]
        else:
            operands = [f"%{name}" if isinstance(name, str) else str(name) for name in statement.sources]
            text = statement.text.format(f"%{statement.target}", *operands)
            if statement.guard is not None:
                text = f"@{'!' if statement.guard[1] else ''}%{statement.guard[0]} {text}"
            lines.append(text)
