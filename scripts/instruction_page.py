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

from sdpalab.sim.decode import HANDLERS
from sdpalab.sim.flow import ENDS
from sdpalab.sim.isa.floating import FLOAT_HANDLERS
from sdpalab.sim.isa.integer import INTEGER_HANDLERS
from sdpalab.sim.isa.move import CLOCKS
from sdpalab.sim.types import TYPES

PAGE = Path(__file__).parent.parent / "docs" / "instructions.md"

_HEAD = """# Instructions that the simulator executes

Written by `scripts/instruction_page.py` from the tables in `src/sdpalab/sim/isa/`; do not edit. An opcode that is not
here, and a modifier, type or operand that a handler does not take, raises `UnsupportedInstruction` with its PTX line
where a lane reaches it: a path that never runs blocks nothing.
Forms with a meaning of their own are listed by the modifiers that they begin with.
No hardware has been compared yet: the expected bits in `tests/sim/` come from the PTX manual.

"""


def first_sentence(text: str | None) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


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
        f"{clocks} count the steps of the chunk of blocks, not time; they are read with `mov`. `%envreg1` and "
        "`%envreg2` are the address of the grid's workspace in a cooperative launch, which cooperative groups use. "
        "`%smid`, `%nsmid` and `%pm0` to `%pm7` have no value here.\n\n"
    )
    both = sorted(set(INTEGER_HANDLERS) & set(FLOAT_HANDLERS))
    parts.append(
        "## Types\n\n"
        f"Operand types: {', '.join(f'`.{name}`' for name in TYPES)}.\n\n"
        f"By type suffix, {', '.join(f'`{name}`' for name in both)} are integer or floating-point instructions.\n"
    )
    return re.sub(r"[ \t]+\n", "\n", "".join(parts))


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE.name}: {len(HANDLERS | ENDS)} opcodes and forms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
