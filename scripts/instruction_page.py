"""Write docs/instructions.md from the simulator's tables: what it executes, family by family.

    python scripts/instruction_page.py

A test compares the page with the tables.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warpsan.engine.assembler import HANDLERS
from warpsan.engine.ends import ENDS
from warpsan.numerics import rule_of
from warpsan.ptx import CLOCKS, OPCODES, TYPES

PAGE = Path(__file__).parent.parent / "packages" / "warpsan" / "docs" / "instructions.md"

_HEAD = """# Instructions that the simulator executes

Written by `scripts/instruction_page.py` from the tables in `src/sdpalab/sim/native/`; do not edit. An opcode that is
not here, and a modifier, type or operand that a handler does not take, raises `UnsupportedInstruction` with its PTX
line where a lane reaches it: a path that never runs blocks nothing.
Forms with a meaning of their own are listed by the modifiers that they begin with.
The expected bits in `tests/sim/` come from the PTX manual; which results have been compared with words that GPUs
computed, or follow a model of them, is at [the end](#exact-results).

"""

_EXACT = """## Exact results

Products of matrices in hardware numerics ([numerics](numerics.md)), by architecture. **words**: exact on all published
words of the GPUs named. **model**: by a public model of the hardware, with no words to compare. **nearest**: not
compared; the rule of the architecture named. Integer products are exact, and sums in f64 are a chain of `fma`.

| products | """


def first_sentence(text: str | None) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


_PRODUCTS = [
    ("mma", "f16", 16, "f32"),
    ("mma", "f16", 16, "f16"),
    ("mma", "bf16", 16, "f32"),
    ("mma", "tf32", 8, "f32"),
    ("mma", "e4m3", 32, "f32"),
    ("mma", "e4m3", 32, "f16"),
    ("wmma", "f16", 16, "f32"),
    ("wmma", "f16", 16, "f16"),
    ("wmma", "bf16", 16, "f32"),
    ("wgmma", "f16", 16, "f32"),
    ("wgmma", "bf16", 16, "f32"),
    ("wgmma", "tf32", 8, "f32"),
    ("wgmma", "e4m3", 32, "f32"),
    ("wgmma", "e4m3", 32, "f16"),
]
"""Unit, factors, K and result; e5m2 is as e4m3."""
_TARGETS = (70, 75, 80, 86, 89, 90, 100, 120)
_FIRST = {"bf16": 80, "tf32": 80, "e4m3": 89}
"""Architectures that have factors of a type first; wgmma is of sm_90 only."""


def _cell(unit: str, kind: str, depth: int, result: str, target: int) -> str:
    if target < _FIRST.get(kind, 70) or (unit == "wgmma") != (target == 90 and unit == "wgmma"):
        return ""
    if unit == "mma" and target < 75:
        return ""
    rule = rule_of(f"sm_{target}", unit, kind, depth, result)
    return f"{rule.evidence}: {rule.source}" if rule.evidence != "model" else "model"


def exact_results() -> str:
    """The table of what is exact on hardware words, on a model, or not compared."""
    lines = [_EXACT + " | ".join(f"sm_{target}" for target in _TARGETS) + " |", "|---" * (len(_TARGETS) + 1) + "|"]
    for unit, kind, depth, result in _PRODUCTS:
        cells = [_cell(unit, kind, depth, result, target) for target in _TARGETS]
        factors = "e4m3, e5m2" if kind == "e4m3" else kind
        lines.append(f"| `{unit}` {factors} to {result} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page's text."""
    families: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    names: dict[Callable[..., Any], list[str]] = {}
    for name, handler in sorted({**HANDLERS, **ENDS}.items()):
        names.setdefault(handler, []).append(name)
    for handler, forms in names.items():
        module = inspect.getmodule(handler)
        assert module is not None
        family = module.__name__.rsplit(".", 1)[-1]
        titles[family] = first_sentence(module.__doc__)
        note = first_sentence(inspect.getdoc(handler))
        listed = ", ".join(f"`{form}`" for form in forms)
        families.setdefault(family, []).append(f"- {listed}" + (f": {note}" if note else ""))
    parts = [_HEAD]
    parts += [
        f"## {family}\n\n{titles[family]}\n\n" + "\n".join(lines) + "\n\n" for family, lines in sorted(families.items())
    ]
    clocks = ", ".join(f"`{name}`" for name in CLOCKS)
    parts.append(
        "## Special registers\n\n"
        f"{clocks} count the steps of the blocks that run together, not time; they are read with `mov`. `%envreg1` and "
        "`%envreg2` are the address of the grid's workspace in a cooperative launch, which cooperative groups use. "
        "`%smid`, `%nsmid` and `%pm0` to `%pm7` have no value here.\n\n"
    )
    both = names[HANDLERS["add"]]
    parts.append(
        "## Types\n\n"
        f"Operand types: {', '.join(f'`.{name}`' for name in TYPES)}.\n\n"
        f"By type suffix, {', '.join(f'`{name}`' for name in both)} are integer or floating-point instructions.\n"
    )
    parts.append(f"\n{exact_results()}")
    parts += ["\n", opcodes()]
    return re.sub(r"[ \t]+\n", "\n", "".join(parts))


# ---- opcodes ---------------------------------------------------------------------------------------------------------

_LANES = {"each": "each lane", "warp": "a whole warp", "members": "the lanes of a mask"}
_PIPES = {"": "by type", "space": "by state space"}


def opcodes() -> str:
    """The section of what is true of an opcode's instructions whatever their operands are."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, record in OPCODES.items():
        ends = "always" if "" in record.ends else ", ".join(f"`.{form}`" for form in record.ends)
        unit = _PIPES.get(record.pipe, record.pipe)
        proxy = "always" if "" in record.async_proxy else ", ".join(f"`.{form}`" for form in record.async_proxy)
        facts = record.section, unit, _LANES[record.lanes], record.memory, proxy, ends
        groups.setdefault(facts, []).append(f"`{name}`")
    lines = [
        "## Opcodes\n",
        "From `src/sdpalab/sim/opcodes.py`: the section of the PTX ISA, the unit that counters attribute an "
        "instruction to, who executes it together, how each lane accesses memory, and which forms access shared memory "
        "in the async proxy or end a basic block.\n",
        "| section | opcodes | unit | executed by | memory | async proxy | ends a block |\n" + "|---" * 7 + "|",
    ]
    for (section, *facts), names in sorted(groups.items()):
        lines.append(f"| {section} | {', '.join(sorted(names))} | {' | '.join(facts)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE.name}: {len(HANDLERS | ENDS)} opcodes and forms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
