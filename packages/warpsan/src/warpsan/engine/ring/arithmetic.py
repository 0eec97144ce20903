"""Floating-point instructions in a ring: arithmetic, exponentials, comparison, conversion."""

from __future__ import annotations

from collections.abc import Callable

from warpsan.engine.assembler import HANDLERS
from warpsan.engine.lanes import Lanes
from warpsan.engine.ring.assembler import RingAssembler, algebraic
from warpsan.ptx.accesses import Atomic
from warpsan.ptx.arithmetic import WHOLE
from warpsan.ptx.forms import FP8_PAIRS
from warpsan.ptx.grammar import Computation, Form
from warpsan.ptx.ir import Immediate, Instruction, Operand, Register, Vector
from warpsan.ptx.modifiers import find_handler, types_of
from warpsan.ptx.synchronising import BulkReduction
from warpsan.ptx.types import PtxType
from warpsan.semantics.compare import combined, plain_comparison
from warpsan.semantics.floating import base_of, is_half

__all__: list[str] = []

Compute = Callable[..., Lanes]


def _halved(asm: RingAssembler, compute: Compute, type_: PtxType) -> Compute:
    """Convert a computation on words of 32 bits to one on words of 16."""
    base, words = base_of(type_), asm.words
    return lambda *sources: words.narrowed(compute(*(words.widened(each, base) for each in sources)), base)


def _lanewise(asm: RingAssembler, instruction: Instruction, name: str, compute: Compute, type_: PtxType) -> None:
    """Append a computation of one result of the type of its sources."""
    ordered = name in ("min", "max")
    target, *sources = instruction.operands
    if is_half(type_):
        compute, held = _halved(asm, compute, type_), type_.name
        name = asm.name(f"{name}.{held}", ordered=ordered)
        rows = [asm.source(each, held) for each in sources]
        place, finish = asm.target(target, held)
        asm.lanewise(name, compute, [place], rows, [held], [held] * len(rows))
        finish()
        return
    asm.compute(asm.name(name, ordered=ordered), compute, [(target, "b32")], [(each, "b32") for each in sources])


