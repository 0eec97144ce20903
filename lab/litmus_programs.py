"""Litmus tests: programs of a few accesses by two to four threads, as text and as PTX that runs many instances at once.

Operations are as in PTX, one thread a line: ``st.release.gpu x 1``, ``ld.acquire.gpu y``, ``add.relaxed.gpu x 1``
(``atom``), ``red.relaxed.gpu x 1``, ``fence.sc.gpu``, ``bar``. The threads are in one block (a warp each),
in blocks of one cluster, or in blocks of several. An instance has words of its own for its places and results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpsan import launch

__all__ = ["INSTANCES", "LitmusProgram", "programs", "run_program"]

Outcome = tuple[tuple[int, ...], tuple[int, ...]]
"""Values of the reads in the order of the text, and final values of the places."""

INSTANCES = 240
"""Instances of one launch."""
_PLACES = "xyz"
_WARP = 32
_READS = ("ld", "add", "exch")

_SHAPES: dict[str, Sequence[Sequence[str]]] = {
    "message passing": (("st x 1", "F", "ST y 1"), ("LD y", "F", "ld x")),
    "store buffering": (("st x 1", "F", "ld y"), ("st y 1", "F", "ld x")),
    "load buffering": (("ld x", "F", "st y 1"), ("ld y", "F", "st x 1")),
    "R": (("st x 1", "F", "ST y 1"), ("st y 2", "F", "ld x")),
    "S": (("st x 2", "F", "ST y 1"), ("LD y", "F", "st x 1")),
    "2+2W": (("st x 1", "F", "ST y 2"), ("st y 1", "F", "ST x 2")),
    "IRIW": (("st x 1",), ("LD x", "F", "ld y"), ("st y 1",), ("LD y", "F", "ld x")),
    "WRC": (("st x 1",), ("LD x", "F", "ST y 1"), ("LD y", "F", "ld x")),
    "ISA2": (("st x 1", "F", "ST y 1"), ("LD y", "F", "ST z 1"), ("LD z", "F", "ld x")),
    "release sequence": (("st x 1", "F", "ST y 1"), ("add y 1",), ("LD y", "F", "ld x")),
    "CoRR": (("st x 1",), ("LD x", "F", "ld x")),
    "CoWR": (("st x 1", "F", "ld x"), ("ST x 2",)),
    "CoRW": (("LD x", "F", "st x 1"), ("ST x 2",)),
    "CoWW": (("st x 1", "F", "ST x 2"), ("LD x",)),
    "counter": (("add x 1", "F", "ld x"), ("add x 1", "F", "ld x")),
}
"""``F`` is the place of a fence; accesses in capitals release or acquire where there is no fence."""


@dataclass(frozen=True)
class LitmusProgram:
    """A litmus test.

    Attributes
    ----------
    name : str
    threads : tuple of tuple of str
        The operations of each thread.
    where : str
        What the threads share: ``block``, ``cluster``, ``grid``, or ``pairs`` for two blocks of two threads.
    space : str
        ``global`` or ``shared``.
    """

    name: str
    threads: tuple[tuple[str, ...], ...]
    where: str
    space: str = "global"

    @property
    def blocks(self) -> tuple[int, ...]:
        """The block of each thread, in its instance."""
        apart = {"block": 0, "cluster": 1, "grid": 1, "pairs": 0.5}[self.where]
        return tuple(int(thread * apart) for thread in range(len(self.threads)))

    @property
    def clusters(self) -> tuple[int, ...]:
        """The cluster of each thread."""
        return self.blocks if self.where in ("grid", "pairs") else tuple(0 for _ in self.threads)

    @property
    def places(self) -> str:
        """The places that it names, in order."""
        return "".join(place for place in _PLACES if any(f" {place}" in op for ops in self.threads for op in ops))

    @property
    def reads(self) -> int:
        """Number of values that are read."""
        return sum(op.startswith(_READS) for ops in self.threads for op in ops)

    def ptx(self) -> str:
        """A kernel ``litmus(memory, results)``: each instance has 4 words of memory and 8 of results."""
        warps = [self.blocks[:thread].count(block) for thread, block in enumerate(self.blocks)]
        many = self.blocks[-1] + 1
        lines = [
            *(".version 8.0", ".target sm_90", ".address_size 64"),
            *(".entry litmus(.param .u64 memory, .param .u64 results)", "{"),
            ".reg .b32 %r<10>; .reg .b32 %v<16>; .reg .b64 %rd<10>; .reg .pred %p<4>;",
            ".shared .align 16 .b8 here[16];",
            "ld.param.u64 %rd1, [memory]; ld.param.u64 %rd2, [results];",
            "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;",
            f"div.u32 %r2, %r1, {many}; rem.u32 %r3, %r1, {many}; shr.u32 %r4, %r0, 5;",
            "and.b32 %r5, %r0, 31; setp.eq.u32 %p0, %r5, 0;",
            "mul.wide.u32 %rd3, %r2, 16; add.u64 %rd4, %rd1, %rd3;",
            "mul.wide.u32 %rd5, %r2, 32; add.u64 %rd6, %rd2, %rd5;",
        ]
        if self.space == "shared":
            lines += ["mov.b32 %r6, here;", "setp.eq.u32 %p1, %r0, 0;"]
            lines += [f"@%p1 st.shared.u32 [here+{4 * k}], 0;" for k in range(len(self.places))] + ["bar.sync 0;"]
        read = 0
        for thread, (block, warp) in enumerate(zip(self.blocks, warps, strict=True)):
            lines.append(f"setp.ne.u32 %p2, %r3, {block}; @%p2 bra NEXT{thread};")
            lines.append(f"setp.ne.u32 %p2, %r4, {warp}; @%p2 bra NEXT{thread};")
            first = read
            for op in self.threads[thread]:
                lines.append(self._instruction(op, read))
                read += op.startswith(_READS)
            for k in range(first, read):
                lines.append(f"@%p0 st.global.u32 [%rd6+{4 * k}], %v{k};")
            lines += ["bra DONE;", f"NEXT{thread}:"]
        lines += ["DONE:"]
        if self.space == "shared":
            lines.append("bar.sync 0;")
            for k in range(len(self.places)):
                lines += [f"@%p1 ld.shared.u32 %r7, [here+{4 * k}];", f"@%p1 st.global.u32 [%rd4+{4 * k}], %r7;"]
        return "\n".join([*lines, "ret;", "}", ""])

    def _instruction(self, op: str, read: int) -> str:
        head, *rest = op.split()
        kind, *mods = head.split(".")
        if kind == "bar":
            return "bar.sync 0;"
        if kind == "fence":
            return f"fence.{'.'.join(mods)};"
        base = f"{'%rd4' if self.space == 'global' else '%r6'}+{4 * self.places.index(rest[0])}"
        dotted = "".join(f".{mod}" for mod in mods)
        if kind == "ld":
            return f"@%p0 ld{dotted}.{self.space}.u32 %v{read}, [{base}];"
        if kind == "st":
            return f"@%p0 st{dotted}.{self.space}.u32 [{base}], {rest[1]};"
        if kind == "red":
            return f"@%p0 red{dotted}.{self.space}.add.u32 [{base}], {rest[1]};"
        operation, type_ = ("add", "u32") if kind == "add" else ("exch", "b32")
        return f"@%p0 atom{dotted}.{self.space}.{operation}.{type_} %v{read}, [{base}], {rest[1]};"


def _filled(shape: Sequence[Sequence[str]], mode: str, scope: str) -> tuple[tuple[str, ...], ...]:
    """A shape with orders and fences: ``weak``, ``relaxed``, ``release-acquire``, ``fence.acq_rel``, ``fence.sc``."""
    return tuple(tuple(op for text in ops for op in _operations(text, mode, scope)) for ops in shape)


def _operations(text: str, mode: str, scope: str) -> list[str]:
    if text == "F":
        return [f"{mode}.{scope}"] if mode.startswith("fence") else []
    kind, *rest = text.split()
    atomic = kind.lower() in ("add", "exch", "red")
    if mode == "weak" and not atomic:
        return [" ".join((kind.lower(), *rest))]
    order = "relaxed"
    if mode == "release-acquire" and kind in ("ST", "LD"):
        order = {"ST": "release", "LD": "acquire"}[kind]
    return [" ".join((f"{kind.lower()}.{order}.{scope}", *rest))]


_MODES = ("relaxed", "release-acquire", "fence.acq_rel", "fence.sc")
_SCOPES = {"block": ("cta",), "cluster": ("cta", "cluster"), "grid": ("cta", "gpu")}

_MORE: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...] = (
    ("message passing, weak data", "grid", (("st x 1", "fence.acq_rel.gpu", "st.relaxed.gpu y 1"),
                                            ("ld.relaxed.gpu y", "fence.acq_rel.gpu", "ld x"))),
    ("message passing, only the writer fences", "grid", (("st x 1", "fence.sc.gpu", "st.relaxed.gpu y 1"),
                                                         ("ld.relaxed.gpu y", "ld x"))),
    ("message passing, only the reader fences", "grid", (("st x 1", "st.relaxed.gpu y 1"),
                                                         ("ld.relaxed.gpu y", "fence.sc.gpu", "ld x"))),
    ("message passing, the writer's fence is narrow", "grid", (("st x 1", "fence.acq_rel.cta", "st.relaxed.gpu y 1"),
                                                               ("ld.acquire.gpu y", "ld x"))),
    ("message passing, the reader's fence is narrow", "grid", (("st x 1", "st.release.gpu y 1"),
                                                               ("ld.relaxed.gpu y", "fence.acq_rel.cta", "ld x"))),
    ("message passing by atomics", "grid", (("st x 1", "fence.acq_rel.gpu", "exch.relaxed.gpu y 1"),
                                            ("exch.acquire.gpu y 2", "ld x"))),
    ("message passing by a reduction", "grid", (("st x 1", "red.release.gpu y 1"), ("ld.acquire.gpu y", "ld x"))),
    ("a reduction acquires nothing", "grid", (("st x 1", "st.release.gpu y 1"),
                                              ("red.relaxed.gpu y 1", "fence.acq_rel.gpu", "ld x", "ld y"))),
    ("release, then relaxed, to one place", "grid", (("st x 1", "st.release.gpu y 1", "st.relaxed.gpu y 2"),
                                                     ("ld.acquire.gpu y", "ld x"))),
    ("relaxed, then acquire, of one place", "grid", (("st x 1", "st.release.gpu y 1"),
                                                     ("ld.relaxed.gpu y", "ld.acquire.gpu y", "ld x"))),
    ("lost updates of narrow atomics", "grid", (("add.relaxed.cta x 1",), ("add.relaxed.cta x 1",))),
    ("store buffering, one fence is not sc", "grid", (("st.relaxed.gpu x 1", "fence.sc.gpu", "ld.relaxed.gpu y"),
                                                      ("st.relaxed.gpu y 1", "fence.acq_rel.gpu", "ld.relaxed.gpu x"))),
    ("a barrier between two warps", "block", (("st x 1", "bar"), ("bar", "ld x"))),
    ("a fence before the barrier, the count after it", "pairs", (
        ("st x 1", "fence.sc.gpu", "bar"), ("bar", "add.relaxed.gpu y 1"),
        ("add.relaxed.gpu y 0", "bar"), ("bar", "fence.sc.gpu", "ld x"))),
    ("the same with fences that are not sc", "pairs", (
        ("st x 1", "fence.acq_rel.gpu", "bar"), ("bar", "add.relaxed.gpu y 1"),
        ("add.relaxed.gpu y 0", "bar"), ("bar", "fence.acq_rel.gpu", "ld x"))),
    ("a fence behind the barrier covers the block", "pairs", (
        ("st x 1", "bar"), ("bar", "fence.acq_rel.gpu", "add.relaxed.gpu y 1"),
        ("add.relaxed.gpu y 0", "fence.acq_rel.gpu", "bar"), ("bar", "ld x"))),
)  # fmt: skip


def programs() -> Iterator[LitmusProgram]:
    """All litmus tests."""
    for name, shape in _SHAPES.items():
        for where, scopes in _SCOPES.items():
            weak = _filled(shape, "weak", scopes[-1])
            yield LitmusProgram(f"{name}, {where}, weak", weak, where)
            for scope in scopes:
                for mode in _MODES:
                    threads = _filled(shape, mode, scope)
                    yield LitmusProgram(f"{name}, {where}, {mode}, .{scope}", threads, where)
        for mode in ("relaxed", "fence.sc"):
            threads = _filled(shape, mode, "cta")
            yield LitmusProgram(f"{name}, shared memory, {mode}, .cta", threads, "block", "shared")
    for name, where, threads in _MORE:
        yield LitmusProgram(name, threads, where)


def run_program(program: LitmusProgram, instances: int, seed: int) -> dict[Outcome, int]:
    """Simulate instances of a program with stale reads, in as many launches as needed: the count of each outcome.

    Every instance makes its own random choices; launches have consecutive seeds from ``seed`` on.
    """
    counts: dict[Outcome, int] = {}
    ptx, per_instance = program.ptx(), program.blocks[-1] + 1
    warps = max(program.blocks.count(block) for block in program.blocks)
    options: dict[str, Any] = {"cluster": (per_instance, 1, 1)} if program.where == "cluster" else {}
    done = 0
    while done < instances:
        many = min(INSTANCES, instances - done)
        memory, results = np.zeros((many, 4), np.uint32), np.zeros((many, 8), np.uint32)
        launch(
            *(ptx, "litmus", many * per_instance, warps * _WARP, [memory, results]),
            **options,
            checks=(),
            schedule="random",
            reads="stale",
            seed=seed,
            cooperative=True,
        )
        rows = np.concatenate((results[:, : program.reads], memory[:, : len(program.places)]), axis=1)
        for row, count in zip(*np.unique(rows, axis=0, return_counts=True), strict=True):
            values = row.tolist()
            outcome = tuple(values[: program.reads]), tuple(values[program.reads :])
            counts[outcome] = counts.get(outcome, 0) + int(count)
        done, seed = done + many, seed + 1
    return counts
