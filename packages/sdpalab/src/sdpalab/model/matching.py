"""Roles of warps and anchors for each role, from the PTX counts of a launch and its machine code.

A PTX instruction that becomes one SASS instruction of the same kind at the same source line is an anchor for
:mod:`sdpalab.model.flow`. The common execution count of a line's instructions is a hint for the blocks with
instructions of that line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import numpy as np
from numpy.typing import NDArray

from sdpalab.compile.sass import SassInstruction
from sdpalab.model.flow import Anchor, Blocks, edge_flows, mean_path
from sdpalab.model.tensor import is_tensor, sass_flops
from warpsan.profile import Counters, InstructionCount

__all__ = ["Role", "roles_of"]

ALIKE = 0.1
"""Largest relative difference between the counts of warps with one role."""
TURNS = 4
"""Number of iterations of a loop from which on some of them can represent all."""
TENSOR = 10.0
"""Weight of matrix instructions, which a path must match best."""
ALTERNATES = 0.1
"""Weight of anchors whose instructions the compiler may split or join."""

_PTX_KINDS = (
    (r"ex2\.approx(\.ftz)?\.f32", "ex2", 1.0),
    (r"ldmatrix", "ldsm", 1.0),
    (r"stmatrix", "stsm", 1.0),
    (r"cp\.async\.c[ag]\.", "copy", 1.0),
    (r"cp\.async\.wait", "copy wait", 1.0),
    (r"cp\.async\.bulk.*\.shared\S*\.global", "bulk copy", 1.0),
    (r"(bar|barrier)(\.cta)?\.sync", "barrier", 1.0),
    (r"(bar|barrier)(\.cta)?\.arrive", "arrive", 1.0),
    (r"mbarrier\.(try|test)_wait", "phase", 1.0),
    (r"shfl", "shuffle", 1.0),
    (r"wgmma\.wait_group", "wgmma wait", 1.0),
    (r"fma\.rn\S*\.f32", "fma", ALTERNATES),
    (r"st\.global", "stg", ALTERNATES),
    (r"ld\.global", "ldg", ALTERNATES),
    (r"st\.shared", "sts", ALTERNATES),
    (r"ld\.shared", "lds", ALTERNATES),
)
_SASS_KINDS = (
    (r"MUFU\.EX2$", "ex2"),
    (r"LDSM", "ldsm"),
    (r"STSM", "stsm"),
    (r"LDGSTS", "copy"),
    (r"DEPBAR\.LE", "copy wait"),
    (r"UTMALDG|UBLKCP", "bulk copy"),
    (r"BAR\.SYNC", "barrier"),
    (r"BAR\.ARV", "arrive"),
    (r"SYNCS\.PHASECHK", "phase"),
    (r"SHFL", "shuffle"),
    (r"WARPGROUP\.DEPBAR", "wgmma wait"),
    (r"FFMA", "fma"),
    (r"STG", "stg"),
    (r"LDG(?!STS|DEPBAR)", "ldg"),
    (r"STS(?!M)", "sts"),
    (r"LDS(?!M)", "lds"),
)


@dataclass(frozen=True)
class Role:
    """Warps of a CTA with equal work.

    Attributes
    ----------
    warps : tuple of int
        Numbers of the warps in the CTA.
    path : tuple of int
        Positions in the code, in the execution order of a mean warp.
    turns : tuple of int
        Positions in the path of the starts of the main loop's iterations; empty without a loop of many iterations.
    flops, counted_flops : float
        Matrix FLOPs of one warp, on the path and as counted.
    """

    warps: tuple[int, ...]
    path: tuple[int, ...]
    turns: tuple[int, ...]
    flops: float
    counted_flops: float

    def cut(self, share: float) -> tuple[int, ...]:
        """The path with this share of its loop's iterations, 0 to 1; the middle is omitted."""
        many = len(self.turns)
        least = max(2, round(many * share))
        if least >= many:
            return self.path
        return self.path[: self.turns[least // 2]] + self.path[self.turns[many - (least - least // 2)] :]


def roles_of(code: Sequence[SassInstruction], counters: Counters, through: Collection[int] = ()) -> tuple[Role, ...]:
    """The roles of a launch's warps, with a path through the machine code for each.

    Parameters
    ----------
    code : sequence of SassInstruction
    counters : Counters
    through : collection of int
        Positions in the code that paths pass if some warps of a role do; see :func:`sdpalab.model.flow.mean_path`.

    Raises
    ------
    UserError
        If the counts fit no path.
    """
    blocks = Blocks.of(code)
    by_warp = np.array(counters.by_warp, dtype=np.float64) / max(1, len(counters.by_cta))
    inside = blocks.block_of()
    targets = tuple(dict.fromkeys(inside[place] for place in through if place in inside))
    return tuple(_role(code, blocks, counters.by_instruction, group, by_warp, targets) for group in _groups(by_warp))


def _groups(by_warp: NDArray[np.float64]) -> list[list[int]]:
    """Numbers of the warps with equal work, by group."""
    groups: list[list[int]] = []
    for warp, counts in enumerate(by_warp):
        for group in groups:
            first = by_warp[group[0]]
            if np.abs(counts - first).sum() <= ALIKE * max(counts.sum(), first.sum()):
                group.append(warp)
                break
        else:
            groups.append([warp])
    return groups


def _role(
    code: Sequence[SassInstruction],
    blocks: Blocks,
    counted: Sequence[InstructionCount],
    group: Sequence[int],
    by_warp: NDArray[np.float64],
    through: Collection[int],
) -> Role:
    runs = by_warp[list(group)].mean(axis=0)
    inside = blocks.block_of()
    flops = sum(each.tensor_flops / each.warps * often for each, often in zip(counted, runs, strict=True) if each.warps)
    anchors = _anchors(code, inside, counted, runs)
    flows = edge_flows(blocks, anchors, _hints(code, inside, counted, runs))
    return _role_on(code, blocks, group, flows, flops, through)


def _role_on(
    code: Sequence[SassInstruction],
    blocks: Blocks,
    group: Sequence[int],
    flows: NDArray[np.float64],
    flops: float,
    through: Collection[int] = (),
) -> Role:
    """The role of a group of warps with these flows on the edges."""
    ran = mean_path(blocks, flows, through=through)
    path = tuple(place for block in ran for place in range(*blocks.spans[block]))
    flops_of_path = sum(sass_flops(code[place]) for place in path if is_tensor(code[place]))
    return Role(tuple(group), path, _turns(blocks, ran), float(flops_of_path), flops)


def _turns(blocks: Blocks, ran: Sequence[int]) -> tuple[int, ...]:
    """Starts of the main loop's iterations in a path: the outermost loop with many iterations and half of the path."""
    sizes = [end - start for start, end in blocks.spans]
    begins = [0, *accumulate(sizes[block] for block in ran)]
    for loop in reversed(blocks.loops()):
        inside = [place for place, block in enumerate(ran) if block in loop]
        if 2 * sum(sizes[ran[place]] for place in inside) >= begins[-1]:
            turns = [begins[place] for place in inside if ran[place] == ran[inside[0]]]
            if len(turns) >= TURNS:
                return tuple(turns)
    return ()


def _anchors(
    code: Sequence[SassInstruction],
    inside: Mapping[int, int],
    counted: Sequence[InstructionCount],
    runs: NDArray[np.float64],
) -> list[Anchor]:
    """One anchor for each kind of instruction and source line, and one for all lines of a kind together.

    Anchors of lines apply only if PTX and SASS have the same lines for that kind. A kind with a predicate in the
    machine code gives no anchor: it may have been a branch in the PTX.
    """
    totals: dict[tuple[str, str], float] = defaultdict(float)
    weights: dict[str, float] = {}
    for each, often in zip(counted, runs, strict=True):
        kind, amount, weight = _ptx_kind(each)
        if kind:
            weights[kind] = weight
            for source in {each.source, ""}:
                totals[kind, source] += amount * often
    amounts: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    guarded: set[tuple[str, str]] = set()
    for place in inside:
        kind, amount = _sass_kind(code[place])
        if kind:
            for source in {code[place].source, ""}:
                amounts[kind, source][place] = amount
                if code[place].guarded:
                    guarded.add((kind, source))
    moved = {kind for kind, source in amounts if (kind, source) not in totals}
    return [
        Anchor(places, totals[kind, source], weights[kind] * (1.0 if source or kind in moved else ALTERNATES))
        for (kind, source), places in amounts.items()
        if kind in weights and (kind, source) not in guarded and not (source and kind in moved)
    ]


def _ptx_kind(each: InstructionCount) -> tuple[str, float, float]:
    """Kind, amount and weight of a PTX instruction; the kind is empty if it is no anchor."""
    if each.tensor_flops:
        return "tensor", each.tensor_flops / each.warps, TENSOR
    opcode = re.sub(r"^@\S+\s+", "", each.text)
    for pattern, kind, weight in _PTX_KINDS:
        if re.match(pattern, opcode):
            return kind, 1.0, weight
    return "", 0.0, 0.0


def _sass_kind(instruction: SassInstruction) -> tuple[str, float]:
    if is_tensor(instruction):
        return "tensor", float(sass_flops(instruction))
    for pattern, kind in _SASS_KINDS:
        if re.match(pattern, instruction.opcode):
            return kind, 1.0
    return "", 0.0


def _hints(
    code: Sequence[SassInstruction],
    inside: Mapping[int, int],
    counted: Sequence[InstructionCount],
    runs: NDArray[np.float64],
) -> dict[int, float]:
    """Median over each block's instructions of the execution count of their lines."""
    of_line: dict[str, list[float]] = defaultdict(list)
    for each, often in zip(counted, runs, strict=True):
        of_line[each.source].append(float(often))
    mean = {source: sum(runs) / len(runs) for source, runs in of_line.items() if source}
    of_block: dict[int, list[float]] = defaultdict(list)
    for place, block in inside.items():
        if code[place].source in mean:
            of_block[block].append(mean[code[place].source])
    return {block: median(runs) for block, runs in of_block.items()}