@algebraic("add", "sub", "mul", "fma", "mad", "div", "min", "max", "neg", "abs", "copysign", "rcp", "ex2", "lg2")
def _arithmetic(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    type_, opcode, words = form.type, form.name, asm.words
    if not type_.is_float:
        return _integers(asm, instruction, form)
    if type_.name == "f64" or {"sat", "relu", "xorsign"} & form.flags:
        return asm.ends(instruction)
    larger = opcode == "max"
    operations: dict[str, Compute] = {
        "add": words.add,
        "sub": words.sub,
        "mul": words.mul,
        "fma": words.fma,
        "mad": words.fma,
        "div": words.div,
        "min": lambda a, b: words.extremum(a, b, larger=larger),
        "max": lambda a, b: words.extremum(a, b, larger=larger),
        "neg": words.neg,
        "abs": words.magnitude,
        "copysign": words.copysign,
        "rcp": words.rcp,
        "ex2": words.ex2,
        "lg2": words.lg2,
    }
    _lanewise(asm, instruction, opcode, operations[opcode], type_)
    return True


@algebraic("sqrt", "rsqrt", "sin", "cos", "tanh")
def _of_constants(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    """An instruction without a meaning in a ring; if all its operands are constants, the result is one."""
    if form.type.name != "f32":
        return asm.ends(instruction)
    _only_constants(asm, instruction, instruction.operands[1])
    return False


def _only_constants(asm: RingAssembler, instruction: Instruction, operand: Operand) -> None:
    """Append a record that ends the run if an f32 operand is a code other than 0."""
    modulus, row = asm.ring.modulus, asm.source(operand, "b32")
    asm.ends_unless(instruction, "constant", lambda x: (x >= modulus) | (x == 0), [row], ["u32"])


# ---- comparison ------------------------------------------------------------------------------------------------------


@algebraic("setp", "set")
def _compare(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    """Codes are ordered by their number: the order has no meaning, equality has."""
    type_, (name, combination) = form.types[-1], form.modes
    if not type_.is_float:
        return False
    if type_.name == "f64" or type_.lanes == 2 or form.name == "set":
        return asm.ends(instruction)
    base, words, compare = base_of(type_), asm.words, plain_comparison(form)
    spaced = name.rstrip("u") not in ("eq", "ne")
    first, second = asm.pair(instruction.operands[0])
    targets = [(first, "pred"), *([(second, "pred")] if second is not None else [])]
    held = type_.name if is_half(type_) else "b32"
    rows = [asm.source(instruction.operands[k], held) for k in (1, 2)]
    sources = [held, held]
    if combination:
        rows.append(asm.source(instruction.operands[3], "pred"))
        sources.append("pred")

    def function(x: Lanes, y: Lanes, *with_: Lanes) -> tuple[Lanes, ...]:
        wide = (words.widened(each, base) if is_half(type_) else each for each in (x, y))
        result = compare(*(words.ordered(each, spaced=spaced) for each in wide))
        return tuple(combined(combination, each, *with_) for each in [result, ~result][: len(targets)])

    places = [asm.target(operand, "pred") for operand, _ in targets]
    name = asm.name(f"setp{len(targets)}.{name}.{combination}.{type_.name}", ordered=spaced)
    asm.lanewise(name, function, [place for place, _ in places], rows, ["pred"] * len(targets), sources)
    for _, finish in places:
        finish()
    return True


@algebraic("testp", "slct")
def _tests(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    tested = form.types[-1]
    if not tested.is_float:
        return False
    if tested.name != "f32":
        return asm.ends(instruction)
    _only_constants(asm, instruction, instruction.operands[1 if form.name == "testp" else 3])
    return False


# ---- conversion ------------------------------------------------------------------------------------------------------


@algebraic("cvt")
def _convert(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    """Every conversion keeps the code."""
    words, operands = asm.words, instruction.operands
    target, *others = (each.name for each in form.types)
    eight = FP8_PAIRS & form.flags
    if not eight and not any(each.is_float for each in form.types):
        return _integers(asm, instruction, form)
    if "relu" in form.flags:
        return asm.ends(instruction)
    if eight:
        return _eight_bits(asm, instruction, form)
    if form.type.lanes == 2:
        return asm.ends(instruction) if "sat" in form.flags else _pair(asm, instruction, form)
    source = others[0] if others else "f32"
    if "tf32" in form.flags:
        target = "tf32"
    elif not form.types[1].is_float:  # a constant
        return _from_integer(asm, instruction, form)
    elif not form.type.is_float or "sat" in form.flags or form.modes[0] in WHOLE:  # to an integer
        if source != "f32":
            return asm.ends(instruction)
        _only_constants(asm, instruction, operands[1])
        return False
    elif "f64" in (source, target):
        if source == "f32":
            _only_constants(asm, instruction, operands[1])
        return False
    wide, narrow = ("f32", "tf32"), ("f16", "bf16")
    if source in wide and target in wide:
        asm.compute("mov.b32", lambda x: x, [(operands[0], "b32")], [(operands[1], "b32")])
    elif source in narrow and target in wide:
        name = asm.name(f"widened.{source}")
        row = asm.source(operands[1], source)
        place, finish = asm.target(operands[0], "b32")
        asm.lanewise(name, lambda x: words.widened(x, source), [place], [row], ["b32"], ["b16"])
        finish()
    elif source in wide and target in narrow:
        name = asm.name(f"narrowed.{target}")
        asm.compute(name, lambda x: words.narrowed(x, target), [(operands[0], "b16")], [(operands[1], "b32")])
    else:
        return asm.ends(instruction)
    return True


def _pair(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    """Two numbers to the halves of a word."""
    words, base = asm.words, base_of(form.type)

    def packed(upper: Lanes, lower: Lanes) -> Lanes:
        high, low = (words.narrowed(each, base).to("u32") for each in (upper, lower))
        return (high << 16) | low

    asm.elementwise(instruction, asm.name(f"narrowed.{form.type.name}"), packed, "b32", "b32", "b32")
    return True


def _from_integer(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    """An integer is a constant: 32 bits hold it as floating point, and 16 as a code."""
    target, source = (each.name for each in form.types)
    if target in ("f32", "f64"):
        return False
    words = asm.words
    asm.compute(
        asm.name(f"narrowed.{target}.{source}"),
        lambda x: words.narrowed(x.to("f32").as_type("u32"), target),
        [(instruction.operands[0], "b16")],
        [(instruction.operands[1], source)],
    )
    return True


def _eight_bits(asm: RingAssembler, instruction: Instruction, form: Computation) -> bool:
    """``cvt`` with an 8-bit type on either side."""
    words, operands = asm.words, instruction.operands
    if asm.ring.modulus > 256:
        raise asm.unsupported(f"the codes of {asm.ring.name} do not fit 8 bits")

    def pair(high: Lanes, low: Lanes) -> Lanes:
        return ((words.narrowed8(high) << 8) | words.narrowed8(low)).to("b16")

    def split(both: Lanes) -> tuple[Lanes, Lanes]:
        return tuple(words.widened((both >> shift).to("u16"), "f16") for shift in (16, 0))  # type: ignore[return-value]

    if form.type.name == "f32":
        sources = [(each, "b32") for each in operands[1:]]
        asm.compute(asm.name("narrowed8"), pair, [(operands[0], "b16")], sources)
    elif "satfinite" in form.flags:
        row = asm.source(operands[1], "f16x2")
        place, finish = asm.target(operands[0], "b16")
        asm.lanewise(asm.name("narrowed8.f16x2"), lambda x: pair(*split(x)), [place], [row], ["b16"], ["b32"])
        finish()
    else:

        def widened(both: Lanes) -> Lanes:
            wide = both.to("u32")
            high, low = (words.narrowed(words.widened8((wide >> k) & 0xFF), "f16").to("u32") for k in (8, 0))
            return (high << 16) | low

        asm.compute(asm.name("widened8"), widened, [(operands[0], "b32")], [(operands[1], "b16")])
    return True


# ---- integers that hold codes ----------------------------------------------------------------------------------------

_FIELDS = frozenset((0xFF, 0xFFFF, 0xFF00, 0xFFFF0000, 0xFF0000, 0xFF000000, 0xFF00FF, 0xFF00FF00))
"""Masks that extract whole codes from a word."""


@algebraic("shl", "shr", "and", "or", "xor", "not", "lop3", "shf", "popc", "clz", "brev", "szext", "mad24", "mul24")
def _bits(asm: RingAssembler, instruction: Instruction, form: Form) -> bool:
    return _integers(asm, instruction, form)


def _integers(asm: RingAssembler, instruction: Instruction, form: Form) -> bool:
    """Integer instructions that change words which may be codes end the run; extracting and combining codes does
    not."""
    computed = [
        each for each in instruction.operands[1:] if isinstance(each, Register) and each.name in asm.flow.computed
    ]
    if _widens(asm, instruction):
        return True
    target = instruction.operands[0]
    types = types_of(instruction)
    if not computed or _moves_codes(instruction) or not types or types[-1].bits != 32 or types[-1].kind == "pred":
        return False
    handler = find_handler(HANDLERS, instruction.text)
    if handler is None or not isinstance(target, Register):
        return False
    rows = [asm.source(each, "b32") for each in computed]
    for k, each in enumerate(computed):
        if each == target:  # overwritten next
            before = asm.temporary(32)
            asm.lanewise("mov.b32", lambda x: x, [before], [rows[k]], ["b32"], ["b32"])
            rows[k] = before
    handler(asm, instruction, form)
    rows.insert(0, asm.source(target, "b32"))

    def unchanged(result: Lanes, *sources: Lanes) -> Lanes:
        holds = result == 0
        for each in sources:
            value = asm.words.value(each)
            holds = holds | (result == each) | (value.constant & ~value.large) | (each == 0)
        return holds

    asm.ends_unless(instruction, f"unchanged.{len(computed)}", unchanged, rows, ["u32"] * len(rows))
    return True


def _moves_codes(instruction: Instruction) -> bool:
    """Whether an instruction extracts whole codes from a word, or combines them."""
    numbers = [each.value for each in instruction.operands[1:] if isinstance(each, Immediate)]
    if instruction.opcode in ("shl", "shr"):
        return bool(numbers) and numbers[-1] in (8, 16, 24)
    if instruction.opcode == "and":
        return bool(numbers) and int(numbers[-1]) & 0xFFFFFFFF in _FIELDS
    return instruction.opcode in ("or", "cvt") and not numbers


def _widens(asm: RingAssembler, instruction: Instruction) -> bool:
    """bfloat16 to float32 by moving bits: ``shl 16``, or ``and 0xffff0000``, whose result is read as float32."""
    if instruction.opcode not in ("shl", "and") or len(instruction.operands) != 3:
        return False
    target, source, number = instruction.operands
    if not (isinstance(target, Register) and target.name in asm.flow.as_float and isinstance(number, Immediate)):
        return False
    shift = {("shl", 16): 0, ("and", 0xFFFF0000): 16}.get((instruction.opcode, int(number.value) & 0xFFFFFFFF))
    if shift is None:
        return False
    words = asm.words
    asm.compute(
        asm.name(f"widened.bits.{shift}"),
        lambda x: words.widened((x >> shift).to("u16"), "bf16"),
        [(target, "b32")],
        [(source, "b32")],
    )
    return True


@algebraic("mov")
def _move(asm: RingAssembler, instruction: Instruction, form: Form) -> bool:
    """``mov.b32 d, {0, h}``, whose result is read as float32: bfloat16 to float32."""
    target, *origins = instruction.operands
    origin = origins[0] if len(origins) == 1 else None
    if (
        not isinstance(origin, Vector)
        or not isinstance(target, Register)
        or target.name not in asm.flow.as_float
        or len(origin.items) != 2
    ):
        return False
    zero, half = origin.items
    literal = asm.flow.literals.get(zero.name) if isinstance(zero, Register) else zero
    if not isinstance(literal, Immediate) or literal.value != 0:
        return False
    words = asm.words
    row = asm.source(half, "b16")
    place, finish = asm.target(target, "b32")
    name = asm.name("widened.bf16")
    asm.lanewise(name, lambda x: words.widened(x, "bf16"), [place], [row], ["b32"], ["b16"])
    finish()
    return True


@algebraic("atom", "red", "cp.reduce")
def _atomic(asm: RingAssembler, instruction: Instruction, form: Form) -> bool:
    """Sums in memory are the ring's; those of float64, and maxima, are not."""
    operation, type_ = ("", None)
    if isinstance(form, Atomic):
        operation, type_ = form.update
    elif isinstance(form, BulkReduction):
        operation, type_ = form.combination
    if type_ is None or not type_.is_float or (operation == "add" and type_.name != "f64"):
        return False
    return asm.ends(instruction)
