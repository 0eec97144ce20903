"""A toy kernel with a planted landscape: what each gate would say of each configuration, with noise, crashes and hangs.

The knobs decide what is wrong with a configuration, and every wrong one is faster than all correct ones: a search that
let one through would take it for the best. Gates are functions of this process; the executor that runs them can lose
jobs, repeat answers and change their order.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from sdpalab import Problem
from sdpalab.errors import MachineError
from sdpalab.jobs import Executor, Job, JobOutcome, JobResult
from sdpalab.kernels.kernel import Config, CudaKernel
from sdpalab.kernels.plan import Launch
from sdpalab.measure.comparison import compare
from sdpalab.measure.samples import ClockKind, L2State, Samples
from sdpalab.search.budget import Budget, BudgetClock
from sdpalab.search.context import SearchContext
from sdpalab.search.log import Head, SearchLog
from sdpalab.search.outcome import MODELLED
from sdpalab.search.space import ConfigSpace
from sdpalab.search.strategy import strategy_named
from sdpalab.search.sweep import Sweep
from sdpalab.search.tuning import TuneResult, run_search
from warpsan.gpus import GPUS, Gpu

PROBLEM = Problem(1, 2, 96, 64)
VALUES = {
    "TILE": (16, 32, 64, 128),
    "STAGES": (1, 2, 3, 4),
    "WARPS": (1, 2, 4, 8),
    "MODE": ("a", "b", "c", "d", "e"),
    "NOISE": (0, 1),
}
WRONG = ("skipped tile", "NaN", "race", "crash", "hang", "spills", "does not compile")
"""Faults of MODE=e, by the other knobs; all other modes are correct."""

Gate = Callable[[Mapping[str, Any]], dict[str, Any]]


def kernel() -> CudaKernel:
    """640 combinations of its knobs; BLOCK-like knobs beyond the limit of shared memory are invalid."""
    return CudaKernel(
        name="toy",
        source="__global__ void toy() {}",
        entry="toy",
        plan=lambda problem, config: Launch((1, 1, 1), (32 * config.int("WARPS"), 1, 1), (), 256 * config.int("TILE")),
        configs=({"TILE": 32, "STAGES": 2, "WARPS": 4, "MODE": "a", "NOISE": 0},),
        reject=lambda problem, config: "too deep" if config.int("TILE") * config.int("STAGES") > 256 else None,
        knobs=VALUES,
    )


def wrong(config: Mapping[str, Any]) -> str:
    """Fault of a configuration; empty if it has none."""
    if config["MODE"] != "e":
        return ""
    return WRONG[(int(config["TILE"]) // 16 + int(config["STAGES"]) + int(config["WARPS"])) % len(WRONG)]


def true_us(config: Mapping[str, Any]) -> float:
    """Time of a configuration: the best correct one 3.1 us, and every wrong one less."""
    bumps = abs(math.log2(int(config["TILE"]) / 64)) + 0.4 * abs(int(config["STAGES"]) - 3)
    bumps += 0.5 * abs(math.log2(int(config["WARPS"]) / 4)) + 0.3 * "cabd".index(
        config["MODE"] if config["MODE"] != "e" else "c"
    )
    return (1.0 if wrong(config) else 3.1) + bumps / (20 if wrong(config) else 1)


class Crashed(Exception):
    """The worker of this job dies."""


class Hangs(Exception):
    """The job takes longer than its limit."""


@dataclass
class Landscape:
    """The gates of the toy kernel.

    Attributes
    ----------
    seed : int
        Of noise and of the GPU's temperature.
    asked : list
        (kind, configuration) of every job that ran.
    """

    seed: int = 0
    asked: list[tuple[str, Config]] = field(default_factory=list)

    @property
    def kinds(self) -> dict[str, Gate]:
        """The gates by their names."""
        named = ("build", "count", "compare", "prove", "race", "full", "held_out")
        return {kind: getattr(self, f"_{kind}") for kind in named}

    def run(self, job: Job) -> JobResult:
        """Run a job here and now, as a worker would."""
        self.asked.append((job.kind, Config(job.inputs["config"])))
        try:
            return JobResult(job.number, JobOutcome.DONE, self.kinds[job.kind](job.inputs))
        except (Crashed, MachineError) as error:
            return JobResult(job.number, JobOutcome.LOST, None, f"the worker died {error}")
        except Hangs:
            return JobResult(job.number, JobOutcome.TIMED_OUT, None, f"it took more than {job.seconds:g} s")

    def _build(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        config = inputs["config"]
        fault = wrong(config)
        if fault == "does not compile":
            return {"standing": "BUILD_FAILED", "reason": "toy.cu, line 1: expected a ';'"}
        same = {name: value for name, value in config.items() if name != "NOISE"}  # which changes nothing
        digest = sha256(str(sorted(same.items())).encode()).hexdigest()
        names = [gpu["name"] for gpu in inputs["gpus"]]
        found = {
            "identity": dict.fromkeys(names, digest),
            "ptx_sha256": {name: [digest] for name in names},
            "resources": {
                name: {"registers": 64, "shared_bytes": 0, "spill_bytes": 0, "blocks_per_sm": 2} for name in names
            },
        }
        if fault == "spills":
            found |= {"standing": "STATIC_LIMITS", "reason": "spill_bytes is 8, and must be at most 0"}
        return found

    def _count(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        labels = [Problem(**each).label for each in inputs["problems"]]
        scale = {"L4": 1.0, "H200": 0.5}
        config = inputs["config"]
        return {
            "times_us": {
                gpu["name"]: {
                    label: true_us(config)
                    * scale[gpu["name"]]
                    * (1 + 0.2 * int(config["WARPS"]) * (gpu["name"] == "H200"))
                    for label in labels
                }
                for gpu in inputs["gpus"]
            }
        }

    def _compare(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        mine, base = (self._count({**inputs, "config": inputs[name]})["times_us"] for name in ("config", "base"))
        return {"ratios": {gpu: {k: time / base[gpu][k] for k, time in times.items()} for gpu, times in mine.items()}}

    def _prove(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        fault = wrong(inputs["config"])
        if fault == "crash":
            raise Crashed
        if fault == "hang":
            raise Hangs
        if fault == "race":
            return {"standing": "HAZARD", "reason": "sm_89: two warps write one word"}
        if fault:
            return {"standing": "INCORRECT", "reason": f"INCORRECT: {fault}"}
        return {"gates": ["sanitize", "quick judge"]}

    def _race(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """30 rounds on a GPU that heats up: clocks fall by up to a third, and every sample has noise and outliers.

        The same race has the same noise, so that a resumed search can be compared with one that was not cut.
        """
        entrants = inputs["entrants"]
        draw = random.Random(f"{self.seed} {inputs['seed']} {sorted(entrants.items())}")
        heat = draw.random()
        samples: dict[str, list[float]] = {name: [] for name in entrants}
        for _ in range(30):
            heat = min(1.0, max(0.0, heat + draw.uniform(-0.05, 0.08)))
            for name, config in entrants.items():
                noise = draw.gauss(1.0, 0.02) * (3.0 if draw.random() < 0.02 else 1.0)
                samples[name].append(true_us(config) * (1 + 0.5 * heat) * noise)
        rows = {name: _samples(name, times) for name, times in samples.items()}
        first = next(iter(rows))
        outcomes = {name: compare(row, rows[first]).outcome.value for name, row in rows.items() if name != first}
        times = {name: sorted(row.times_us)[15] for name, row in rows.items()}
        labels = [Problem(**each).label for each in inputs["problems"]]
        return {
            "times_us": dict.fromkeys(labels, times),
            "outcomes": dict.fromkeys(labels, outcomes),
            "reasons": {},
        }

    def _full(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if wrong(inputs["config"]):
            return {"standing": "INCORRECT", "reason": "INCORRECT"}
        return {"verdict": {"passed": True, "level": "full", "cases": 222, "devices": ["planted"], "judge": "planted"}}

    def _held_out(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"cases": len(inputs["problems"])}


def _samples(name: str, times: Sequence[float]) -> Samples:
    return Samples(name, ClockKind.GPU, L2State.WARM, 1, tuple(times))


@lru_cache
def _toy(gpus: tuple[str, ...]) -> tuple[CudaKernel, ConfigSpace, tuple[Gpu, ...]]:
    chosen = tuple(GPUS[name] for name in gpus)
    return kernel(), ConfigSpace.of(kernel(), [PROBLEM], chosen), chosen


def campaign(
    executor: Executor,
    log: Path | None = None,
    *,
    strategy: str = "elites",
    seed: int = 0,
    budget: str | int = 60,
    gpus: Sequence[str] = ("L4",),
    measured: bool = False,
    resume: bool = False,
    now: Callable[[], float] = time.monotonic,
    here: Executor | None = None,
) -> TuneResult:
    """A search of the toy kernel."""
    toy, space, chosen = _toy(tuple(gpus))
    head = Head(
        kernel=toy.name,
        problems=(PROBLEM,),
        gpus=tuple(gpus),
        clock="gpu" if measured else MODELLED,
        strategy=strategy,
        seed=seed,
        knobs=space.knobs,
        configurations=len(space),
        judge="planted",
        lab="planted",
    )
    records = SearchLog(log, head, resume=resume)
    try:
        made = SearchContext(
            spec="toy",
            kernel=toy,
            problems=(PROBLEM,),
            gpus=chosen,
            space=space,
            executor=executor,
            log=records,
            clock=BudgetClock(Budget.parse(budget), now),
            here=here,
        )
        return run_search(made, Sweep(made, strategy_named(strategy, space, len(chosen), seed)))
    finally:
        records.close()
