"""Mutants of PTX with one floating-point instruction replaced by a wrong one, and reasons why one may be right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from warpsan.numerics import computes_floats
from warpsan.ptx import Entry, Instruction, parse, registers_read, registers_written
from warpsan.report import source_of

__all__ = ["FloatSite", "float_sites", "probes", "reaches_only", "target_of"]

_SIGN = re.compile(r"^(@!?%\w+\s+)?")
_CONSTANT = "0f40400000"
"""3.0, in place of a lost value."""


@dataclass(frozen=True)
class FloatSite:
    """A floating-point instruction and its mutant.

    Attributes
    ----------
    opcode, line, source : str, int, str
        Its text, its line in the PTX, and the line of the source that it comes from.
    statement, mutant : str
        As in the PTX.
    begin : int
        Where the statement begins in the PTX.
    """

    opcode: str
    line: int
    source: str
    statement: str
    mutant: str
    begin: int

    def apply(self, ptx: str, statement: str | None = None) -> str:
        """The PTX with the mutant, or with another statement, in the place of the instruction."""
        new = self.mutant if statement is None else statement
        return ptx[: self.begin] + new + ptx[self.begin + len(self.statement) :]


def float_sites(ptx: str, entry: str, copies: int = 0) -> Iterator[FloatSite]:
    """The floating-point instructions of an entry that have a mutant.

    With ``copies``, at most so many with one opcode of each line of the source: those in the middle of an unrolled loop
    are left out first.
    """
    module = parse(ptx)
    begins = [0]
    for line in ptx.split("\n"):
        begins.append(begins[-1] + len(line) + 1)
    sites = []
    for instruction in module.entries[entry].instructions:
        if not _is_wanted(instruction):
            continue
        pattern = re.compile(rf"(@!?%\w+\s+)?{re.escape(instruction.text)}\s[^;]*;")
        match = pattern.search(ptx, begins[instruction.line - 1])
        mutant = match and _mutant(instruction, match[0])
        if match and mutant:
            source = source_of(module, instruction)
            sites.append(FloatSite(instruction.text, instruction.line, source, match[0], mutant, match.start()))
    of_line = Counter((site.source, site.opcode) for site in sites)
    number: Counter[tuple[str, str]] = Counter()
    for site in sites:
        key = site.source, site.opcode
        number[key] += 1
        last = of_line[key] - number[key]
        if not copies or number[key] <= -(-copies // 2) or last < copies // 2:
            yield site


def _is_wanted(instruction: Instruction) -> bool:
    if instruction.opcode in ("setp", "selp"):
        return "f32" in instruction.mods
    if instruction.opcode in ("wmma", "wgmma"):
        return bool({"mma", "mma_async"} & set(instruction.mods))
    return computes_floats(instruction)


def _mutant(instruction: Instruction, statement: str) -> str | None:
    """The wrong instruction for a right one."""
    guard = _SIGN.match(statement)
    prefix = (guard[1] if guard else "") or ""
    text = statement[len(prefix) :].rstrip(";")
    opcode, _, rest = text.partition(" ") if " " in text.split("\t")[0] else text.partition("\t")
    operands = _split(rest)
    swap = _SWAPS.get(instruction.opcode)
    if swap is not None and opcode.split(".")[0] == instruction.opcode:
        return f"{prefix}{swap}{opcode[len(instruction.opcode) :]} {', '.join(operands)};"
    make = _MAKERS.get(instruction.opcode)
    statement_of = make(opcode, operands) if make else None
    return f"{prefix}{statement_of};" if statement_of else None


def _split(text: str) -> list[str]:
    """Operands of a statement, split at commas outside braces."""
    parts, depth, begin = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()]


_SWAPS = {"add": "sub", "sub": "add", "max": "min", "min": "max"}
Maker = Callable[[str, list[str]], "str | None"]


def _moved(opcode: str, operands: list[str]) -> str:
    return f"mov.b32 {operands[0]}, {operands[1]}"


def _converted(opcode: str, operands: list[str]) -> str | None:
    if len(operands) == 3:  # two numbers in one register: in the wrong order
        return f"{opcode} {operands[0]}, {operands[2]}, {operands[1]}"
    if opcode.startswith(("cvt.f32.f16", "cvt.f32.bf16")):
        return f"mov.f32 {operands[0]}, {_CONSTANT}"
    return f"mov.b32 {operands[0]}, 0x00050003" if "f16x2" in opcode else None


def _compared(opcode: str, operands: list[str]) -> str | None:
    other = {"eq": "neu", "ne": "equ", "neu": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
    parts = opcode.split(".")
    if parts[1] not in other:
        return None
    return f"{'.'.join([parts[0], other[parts[1]], *parts[2:]])} {', '.join(operands)}"


def _multiplied(opcode: str, operands: list[str]) -> str | None:
    """A matrix product whose right factor has its registers in reverse, or which is subtracted."""
    if opcode.startswith("wgmma"):
        scale = next((k for k in range(3, len(operands)) if operands[k] == "1"), None)
        if scale is None:
            return None
        return f"{opcode} {', '.join([*operands[:scale], '-1', *operands[scale + 1 :]])}"
    right = [part.strip() for part in operands[2].strip("{}").split(",")]
    if len(right) < 2:
        return None
    reverse = "{" + ", ".join(reversed(right)) + "}"
    return f"{opcode} {operands[0]}, {operands[1]}, {reverse}, {operands[3]}"


_MAKERS: dict[str, Maker] = {
    "mul": lambda opcode, operands: f"add.f32 {', '.join(operands)}" if opcode.endswith("f32") else None,
    "fma": lambda opcode, o: f"{opcode} {o[0]}, {o[2]}, {o[3]}, {o[1]}",
    "div": lambda opcode, operands: f"mul.f32 {', '.join(operands)}",
    "rcp": _moved,
    "ex2": _moved,
    "lg2": _moved,
    "neg": _moved,
    "abs": lambda opcode, operands: f"neg.f32 {', '.join(operands)}",
    "copysign": lambda opcode, operands: f"mov.b32 {operands[0]}, {operands[1]}",
    "cvt": _converted,
    "setp": _compared,
    "selp": lambda opcode, o: f"{opcode} {o[0]}, {o[2]}, {o[1]}, {o[3]}",
    "mma": _multiplied,
    "wmma": _multiplied,
    "wgmma": _multiplied,
}


def probes(site: FloatSite) -> dict[str, str]:
    """Statement by reason: it traps unless the reason holds, for which a mutant is right."""
    guard = _SIGN.match(site.statement)
    prefix = (guard[1] if guard else "") or ""
    reasons = {"it is not executed on this problem": f"{prefix}trap;"}
    opcode, target = site.opcode.split(".")[0], target_of(site.statement)
    if target is None or opcode in ("mma", "wmma", "wgmma"):
        return reasons
    bits = (
        "pred"
        if opcode == "setp"
        else "b16"
        if re.search(r"cvt\S*\.(b?f16|e[45]m[23]x2)\.f32$", site.opcode)
        else "b32"
    )
    one, other = (_with_target(text, name) for text, name in ((site.statement, "%m1"), (site.mutant, "%m2")))
    differs = "xor.pred %mq, %m1, %m2;" if bits == "pred" else f"setp.ne.{bits} %mq, %m1, %m2;"
    move = f"mov.{bits} {target}, %m1;"
    reasons["it gives the same value"] = (
        f"{{ .reg .{bits} %m1, %m2; .reg .pred %mq; {_unguarded(one)} {_unguarded(other)} {prefix}{move} {differs} "
        f"{'' if prefix else '@%mq trap;'} {_guarded_trap(prefix)} }}"
    )
    return reasons


def _guarded_trap(prefix: str) -> str:
    """A trap where both the guard and the comparison hold."""
    if not prefix:
        return ""
    negated, name = prefix.startswith("@!"), prefix.strip().lstrip("@!")
    flip = f"not.pred %mg, {name};" if negated else f"mov.pred %mg, {name};"
    return f".reg .pred %mg; {flip} and.pred %mq, %mq, %mg; @%mq trap;"


def _unguarded(statement: str) -> str:
    return _SIGN.sub("", statement, count=1)


def target_of(statement: str) -> str | None:
    """The register that a statement writes; None if there are several."""
    match = re.match(r"(?:@!?%\w+\s+)?[\w.:]+\s+(%\w+)\s*,", statement)
    return match[1] if match else None


def _with_target(statement: str, name: str) -> str:
    target = target_of(statement)
    return statement.replace(str(target), name, 1) if target else statement


def reaches_only(code: Entry, site: FloatSite) -> str:
    """Reason if a value reaches only maxima and comparisons, and so changes no output directly; otherwise empty."""
    (first,) = [each for each in code.instructions if each.line == site.line and each.text == site.opcode][:1]
    tainted, uses = set(registers_written(first)), set[str]()
    before = -1
    while len(tainted) != before:
        before = len(tainted)
        for each in code.instructions:
            if not tainted & set(registers_read(each)):
                continue
            if each.opcode == "setp":
                uses.add("a comparison")
            elif each.opcode in ("max", "min", "shfl", "mov", "mul", "sub", "add", "fma", "selp") and _stays(each):
                uses |= {"a maximum"} if each.opcode in ("max", "min") else set()
                tainted |= set() if each.opcode in ("max", "min") else set(registers_written(each))
            else:
                return ""
    return f"it reaches only {' and '.join(sorted(uses))}" if uses else "its value is not used"


def _stays(instruction: Instruction) -> bool:
    return len(instruction.operands) > 1
