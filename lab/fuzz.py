"""Fuzz the simulator: damaged PTX must raise its typed errors and nothing else; random programs must compute the right
results.

A seed determines each round; the seed of a failed round is printed, and ``--seed`` runs it again. Random
programs are compared with the scalar evaluator of the tests, register by register and bit by bit. Exit 1 if any fails.
"""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import scalar_evaluator
from sdpalab.campaigns.campaign import CampaignResult, Say
from source_programs import PROGRAMS
from warpsan import SimError, launch
from warpsan.build import Module, build

__all__ = ["fuzz", "program_round", "run"]

THREADS = 64
_CORNERS = {
    16: (0, 1, 0x3C00, 0x7BFF, 0x7C00, 0x8000, 0xFFFF),
    32: (0, 1, 31, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x80000000, 0xFFFFFFFF, 0x00000001, 0x4B000000),
    64: (0, 1, 0x3FF0000000000000, 0x7FF0000000000000, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0x36A0000000000000),
}


def program_round(seed: int) -> str:
    """Run one random program on 64 threads: the difference, or an empty string."""
    draw = random.Random(f"inputs {seed}")
    names = [f"{kind}{k}" for kind, (_, many) in scalar_evaluator.REGISTERS.items() for k in range(many)]
    program = scalar_evaluator.random_program(seed, size=draw.choice([5, 20, 40, 60]))
    text = scalar_evaluator.render(program)
    first = [
        {name: _value(draw, name, scalar_evaluator.REGISTERS[name[0]][0]) for name in names} for _ in range(THREADS)
    ]
    given = np.array([[state[name] for name in names] for state in first], dtype=np.uint64)
    results = np.zeros_like(given)
    schedule = draw.choice(["lockstep", "forward", "reverse", "random"])
    report = launch(text, "fuzz", 1, THREADS, [given, results], schedule=schedule, max_steps=100_000)
    if report.hazards:
        return f"hazard: {report.hazards[0].message}"
    for thread, state in enumerate(first):
        last = scalar_evaluator.evaluate(program, state)
        for place, name in enumerate(names):
            bits = int(results[thread, place]) & (1 << scalar_evaluator.REGISTERS[name[0]][0]) - 1
            if not scalar_evaluator.expected_bits(last, name, bits):
                return f"%{name} of thread {thread} is {bits:#x}, and should be {last[name]:#x} ({schedule})\n{text}"
    return ""


def _value(draw: random.Random, name: str, bits: int) -> int:
    shape = draw.random()
    if shape < 0.3:
        return draw.choice(_CORNERS[bits])
    if shape < 0.6 and name[0] in "sfg":  # near one
        return {"s": 0x3800, "f": 0x3F000000, "g": 0x3FE0000000000000}[name[0]] + draw.getrandbits(bits - 6)
    return draw.getrandbits(draw.choice([5, bits, bits]))


def texts() -> list[str]:
    """Compiled PTX of the tests' small CUDA programs."""
    return [build(Module("program.cu", each.source, "entry")).ptx.decode() for each in PROGRAMS.values()]


def parser_round(seed: int, sources: Sequence[str]) -> tuple[str, str]:
    """Damage a text and launch it: (outcome, the untyped exception if one escaped)."""
    draw = random.Random(f"parser {seed}")
    which = draw.randrange(len(sources))
    program = list(PROGRAMS.values())[which]
    text = sources[which]
    for _ in range(draw.choice([1, 1, 2, 5])):
        text = _damaged(draw, text, sources)
    arguments: list[Any] = [np.ones(program.n, np.uint32), np.zeros(program.n, np.uint32), program.n]
    smem, grid = program.dynamic_smem, program.grid
    try:
        launch(text, "entry", grid, program.block, arguments, dynamic_smem=smem, max_steps=3000)
    except SimError as error:
        return type(error).__name__, ""
    except Exception as error:
        return type(error).__name__, f"{type(error).__name__}: {error}\n{text}"
    return "ran", ""


def _damaged(draw: random.Random, text: str, sources: Sequence[str]) -> str:
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    place = draw.randrange(len(text) + 1)
    kind = draw.randrange(9)
    if kind == 0:
        return text[:place] + text[place + draw.randint(1, 4) :]
    if kind == 1:
        return (
            text[:place] + "".join(draw.choices('{}[]();:,.@%|!<>-+09afx_ \n"/*', k=draw.randint(1, 3))) + text[place:]
        )
    if kind == 2:
        return text[:place]
    if kind == 3:
        return "\n".join([*lines[:at], *lines[at + 1 :]])
    if kind == 4:
        return "\n".join([*lines[:at], draw.choice(draw.choice(sources).split("\n")), *lines[at:]])
    if kind == 5:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
        return "\n".join(lines)
    words = [index for index, char in enumerate(text) if char in " \t.,"]
    begin = draw.choice(words or [0])
    end = next((index for index in words if index > begin), len(text))
    if kind == 6:
        return text[:begin] + text[end:]
    if kind == 7:
        number = draw.choice(
            ["-1", "0", "4294967296", "18446744073709551616", "0x", "1e9", "99999999999", "0f7F800000"]
        )
        return text[: begin + 1] + number + text[end:]
    start = draw.choice(words or [0])
    stop = next((index for index in words if index > start), len(text))
    return text[:begin] + text[start:stop] + text[end:]


def fuzz(seconds: float, seed: int, only: str = "", *, rounds: int | None = None) -> dict[str, Any]:
    """Rounds from ``seed`` on until the time or ``rounds`` are over: counts, and the failures with their seeds."""
    begin, done = time.monotonic(), Counter[str]()
    failures: list[dict[str, Any]] = []
    sources = texts() if only != "programs" else []
    number = 0
    while time.monotonic() - begin < seconds and (rounds is None or number < rounds):
        this = seed + number
        number += 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if only != "parser":
                try:
                    wrong = program_round(this)
                except Exception as error:
                    text = scalar_evaluator.render(scalar_evaluator.random_program(this))
                    wrong = f"{type(error).__name__}: {error}\n{text}"
                done["programs"] += 1
                if wrong:
                    failures.append({"kind": "program", "seed": this, "what": wrong})
            if only != "programs":
                outcome, escaped = parser_round(this, sources)
                done[f"damaged: {outcome}"] += 1
                if escaped:
                    failures.append({"kind": "parser", "seed": this, "what": escaped})
    return {"rounds": number, "counts": dict(sorted(done.items())), "failures": failures}


def run(seconds: float, seed: int, only: str, say: Say) -> CampaignResult:
    """Fuzz for a while; ``only`` is ``programs``, ``parser`` or empty for both."""
    content = fuzz(seconds, seed, only)
    for failure in content["failures"][:5]:
        say(f"{failure['kind']}, seed {failure['seed']}: {failure['what'][:3000]}\n")
    say(f"seeds {seed} to {seed + content['rounds'] - 1}: {content['counts']}")
    return CampaignResult(content, not content["failures"], f"{len(content['failures'])} failures")
