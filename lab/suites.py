"""The race checks on two public suites of labelled GPU races, from checkouts of their repositories.

Indigo (Liu et al., ISPASS 2022) in the form of HiRace's artifact (Jacobson et al., SC 2024, "HiRace-Artifact-SC24"):
590 kernels on graphs, each in a file whose name has its bugs; 6 graphs; 1024 blocks of 256 threads. ScoR (Kamath et
al., ISCA 2020): 32 microbenchmarks of scoped synchronisation, whose names begin with ``race`` or ``norace``.

NVRTC compiles the device part of each code from the checkout; the repository holds no code of the suites.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.errors import UserError
from warpsan import SimError, launch
from warpsan.build import compile_program
from warpsan.host import CHECKS
from warpsan.report import Hazard

__all__ = ["HIRACE_TABLE", "PACKAGES", "IndigoCode", "IndigoRow", "ScorRow", "indigo_rows", "run", "scor_rows"]

PACKAGES = ("numpy", "nvidia-cuda-nvrtc")
ARCH = "sm_80"
THREADS, BLOCKS = 256, 1024
WITH_LANES = (*CHECKS, "lanes", "values")
_MAX_STEPS = 2_000_000
_RACES = frozenset({"race", "lane-race"})
_RACE_LABEL = re.compile(r"(atomic|sync|guard|race)Bug")
_SCHEDULES = ("lockstep", "forward", "reverse", "random")

HIRACE_TABLE = {
    "DAG_100n_200e": (346, 298, 92),
    "DAG_200n_400e": (346, 298, 92),
    "DAG_5n_5e": (182, 118, 92),
    "counterDAG_200n_1000e": (346, 298, 56),
    "counterDAG_5n_5e": (295, 148, 92),
    "power_law_200n_1000e": (346, 297, 128),
}
"""Races found of 346 by HiRace, iGUARD and compute-sanitizer on a GPU: the artifact's own table (published)."""


# ---- Indigo ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """A graph in compressed rows, as its file has it (ECL graph format)."""

    name: str
    nodes: int
    edges: int
    index: np.ndarray[Any, np.dtype[np.int32]]
    neighbours: np.ndarray[Any, np.dtype[np.int32]]

    @staticmethod
    def read(path: Path) -> Graph:
        """Read a graph; raises UserError for a file that is none."""
        words = np.fromfile(path, np.int32)
        nodes, edges = (int(word) for word in words[:2]) if len(words) > 2 else (0, 0)
        if nodes < 1 or edges < 0 or len(words) < 3 + nodes + edges:
            raise UserError(f"{path} is not a graph: nodes, edges, the rows' beginnings and the neighbours as int32")
        rows, rest = words[2 : 3 + nodes].copy(), words[3 + nodes : 3 + nodes + edges].copy()
        return Graph(path.stem, nodes, edges, rows, rest if edges else np.zeros(1, np.int32))

    def data(self) -> tuple[Any, Any]:
        """The two arrays that the codes work on, with the values that their host part gives them."""
        edges = max(self.edges, 1)
        size = max(self.nodes, edges)
        draws = iter(_draws(2 * size))
        first, second = np.zeros(size, np.int32), np.zeros(size, np.int32)
        first[1:] = [value % self.nodes for value in islice(draws, size - 1)]
        second[1:] = [value % edges for value in islice(draws, size - 1)]
        return first, second


@lru_cache(maxsize=8)
def _draws(many: int) -> tuple[int, ...]:
    return tuple(islice(_c_random(), many))


def _c_random() -> Iterator[int]:
    """Values of rand() of glibc without a seed (random_r.c, additive feedback)."""
    state = [1]
    for _ in range(30):
        high, low = divmod(state[-1], 127773)
        word = 16807 * low - 2836 * high
        state.append(word if word >= 0 else word + 2147483647)
    state += state[:3]
    for count in range(34, 1 << 31):
        state.append((state[-3] + state[-31]) & 0xFFFFFFFF)
        del state[0]
        if count >= 344:
            yield state[-1] >> 1


