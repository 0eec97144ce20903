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
from sdpalab.sim.forms import CLOCKS
from sdpalab.sim.isa.floating import FLOAT_HANDLERS
from sdpalab.sim.isa.integer import INTEGER_HANDLERS
from sdpalab.sim.linking import link
from sdpalab.sim.native import layout
from sdpalab.sim.native.decoded import decode
from sdpalab.sim.native.reporting import REPORTED
from sdpalab.sim.opcodes import OPCODES
from sdpalab.sim.parser import parse
from sdpalab.sim.program import build_program
from sdpalab.sim.tensor_cores import rule_of
from sdpalab.sim.types import TYPES

PAGE = Path(__file__).parent.parent / "docs" / "instructions.md"

_HEAD = """# Instructions that the simulator executes

Written by `scripts/instruction_page.py` from the tables in `src/sdpalab/sim/isa/`; do not edit. An opcode that is not
here, and a modifier, type or operand that a handler does not take, raises `UnsupportedInstruction` with its PTX line
where a lane reaches it: a path that never runs blocks nothing.
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
    both = sorted(set(INTEGER_HANDLERS) & set(FLOAT_HANDLERS))
    parts.append(
        "## Types\n\n"
        f"Operand types: {', '.join(f'`.{name}`' for name in TYPES)}.\n\n"
        f"By type suffix, {', '.join(f'`{name}`' for name in both)} are integer or floating-point instructions.\n"
    )
    parts.append(f"\n{exact_results()}")
    parts += ["\n", opcodes(), "\n", engines()]
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


# ---- the native engine -----------------------------------------------------------------------------------------------

_KERNEL = """.version 8.6
.target sm_90a
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.func twice (.param .b32 x) {{ .reg .b32 %q; ld.param.u32 %q, [x]; ret; }}
.func around (.param .b32 x) {{ {{ .param .b32 y; call around, (y); }} ret; }}
.entry k(.param .u64 a, .param .u64 b) {{
.reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .f64 %fd<9>; .reg .pred %p<9>;
.shared .align 16 .b8 s[256]; .shared .align 8 .b64 m;
{body}
ret;
L0: ret;
L1: ret;
}}
"""
_FOUR, _TWO = "{%r4, %r5, %r6, %r7}", "{%r8, %r9}"
_WGMMA = "{%r10, %r11, %r12, %r13}, %rd1, %rd2, %p1"
_SAMPLES: dict[str, tuple[str, ...]] = {
    "Memory": (
        "ld.global.u32 %r1, [%rd1];",
        "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
        "ld.global.nc.L2::cache_hint.u32 %r1, [%rd1], %rd2;",
        "ld.shared::cluster.u32 %r1, [%r2];",
        "st.shared::cluster.u32 [%r2], %r1;",
        "ld.acquire.gpu.global.u32 %r1, [%rd1];",
        "st.volatile.global.u32 [%rd1], %r1;",
        "prefetch.global.L2 [%rd1];",
        "discard.global.L2 [%rd1], 128;",
        "createpolicy.fractional.L2::evict_last.b64 %rd1;",
    ),
    "Atomic operations": (
        "atom.global.add.u32 %r1, [%rd1], %r2;",
        "atom.shared.add.u32 %r1, [%r3], %r2;",
        "red.add.u32 [%rd1], %r2;",
        "atom.global.cas.b32 %r1, [%rd1], %r2, %r3;",
        "atom.global.exch.b32 %r1, [%rd1], %r2;",
        "atom.global.add.f32 %f1, [%rd1], %f2;",
        "red.shared::cluster.add.u32 [%r3], %r2;",
    ),
    "Matrix products": (
        f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};",
        f"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {_TWO}, {_FOUR}, {_TWO}, {_TWO};",
        f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};",
        f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};",
        f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};",
        f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {_FOUR}, {_FOUR}, {_TWO}, {_FOUR};",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1, %fd2}, {%fd3}, {%fd4}, {%fd1, %fd2};",
        f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {_WGMMA}, 1, 1, 0, 0;",
        f"wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {_WGMMA}, 1, 1;",
        f"wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {_TWO}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        f"wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {_WGMMA}, 1, 1;",
        f"wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {_WGMMA};",
    ),
    "Asynchronous operations": (
        "cp.async.cg.shared.global [%r2], [%rd1], 16;",
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], %r1, [%r3];",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r2], [%r4], %r1, [%r3];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1, {%r1}], [%r3];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], "
        "[%rd1, {%r1}], [%r3], %h1;",
        "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r1}], [%r2];",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%rd1, {%r1}], [%r2];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r2], %r1;",
        "tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 2;",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r2], %r1, [%r3];",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r2], %r1, [%r3];",
    ),
    "mbarriers, barriers, fences": (
        "mbarrier.init.shared.b64 [m], 1;",
        "mbarrier.inval.shared.b64 [m];",
        "mbarrier.arrive.shared.b64 %rd1, [m];",
        "mbarrier.arrive_drop.shared.b64 %rd1, [m];",
        "mbarrier.arrive.noComplete.shared.b64 %rd1, [m], 1;",
        "mbarrier.expect_tx.relaxed.cta.shared.b64 [m], 16;",
        "mbarrier.try_wait.shared.b64 %p1, [m], %rd1;",
        "mbarrier.try_wait.parity.shared.b64 %p1, [m], 0;",
        "mbarrier.test_wait.parity.shared.b64 %p1, [m], 0;",
        "bar.sync 1, 64;",
        "bar.red.popc.u32 %r1, 0, %p1;",
        "barrier.cluster.arrive.aligned;",
        "fence.proxy.async;",
        "setmaxnreg.inc.sync.aligned.u32 64;",
    ),
    "Control": (
        "{ .param .b32 y; st.param.b32 [y], %r1; call twice, (y); }",
        "{ .param .b32 y; call around, (y); }",
        "{ .param .b32 y; call %rd1, (y), prototype; }",
        "call (%r1), vprintf, (%rd1, %rd2);",
        "trap;",
        "ts: .branchtargets L0, L1; brx.idx %r1, ts;",
    ),
    "Others": (
        "shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;",
        "match.any.sync.b32 %r1, %r2, -1;",
        "redux.sync.add.u32 %r1, %r2, -1;",
        "dp4a.u32.u32 %r1, %r2, %r3, %r4;",
        "vadd4.u32.u32.u32 %r1, %r2, %r3, %r4;",
        "getctarank.shared::cluster.u32 %r1, %r2;",
        "mov.u32 %r1, %clock;",
        "mov.u64 %rd1, %globaltimer;",
    ),
}
"""Instructions by which families may differ, to show which engine executes them."""


def engine_of(sample: str) -> str:
    """Which engine executes an instruction."""
    entry = link(parse(_KERNEL.format(body=sample)), "k")
    program = build_program(entry)

    def refused(*, counted: bool) -> bool:
        facts = {"checked": True, "counted": counted, "target": "sm_90a", "numerics": "hardware"}
        return bool(decode(entry, program, variables=entry.variables, **facts).refused)

    if not refused(counted=True):
        return "native"
    return "reference" if refused(counted=False) else "native; with counters reference"


def engines() -> str:
    """The section on the engines."""
    lines = [
        "## Engines\n",
        "Which engine executes an instruction, for examples of the families that differ; other arithmetic, logic, "
        "comparisons, conversions and moves are native. A launch in which a lane reaches an instruction of the "
        "reference engine is run there from its beginning.\n",
        "| | instruction | engine |\n|---|---|---|",
    ]
    for family, samples in _SAMPLES.items():
        for number, sample in enumerate(samples):
            text = sample if sample.startswith(("{", "ts", "call", "mov")) else sample.split()[0].rstrip(";")
            lines.append(f"| {'' if number else family} | `{text}` | {engine_of(sample)} |")
    lines.append(f"\nWhat makes native code give a launch up while it runs: {', '.join(layout.WHY)}.\n")
    again = ", ".join(why for why in layout.WHY if why in REPORTED)
    lines.append(
        f"Of these, native code may report itself, in further runs ([the simulator](simulator.md)): {again}.\n"
    )
    return "\n".join(lines)


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE.name}: {len(HANDLERS | ENDS)} opcodes and forms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
