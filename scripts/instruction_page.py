"""Write packages/warpsan/docs/instructions.md, the page of supported instructions, from the simulator's tables.

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

from warpsan import semantics as semantics  # registers every handler
from warpsan.engine.assembler import HANDLERS
from warpsan.numerics import rule_of
from warpsan.ptx import CLOCKS, OPCODES, TYPES

PAGE = Path(__file__).parent.parent / "packages" / "warpsan" / "docs" / "instructions.md"

_HEAD = """# Instructions

This page lists the PTX instructions that the simulator executes. An opcode, modifier, type or operand that is not
supported raises `UnsupportedInstruction` with its PTX line when a lane reaches it; code that never runs has no effect.
Instructions whose modifiers select an operation are listed with these modifiers. Tests take expected bits
from the PTX manual; [Exact results](#exact-results) lists the products that were compared with GPUs.

`scripts/instruction_page.py` writes this page from the tables of `warpsan.ptx` and `warpsan.engine`. Do not edit it.
`warpsan instructions OPCODE` shows the entries of one opcode.

"""

_EXACT = """## Exact results

Matrix products in hardware [numerics](numerics.md), by architecture. **words**: exact on all published words of the
GPUs named. **model**: a public model of the hardware, without words to compare. Integer products are exact, and f64
sums are a chain of `fma`.

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
"""Unit, type of the factors, K and type of the result; e5m2 has the rule of e4m3."""
_TARGETS = (70, 75, 80, 86, 89, 90, 100, 120)
_FIRST = {"bf16": 80, "tf32": 80, "e4m3": 89}
"""First architecture with each type of factors; wgmma exists on sm_90 only."""


def _cell(unit: str, kind: str, depth: int, result: str, target: int) -> str:
    if target < _FIRST.get(kind, 70) or (unit == "wgmma") != (target == 90 and unit == "wgmma"):
        return ""
    if unit == "mma" and target < 75:
        return ""
    rule = rule_of(f"sm_{target}", unit, kind, depth, result)
    return f"{rule.evidence}: {rule.source}" if rule.evidence != "model" else "model"


def exact_results() -> str:
    """The table of products by evidence: words of GPUs, a model, or none."""
    lines = [_EXACT + " | ".join(f"sm_{target}" for target in _TARGETS) + " |", "|---" * (len(_TARGETS) + 1) + "|"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for unit, kind, depth, result in _PRODUCTS:
        cells = tuple(_cell(unit, kind, depth, result, target) for target in _TARGETS)
        factors = "e4m3, e5m2" if kind == "e4m3" else kind
        groups.setdefault(cells, []).append(f"`{unit}` {factors} to {result}")
    lines += [f"| {'; '.join(products)} | " + " | ".join(cells) + " |" for cells, products in groups.items()]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page's text."""
    families: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    names: dict[Callable[..., Any], list[str]] = {}
    for name, handler in sorted(HANDLERS.items()):
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
        f"{clocks} count the steps of the blocks that run together, not time; `mov` reads them. `%envreg1` and "
        "`%envreg2` hold the address of the grid's workspace in a cooperative launch (cooperative groups). "
        "`%smid`, `%nsmid` and `%pm0` to `%pm7` are not supported.\n\n"
    )
    both = names[HANDLERS["add"]]
    parts.append(
        "## Types\n\n"
        f"Operand types: {', '.join(f'`.{name}`' for name in TYPES)}.\n\n"
        f"The type suffix selects the integer or floating-point form of {', '.join(f'`{name}`' for name in both)}.\n"
    )
    parts.append(f"\n{exact_results()}")
    parts += ["\n", units()]
    return re.sub(r"[ \t]+\n", "\n", "".join(parts))


# ---- units -----------------------------------------------------------------------------------------------------------

_BY_OPERANDS = ("", "space")


def units() -> str:
    """The section with the opcodes of each unit of the counters."""
    groups: dict[str, list[str]] = {}
    for name, record in OPCODES.items():
        if record.pipe not in _BY_OPERANDS:
            groups.setdefault(record.pipe, []).append(f"`{name}`")
    lines = [
        "## Units\n",
        "`warpsan counters` counts these opcodes by their unit, and all others by type or state space.\n",
        "| unit | opcodes |\n|---|---|",
    ]
    lines += [f"| {unit} | {', '.join(sorted(names))} |" for unit, names in sorted(groups.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE.name}: {len(HANDLERS)} opcodes and forms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