@dataclass(frozen=True)
class IndigoCode:
    """One kernel of the suite."""

    name: str
    source: str

    @property
    def races(self) -> bool:
        """True if the name has a bug that is a race."""
        return _RACE_LABEL.search(self.name) is not None

    @property
    def leaves_bounds(self) -> bool:
        """True if the name has an access out of bounds."""
        return "boundsBug" in self.name

    @staticmethod
    def read(path: Path) -> IndigoCode:
        """The device part of a file."""
        text = re.sub(r"#include[^\n]*", "", path.read_text(errors="replace"))
        host = re.search(r"^\s*void\s+serial_code", text, re.M)
        if host is None or "__global__" not in text[: host.start()]:
            raise UserError(f"{path} is not a code of Indigo: there is no kernel before serial_code")
        return IndigoCode(path.stem, text[: host.start()])


@dataclass
class IndigoRow:
    """Counts of reports on one graph; ``strict_races`` includes lanes that run together, and equal values."""

    graph: str
    racy: int = 0
    races: int = 0
    strict_races: int = 0
    out_of_bounds: int = 0
    bounds: int = 0
    clean: int = 0
    false_alarms: int = 0
    strict_false_alarms: int = 0
    missed: list[str] = field(default_factory=list)

    def count(self, code: IndigoCode, kinds: set[str], strict: set[str]) -> None:
        """Count a code with the kinds of hazards that were reported."""
        if code.races:
            self.racy += 1
            self.races += bool(kinds & _RACES)
            self.strict_races += bool((kinds | strict) & _RACES)
            if not (kinds | strict) & _RACES:
                self.missed.append(code.name)
        if code.leaves_bounds:
            self.bounds += 1
            self.out_of_bounds += "out-of-bounds" in kinds
        if not code.races and not code.leaves_bounds:
            self.clean += 1
            self.false_alarms += bool(kinds)
            self.strict_false_alarms += bool(strict)


def indigo_rows(root: Path, every: int, say: Say) -> tuple[list[IndigoRow], int, int]:
    """Run one code in ``every`` on all graphs: the rows, the number of codes with a bound error that are reported on a
    graph, and the number of codes with a bound error.

    Raises
    ------
    UserError
        If ``root`` is no checkout of the artifact.
    """
    folder = root / "indigo" if (root / "indigo").is_dir() else root
    files, graphs = sorted(folder.glob("indigo_sources/*/*.cu")), sorted(folder.glob("input/*.egr"))
    if not files or not graphs:
        raise UserError(
            f"{root} has no indigo_sources/*/*.cu with input/*.egr: give a checkout of HiRace-Artifact-SC24"
        )
    rows = [(Graph.read(path), IndigoRow(path.stem)) for path in graphs]
    somewhere, bounds = 0, 0
    for number, path in enumerate(files[::every]):
        code = IndigoCode.read(path)
        ptx = _compiled(code.source, path.name)
        outside = False
        for graph, row in rows:
            kinds = _indigo_kinds(ptx, graph, CHECKS)
            again = not kinds & _RACES and (code.races or not code.leaves_bounds)
            strict = _indigo_kinds(ptx, graph, WITH_LANES) if again else kinds
            row.count(code, kinds, strict)
            outside |= "out-of-bounds" in kinds
        somewhere, bounds = somewhere + (outside and code.leaves_bounds), bounds + code.leaves_bounds
        if number % 50 == 49:
            say(f"{number + 1} codes of Indigo")
    return [row for _, row in rows], somewhere, bounds


def _indigo_kinds(ptx: str, graph: Graph, checks: Sequence[str]) -> set[str]:
    first, second = graph.data()
    args = [graph.index.copy(), graph.neighbours.copy(), first, second, graph.nodes]
    return {each.kind for each in _hazards(ptx, BLOCKS, THREADS, args, checks=checks)}


# ---- ScoR ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScorRow:
    """One microbenchmark: its label, and the reports in each reading of ``volatile``."""

    name: str
    race: bool
    data: tuple[str, ...]
    sync: tuple[str, ...]


