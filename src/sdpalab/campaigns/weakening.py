"""Memory orders, scopes and fences that are weaker by one step, for mutants of :mod:`~sdpalab.campaigns.deletion`.

A step is the next narrower scope, or the next weaker order; ``.acq_rel`` has two, without the release or the acquire.
"""

from __future__ import annotations

import re

from sdpalab.sim.ir import Instruction

__all__ = ["weaker", "with_text"]

_SCOPES = {"sys": "gpu", "gpu": "cluster", "cluster": "cta", "gl": "cta"}
"""The next narrower scope; ``gl`` is that of ``membar``."""
_ORDERS = {"acq_rel": ("acquire", "release"), "acquire": ("relaxed",), "release": ("relaxed",)}
_WITH_ORDER = ("ld", "st", "atom", "red")


def weaker(instruction: Instruction) -> list[str]:
    """The texts of an instruction that are one step weaker; none if it has no order and no scope."""
    opcode, mods = instruction.opcode, list(instruction.mods)
    texts: list[list[str]] = []
    fence = opcode in ("fence", "membar") and "proxy" not in mods and "mbarrier_init" not in mods
    if not fence and opcode not in _WITH_ORDER and not (opcode == "barrier" and mods[:2] == ["cluster", "arrive"]):
        return []
    for place, mod in enumerate(mods):
        if fence and mod == "sc":
            texts.append([*mods[:place], "acq_rel", *mods[place + 1 :]])
        if mod in _SCOPES and opcode != "barrier":
            texts.append([*mods[:place], _SCOPES[mod], *mods[place + 1 :]])
        if mod in _ORDERS and opcode in _WITH_ORDER:
            texts += [[*mods[:place], order, *mods[place + 1 :]] for order in _ORDERS[mod]]
    if opcode == "barrier" and "relaxed" not in mods:  # its order is .release by default
        texts.append(["cluster", "arrive", "relaxed", *(mod for mod in mods[2:] if mod != "release")])
    if opcode in ("atom", "red") and mods and not set(mods) & {*_SCOPES, "cta"}:
        texts.append(["relaxed", "cta", *mods] if not set(mods) & set(_ORDERS) else [mods[0], "cta", *mods[1:]])
    return [".".join((opcode, *each)) for each in texts]


def with_text(ptx: str, instruction: Instruction, text: str) -> str:
    """The PTX with other text for an instruction's opcode and modifiers; all lines keep their numbers."""
    lines = ptx.split("\n")
    before = lines[instruction.line - 1]
    after = re.sub(rf"(?<![\w.]){re.escape(instruction.text)}(?![\w.])", text, before, count=1)
    assert after != before, f"{instruction.text} is not on line {instruction.line}"
    lines[instruction.line - 1] = after
    return "\n".join(lines)
