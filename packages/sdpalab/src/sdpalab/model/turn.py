"""Clocks of an SM's units for one iteration of a main loop, per 128 rows by 128 keys of scores: the limits of the loop.

All figures are static, from the machine code of the main loop. The counted iteration takes no avoidable branch: a mask,
a rescaling or a wait that succeeds at once counts as the few instructions that skip it. Matrix products and copies are
unavoidable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sdpalab.compile.loops import natural_loops
from sdpalab.compile.sass import SassInstruction, successors
from sdpalab.errors import UserError
from sdpalab.model.operations import Memory, operations
from sdpalab.model.pipes import SUB_CORES, Pipes, pipes_of
from sdpalab.model.tensor import is_tensor, sass_flops, sass_precision
from warpsan.gpus import Gpu

__all__ = ["TILE", "TurnClocks", "short_turn", "turn_clocks"]

TILE = 128
"""Rows and keys of the scores per figure."""
_COPIES = frozenset({"LDGSTS", "UTMALDG", "UBLKCP", "LDG"})
_UNITS = ("special", "float", "alu", "integer", "convert")


@dataclass(frozen=True)
class TurnClocks:
    """Clocks of one SM for the two products and the softmax of :data:`TILE` rows by :data:`TILE` keys.

    Attributes
    ----------
    instructions : int
        Instructions of one warp in an iteration.
    tensor : float
        Clocks of the matrix products at the peak of the GPU.
    issue : float
        Clocks of the schedulers: four warp instructions per clock.
    units : mapping of str to float
        Clocks of the units of a sub-core: ``special``, ``float``, ``alu``, ``integer`` and ``convert``.
    """

    instructions: int
    tensor: float
    issue: float
    units: Mapping[str, float] = field(default_factory=dict)

    def share(self, name: str) -> float:
        """Clocks of ``issue`` or of a unit over those of the products."""
        return (self.issue if name == "issue" else self.units[name]) / self.tensor

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "instructions": self.instructions,
            "tensor": self.tensor,
            "issue": self.issue,
            "units": dict(self.units),
        }


def turn_clocks(code: Sequence[SassInstruction], head_dim: int, gpu: Gpu) -> TurnClocks | None:
    """The clocks of the main loop of ``code`` on ``gpu``, which must have the architecture of the build.

    Parameters
    ----------
    code : sequence of SassInstruction
        Machine code of the whole function.
    head_dim : int
        Columns of Q, K and V, which determine the number of scores per iteration.

    Returns
    -------
    TurnClocks or None
        None if the main loop has no matrix product, or no iteration with all of them, i.e. an inner loop does the work.

    Raises
    ------
    UserError
        If ``model/pipes.json`` has no figures for the GPU, or it has no tensor unit for the operands.
    """
    turn = short_turn(code)
    flops = sum(sass_flops(one) for one in turn if is_tensor(one))
    if not flops:
        return None
    pipes = pipes_of(gpu)
    warps = 4 * TILE * TILE * head_dim / flops / SUB_CORES  # of a sub-core, one iteration each
    units = dict.fromkeys(_UNITS, 0.0)
    for operation in operations(turn, pipes, Memory()):
        if operation.unit in units:
            units[operation.unit] += operation.interval * warps
    tensor = warps * sum(sass_flops(one) / _rate(one, pipes, gpu) for one in turn if is_tensor(one))
    return TurnClocks(len(turn), tensor, warps * len(turn), units)


def _rate(one: SassInstruction, pipes: Pipes, gpu: Gpu) -> float:
    precision = sass_precision(one)
    if precision not in pipes.flops_per_clk:
        raise UserError(f"{gpu.name} has no {precision} tensor unit")
    return pipes.flops_per_clk[precision]


def short_turn(code: Sequence[SassInstruction]) -> tuple[SassInstruction, ...]:
    """The instructions of the shortest iteration of the main loop with all its products and copies, in order.

    The main loop is the innermost one with matrix products: the loop over tiles of keys, also in a persistent kernel.
    The result is empty if there is no such loop or several, or if no iteration has all products.
    """
    follow = successors(code)
    loops: dict[int, set[int]] = {}  # by header
    for header, *body in natural_loops(follow):
        loops.setdefault(header, {header}).update(body)
    working = [header for header, loop in loops.items() if any(is_tensor(code[place]) for place in loop)]
    inner = [header for header in working if not any(loops[other] < loops[header] for other in working)]
    if len(inner) != 1:
        return ()
    (header,), inside = inner, loops[inner[0]]
    once = inside - {header}
    stops = [place for place in sorted(once) if is_tensor(code[place]) or code[place].base in _COPIES]
    turn = [header]
    for stop in [*stops, header]:
        way = _shortest(follow, turn[-1], stop, inside if stop == header else once)
        if way is None:
            return ()
        turn += way
    return tuple(code[place] for place in turn[:-1])


def _shortest(follow: Sequence[Sequence[int]], start: int, end: int, inside: set[int]) -> list[int] | None:
    """Positions after ``start`` up to ``end`` on the shortest path; None without a path."""
    before: dict[int, int] = {}
    reached = [start]
    for place in reached:  # grows during the loop: breadth first
        for following in follow[place]:
            if following in inside and following not in before:
                before[following] = place
                reached.append(following)
    if end not in before:
        return None
    way = [end]
    while before[way[-1]] != start:
        way.append(before[way[-1]])
    return way[::-1]