def scor_rows(root: Path) -> list[ScorRow]:
    """Run all microbenchmarks in every schedule; raises UserError if ``root`` is no checkout of ScoR."""
    folder = root / "microbenchmarks" / "src"
    files = sorted((folder if folder.is_dir() else root).glob("*race_*.cu"))
    if not files:
        raise UserError(f"{root} has no microbenchmarks/src/*race_*.cu: give a checkout of ScoR")
    rows = []
    for path in files:
        text = path.read_text()
        blocks, threads = (int(_defined(text, name, path)) for name in ("NBLOCKS", "TPERBLK"))
        begin, end = text.find("__device__"), text.find("int main")
        begin = min(place for place in (begin, text.find("__global__")) if place >= 0)
        ptx = _compiled(text[begin : end if end >= 0 else len(text)], path.name)
        kinds = {
            mode: sorted(
                {
                    hazard.advice or hazard.kind
                    for schedule in _SCHEDULES
                    for hazard in _hazards(
                        *(ptx, blocks, threads, [np.zeros(1, np.uint32)]), volatile=mode, schedule=schedule
                    )
                    if hazard.kind in _RACES
                }
            )
            for mode in ("data", "sync")
        }
        rows.append(ScorRow(path.stem, path.stem.startswith("race"), tuple(kinds["data"]), tuple(kinds["sync"])))
    return rows


def _defined(text: str, name: str, path: Path) -> str:
    match = re.search(rf"#define\s+{name}\s+(\d+)", text)
    if match is None:
        raise UserError(f"{path} does not define {name}: it is not a microbenchmark of ScoR")
    return match[1]


# ---- both ------------------------------------------------------------------------------------------------------------


def _compiled(source: str, name: str) -> str:
    options = (f"--gpu-architecture=compute_{ARCH.removeprefix('sm_')}", "-lineinfo")
    return compile_program(source, name, None, (), options).ptx.decode().rstrip("\0")


def _hazards(ptx: str, blocks: int, threads: int, args: list[Any], **options: Any) -> Iterable[Hazard]:
    """The hazards of a launch, also of one that does not end."""
    entry = re.search(r"\.entry\s+([\w$]+)", ptx)
    assert entry is not None, "there is no kernel"
    try:
        return launch(ptx, entry[1], blocks, threads, args, max_steps=_MAX_STEPS, workers=1, **options).hazards
    except SimError as error:
        return error.hazards


def run(indigo: Path | None, scor: Path | None, every: int, say: Say) -> CampaignResult:
    """Run the suites whose checkouts are given.

    Raises
    ------
    UserError
        Without any checkout, or for one that is not of its suite.
    """
    if indigo is None and scor is None:
        raise UserError("give the checkout of a suite: --indigo PATH, --scor PATH, or both")
    content: dict[str, Any] = {"published": {"table": "HiRace, iGUARD, compute-sanitizer", **HIRACE_TABLE}}
    good, parts = True, []
    if scor is not None:
        scoped = scor_rows(scor)
        content["scor"] = [asdict(row) for row in scoped]
        hits = sum(bool(row.data) for row in scoped if row.race)
        reports = sum(bool(row.data) for row in scoped if not row.race)
        races = sum(row.race for row in scoped)
        good &= hits >= races - 1 and reports <= 1
        parts.append(f"ScoR: {hits} of {races} races, {reports} reports on {len(scoped) - races} clean codes")
        say(parts[-1])
    if indigo is not None:
        rows, somewhere, bounds = indigo_rows(indigo, every, say)
        content |= {"indigo": [asdict(row) for row in rows], "out_of_bounds": [somewhere, bounds], "every": every}
        for row in rows:
            least = HIRACE_TABLE.get(row.graph, (0,))[0] if every == 1 else 0
            good &= row.strict_races >= least and not row.false_alarms
            say(
                f"{row.graph}: {row.races} of {row.racy} races, {row.strict_races} with lanes and values, "
                f"{row.out_of_bounds} of {row.bounds} out of bounds, {row.false_alarms} of {row.clean} false alarms"
            )
        good &= somewhere == bounds
        most = max(row.races for row in rows)
        parts.append(f"Indigo: {most} of {rows[0].racy} races, {somewhere} of {bounds} out of bounds")
    return CampaignResult(content, good, "; ".join(parts))
