"""Cost of each source line: its PTX counts, and its share of the issued machine code.

An instruction counts for the innermost line of author-written code: a wrapper of one instruction is skipped in favour
of the line that calls it, as in reports of hazards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sdpalab.compile.sass import classify
from sdpalab.model.counted import CountedLaunch
from warpsan.profile import WARP
from warpsan.report import Sources, split_place

__all__ = ["LineFigures", "line_figures", "lines_of_file"]


@dataclass(frozen=True)
class LineFigures:
    """Figures of one source line.

    Attributes
    ----------
    place : str
        ``file:line``; line 0 for instructions without line information.
    warps, lanes : int
        Simulated: executed PTX instructions, counted once per warp and once per lane.
    by_pipe : mapping of str to int
        Simulated: ``warps`` by pipe (:func:`warpsan.profile.counters.pipe_of`).
    sectors, ideal_sectors : int
        Simulated: 32-byte sectors of global memory, and the least number for the bytes.
    wavefronts, ideal_wavefronts : int
        Simulated: passes of shared memory, and the least number.
    sass : mapping of str to int
        Compiled: machine instructions by class, each counted once.
    issued : float or None
        Modelled: share of the machine instructions that a block issues, 0 to 1; None if the path is unknown.
    """

    place: str
    warps: int = 0
    lanes: int = 0
    by_pipe: Mapping[str, int] = field(default_factory=dict)
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    sass: Mapping[str, int] = field(default_factory=dict)
    issued: float | None = None

    @property
    def file(self) -> str:
        """Name of the source file."""
        return split_place(self.place)[0]

    @property
    def number(self) -> int:
        """Number of the line."""
        return split_place(self.place)[1]

    @property
    def divergence(self) -> float:
        """Share of inactive lanes in its executed instructions."""
        return 1 - self.lanes / (WARP * self.warps) if self.warps else 0.0

    @property
    def excess_sectors(self) -> int:
        """Sectors beyond the least number."""
        return self.sectors - self.ideal_sectors

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond the least number: bank conflicts."""
        return self.wavefronts - self.ideal_wavefronts


def line_figures(launch: CountedLaunch, sources: Sources, *, paths: bool) -> tuple[LineFigures, ...]:
    """The figures of all lines, in descending order of instructions.

    Parameters
    ----------
    launch : CountedLaunch
    sources : Sources
        Selects the line of an instruction among its inlined frames.
    paths : bool
        Whether the warps' paths through the machine code are known (:attr:`CountedLaunch.roles`).
    """
    lines: dict[str, LineFigures] = {}
    pipes: dict[str, Counter[str]] = {}
    classes: dict[str, Counter[str]] = {}
    issued: Counter[str] = Counter()
    for each in launch.counters.by_instruction:
        place = _place(each.frames, sources)
        line = lines.setdefault(place, LineFigures(place))
        pipes.setdefault(place, Counter())[each.pipe] += each.warps
        lines[place] = replace(
            line,
            warps=line.warps + each.warps,
            lanes=line.lanes + each.lanes,
            sectors=line.sectors + each.sectors,
            ideal_sectors=line.ideal_sectors + each.ideal_sectors,
            wavefronts=line.wavefronts + each.wavefronts,
            ideal_wavefronts=line.ideal_wavefronts + each.ideal_wavefronts,
        )
    runs = _runs(launch) if paths else {}
    for number, instruction in enumerate(launch.code):
        place = _place(instruction.frames, sources)
        lines.setdefault(place, LineFigures(place))
        classes.setdefault(place, Counter())[classify(instruction.opcode)] += 1
        issued[place] += runs.get(number, 0)
    total = sum(issued.values())
    complete = [
        replace(
            line,
            by_pipe=_positive(pipes.get(place, Counter())),
            sass=_positive(classes.get(place, Counter())),
            issued=issued[place] / total if total else None,
        )
        for place, line in lines.items()
    ]
    return tuple(sorted(complete, key=lambda line: (-(line.issued or 0.0), -line.warps, line.file, line.number)))


def lines_of_file(lines: Sequence[LineFigures], name: str) -> Mapping[int, LineFigures]:
    """Figures of one file's lines, by line number."""
    return {line.number: line for line in lines if line.file == name}


def _place(frames: Sequence[str], sources: Sources) -> str:
    return sources.innermost(frames).rpartition(":")[0] if frames else "?:0"


def _runs(launch: CountedLaunch) -> Mapping[int, int]:
    """Number of times a block issues the instruction at each position of the code."""
    runs: Counter[int] = Counter()
    for role in launch.roles:
        for place, often in Counter(role.path).items():
            runs[place] += often * len(role.warps)
    return runs


def _positive(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in counts.most_common() if count}
