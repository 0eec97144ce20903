"""Code that the launches of a judgement executed, by build, from the replies of the plan servers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from pydantic import Field

from sdpalab.compile import Build, completed
from sdpalab.judge.sandbox.messages import Code, Message, PlanReply, Text
from sdpalab.judge.sandbox.plans import SentPlan, SentStep
from sdpalab.kernels.plan import Launch
from sdpalab.packing import Packing
from sdpalab.problem import Problem
from warpsan.profile import CodeOfEntry, Shape
from warpsan.report import Sources

__all__ = ["CodeReply", "Executed", "ExecutedBuild", "SentEntry", "SentRegion", "code_of", "launches_of", "reached"]

Array = npt.NDArray[Any]
Origin = tuple[tuple[str, ...], str]

_MOST_REGIONS, _MOST_NAMES = 200, 50


class SentRegion(Message):
    """See :class:`warpsan.profile.UnexecutedCode`; ``condition`` is the source line of the branch.

    With an ``outcome`` it is a :class:`warpsan.profile.UnseenDecision`, with one pc.
    """

    pcs: list[int]
    places: list[Text]
    branch: Text
    condition: Code
    depends: list[Text]
    constants: list[int]
    fails: bool = False
    outcome: bool | None = None


class SentEntry(Message):
    """Code of one entry of one build; ``build`` is its number in the order."""

    build: int
    entry: Text
    blocks: int
    executed: int
    identity: list[Text]
    regions: list[SentRegion] = Field(max_length=_MOST_REGIONS)


class CodeReply(PlanReply):
    """Reply to the orders ``code`` and ``reach``."""

    entries: list[SentEntry] = Field(default_factory=list)
    reached: list[list[bool | None]] = Field(default_factory=list)


SentShape = tuple[tuple[int | None, ...], tuple[int, int, int], tuple[int, int, int]]
"""See :data:`warpsan.profile.Shape`; without the parameters that Triton appends."""


@dataclass
class ExecutedBuild:
    """One entry of one build: the smallest problem that launched it, with its plan, and its unexecuted blocks."""

    problem: Problem
    plan: SentPlan
    launch: int
    ptx_sha256: str
    unexecuted: set[int]
    shapes: set[SentShape]

    @property
    def step(self) -> SentStep:
        """The launch."""
        return launches_of(self.plan)[self.launch]

    def order(self) -> dict[str, Any]:
        """Its description in an order."""
        what = {"launch": self.launch, "ptx_sha256": self.ptx_sha256, "unexecuted": sorted(self.unexecuted)}
        return {**what, "shapes": list(self.shapes)}


class Executed:
    """Code that the launches of one judgement executed; shared by its threads.

    Attributes
    ----------
    builds : dict
        By the digest of the PTX and the entry.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.builds: dict[tuple[str, str], ExecutedBuild] = {}

    def add(self, packing: Packing, plan: SentPlan, reply: Mapping[str, Any]) -> None:
        """Add a run of a problem's plan: ``ptx_sha256`` and ``unexecuted`` of each launch."""
        problem = packing.problem
        launches = zip(launches_of(plan), reply["ptx_sha256"], reply["unexecuted"], strict=True)
        with self._lock:
            for number, (step, digest, pcs) in enumerate(launches):
                known = self.builds.get((digest, step.code.entry))
                shape = _integers(step.args), step.grid, step.block
                if known is None:
                    new = ExecutedBuild(problem, plan, number, digest, set(pcs), {shape})
                    self.builds[digest, step.code.entry] = new
                    continue
                known.unexecuted.intersection_update(pcs)
                known.shapes.add(shape)
                if problem.scores < known.problem.scores:
                    known.problem, known.plan, known.launch = problem, plan, number


def launches_of(plan: SentPlan) -> list[SentStep]:
    """The launches of a plan, in order."""
    return [step for step in plan.steps if isinstance(step, SentStep)]


def code_of(
    orders: Sequence[Mapping[str, Any]], builds: Sequence[Sequence[Build]], sources: Sources
) -> list[dict[str, Any]]:
    """In the plan server: a :class:`SentEntry` for each build of an order, which names the launch of a plan."""
    entries = [(number, *_entry(order, builds[order["plan"]][order["launch"]])) for number, order in enumerate(orders)]
    executed: dict[str, set[Origin]] = {}
    seen: dict[str, dict[Origin, set[bool]]] = {}
    for number, build, code in entries:
        executed.setdefault(build.module, set()).update(code.executed_origins)
        known = seen.setdefault(build.module, {})
        for origin, outcomes in code.outcomes(_shapes(orders[number], build)).items():
            known.setdefault(origin, set()).update(outcomes)
    return [
        {
            "build": number,
            "entry": code.name,
            "blocks": code.blocks,
            "executed": code.executed,
            "identity": list(code.identity)[:_MOST_NAMES],
            "regions": [
                {
                    "pcs": list(region.pcs),
                    "places": list(region.places)[:_MOST_NAMES],
                    "branch": region.branch,
                    "condition": sources.line(region.branch.rpartition(":")[0]).strip(),
                    "depends": list(region.depends)[:_MOST_NAMES],
                    "constants": list(region.constants)[:_MOST_NAMES],
                    "fails": region.fails,
                }
                for region in list(code.regions(executed[build.module], sources.innermost))[: _MOST_REGIONS // 2]
            ]
            + [
                {
                    "pcs": [decision.pc],
                    "places": [decision.place.rpartition(":")[0]],
                    "branch": decision.place,
                    "condition": sources.line(decision.place.rpartition(":")[0]).strip(),
                    "depends": list(decision.depends)[:_MOST_NAMES],
                    "constants": list(decision.constants)[:_MOST_NAMES],
                    "outcome": decision.outcome,
                }
                for decision in list(code.unseen(seen[build.module], sources.innermost))[: _MOST_REGIONS // 2]
            ],
        }
        for number, build, code in entries
    ]


def reached(order: Mapping[str, Any], plan: SentPlan, builds: Sequence[Build]) -> list[bool | None]:
    """In the plan server: for each region of an order whether the launch of its build in this plan reaches it."""
    build = builds[order["launch"]]
    _, code = _entry(order, build)
    launch: Launch = completed(launches_of(plan)[order["launch"]].launch(), build)
    shape = _integers(launch.args), launch.grid, launch.block
    return [
        code.reaches(pcs, shape) if outcome is None else code.decides(pcs[0], outcome, shape)
        for pcs, outcome in order["regions"]
    ]


def _shapes(order: Mapping[str, Any], build: Build) -> list[Shape]:
    """The launches of a build, with the compiler's values."""
    appended = [0] * build.triton.get("scratch_params", 0)
    threads = build.triton.get("threads")
    return [
        ([*arguments, *appended], grid, (threads, 1, 1) if threads else block)
        for arguments, grid, block in order["shapes"]
    ]


def _integers(arguments: Sequence[object]) -> tuple[int | None, ...]:
    return tuple(each if isinstance(each, int) else None for each in arguments)


def _entry(order: Mapping[str, Any], build: Build) -> tuple[Build, CodeOfEntry]:
    if build.ptx_sha256 != order["ptx_sha256"]:
        raise RuntimeError(f"the plan of {build.name} has other code than before")
    return build, CodeOfEntry(build.ptx.decode(), build.entry, order["unexecuted"])
