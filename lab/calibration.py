"""Measure correct implementations of attention, and deliberately worse arithmetic, by the judge's rule.

Every implementation of ``tests/judge/implementations.py``, and every shipped kernel and the tests' Triton kernel on the
simulator, computes problems of many shapes with every kind of inputs, in both dtypes, with and without the causal mask.
The judge may reject no correct one, of at least 20 in at least 1,000 runs. The record has error / limit of each
implementation for each limit, and the ratio by which the worse arithmetic exceeds it. Kernels that write the
log-sum-exp of their rows are judged on it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import implementations
import numpy as np
import torch

from lab import ROOT, TRITON_KERNEL
from sdpalab.campaigns.campaign import CampaignResult, Say
from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, Inputs, make_inputs
from sdpalab.judge.rule.evaluate import Judged, judge_output
from sdpalab.judge.verdict import LIMITED, Status, limited
from sdpalab.kernels.kernel import Kernel, Numerics
from sdpalab.kernels.registry import GRADIENT_KERNELS, KERNELS, load_kernel, needs
from sdpalab.problem import MISSION, TWELVE_CASES, Problem
from sdpalab.run.simulated import SimulatedExecutor
from sdpalab.scoring import TASKS

__all__ = ["PACKAGES", "run"]

LEAST_IMPLEMENTATIONS, LEAST_RUNS = 20, 1000
PACKAGES = ("numpy", "torch")

SHAPES = (
    Problem(1, 2, 64, 64),
    Problem(1, 2, 99, 64, kv_heads=1),
    Problem(2, 2, 37, 32, seq_kv=101),
    Problem(1, 4, 130, 64, kv_heads=2, seq_kv=50),
    Problem(1, 1, 256, 128),
    Problem(1, 3, 192, 64),
)
EDGES = (Problem(1, 1, 1, 64), Problem(1, 2, 2, 32), Problem(1, 2, 17, 64, seq_kv=1), Problem(1, 1, 5, 64, seq_kv=640))
MOST_GRADIENT_SCORES = 1 << 17
LONG = (MISSION, MISSION.with_(heads=2, seq_q=500), Problem(1, 1, 1024, 64))
SIMULATED = (Problem(1, 1, 64, 64), Problem(1, 1, 33, 64, causal=True))
"""Problems that the simulator runs in 1 s to 2 s."""


def correct_inputs() -> Iterator[tuple[Problem, str, int]]:
    """(problem, kind, seed) for the correct implementations."""
    for n, kind in enumerate(INPUT_KINDS):
        for at, (dtype, causal) in enumerate(_variants()):
            # Each kind meets two of the shapes in each variant, and all of them over the variants.
            for shape in (SHAPES[(n + at) % len(SHAPES)], SHAPES[(n + at + 3) % len(SHAPES)]):
                yield shape.with_(dtype=dtype, causal=causal), kind, n + at
    for dtype, causal in _variants():
        for shape in (*EDGES, *LONG):
            yield shape.with_(dtype=dtype, causal=causal), "normal", 0
    yield from ((problem, "normal", seed) for problem, seed in TWELVE_CASES if problem != MISSION)


def gradient_inputs() -> Iterator[tuple[Problem, str, int]]:
    """(problem, kind, seed) of backward problems, each kind on two shapes in each variant."""
    for problem, kind, seed in correct_inputs():
        if problem.scores <= MOST_GRADIENT_SCORES:
            yield problem.with_(task="backward"), kind, seed


def worse_inputs() -> Iterator[tuple[Problem, str, int]]:
    """(problem, kind, seed) for the worse arithmetic: normal inputs on the mission shape, where rounding averages out
    best, and scores that grow."""
    for dtype, causal in _variants():
        for kind in ("normal", "ramp", "large_logits"):
            yield MISSION.with_(dtype=dtype, causal=causal, heads=4), kind, 0


def _variants() -> list[tuple[str, bool]]:
    return [(dtype, causal) for dtype in ("float16", "bfloat16") for causal in (False, True)]


@dataclass(frozen=True)
class Simulated:
    """A kernel that the lab builds, on the simulator."""

    kernel: Kernel
    overflows: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the record."""
        return f"{self.kernel.name}, simulated"

    @property
    def numerics(self) -> Numerics:
        """Numerics that the kernel declares for its default configuration, which runs."""
        return self.kernel.numerics_of()

    def outputs(self, problem: Problem, inputs: Inputs) -> tuple[Any, Any]:
        """The outputs by name, and the log-sum-exp if it writes one."""
        plan = self.kernel.launch_plan(problem, lse=self.kernel.lse and not problem.backward)
        outputs = SimulatedExecutor(self.kernel.default_arch, checks=()).run(plan, inputs.arrays).outputs
        return {name: outputs[name] for name in problem.outputs}, outputs.get("lse")


class Implementation(Protocol):
    """An implementation of attention on arrays (``tests/judge/implementations.py``)."""

    name: str
    numerics: Numerics
    overflows: tuple[str, ...]

    def compute(self, problem: Problem, inputs: Inputs) -> Any:
        """The output, [B, H, Sq, D]."""
        ...


_Judgeable = Implementation | Simulated


@dataclass
class RunCount:
    """Results of one implementation, or of one kind of inputs."""

    runs: int = 0
    passed: int = 0
    exact: int = 0
    largest: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The run with the largest error / limit, by rule."""
    least: dict[str, Any] = field(default_factory=dict)
    """The run whose largest ratio is the smallest: the case in which worse arithmetic is hardest to detect."""

    def add(self, judged: Judged, where: str) -> None:
        """Count one run."""
        self.runs += 1
        self.passed += judged.status is Status.PASSED
        self.exact += judged.errors.exact
        ratios = {name: each.share for name, each in limited(judged.errors, judged.limits).items()}
        for name, ratio in ratios.items():
            if ratio >= self.largest.get(name, {"ratio": 0.0})["ratio"]:
                self.largest[name] = {"ratio": round(ratio, 4), "where": where}
        name = max(ratios, key=ratios.__getitem__)
        if ratios[name] < self.least.get("ratio", np.inf):
            self.least = {"ratio": round(ratios[name], 4), "rule": name, "where": where}


@dataclass
class Calibration:
    """All runs, by implementation and by kind of inputs, and the false alarms."""

    correct: dict[str, RunCount] = field(default_factory=dict)
    kinds: dict[str, RunCount] = field(default_factory=dict)
    worse: dict[str, RunCount] = field(default_factory=dict)
    alarms: list[dict[str, str]] = field(default_factory=list)

    def hold(self, implementations: Sequence[_Judgeable], cases: Iterator[tuple[Problem, str, int]]) -> None:
        """Run every correct implementation on every case."""
        for problem, kind, seed in cases:
            where = f"{problem.label} {kind} seed {seed}"
            try:
                inputs = make_inputs(problem, kind, seed)
            except UserError:
                continue  # this kind cannot be made for this problem
            for implementation in implementations:
                if kind in implementation.overflows:
                    continue
                judged = _judged(implementation, problem, inputs)
                for counts, name in ((self.correct, implementation.name), (self.kinds, kind)):
                    counts.setdefault(name, RunCount()).add(judged, where)
                if judged.status is not Status.PASSED:
                    self.alarms.append({"implementation": implementation.name, "where": where, "reason": judged.reason})

    def hold_worse(self, worse: Sequence[Implementation], cases: Iterator[tuple[Problem, str, int]]) -> None:
        """Run every worse arithmetic on every case, except in dtypes where it is not worse."""
        for problem, kind, seed in cases:
            inputs = make_inputs(problem, kind, seed)
            for implementation in worse:
                if problem.dtype == "float16" or "bfloat16" not in implementation.name:
                    judged = _judged(implementation, problem, inputs, Numerics())
                    where = f"{problem.label} {kind} seed {seed}"
                    self.worse.setdefault(implementation.name, RunCount()).add(judged, where)


def _judged(implementation: _Judgeable, problem: Problem, inputs: Inputs, numerics: Numerics | None = None) -> Judged:
    if isinstance(implementation, Simulated):
        out, lse = implementation.outputs(problem, inputs)
    else:
        out, lse = implementation.compute(problem, inputs), None
    return judge_output(problem, inputs, out, numerics or implementation.numerics, lse)


def _rows(counts: dict[str, RunCount]) -> list[dict[str, Any]]:
    return [
        {"name": name, "runs": t.runs, "passed": t.passed, "exact_elements": t.exact, "largest": t.largest}
        for name, t in counts.items()
    ]


def _say_table(say: Say, title: str, counts: dict[str, RunCount]) -> None:
    rules = (*LIMITED, "lse")
    say(f"{title:38} {'runs':>5} {'passed':>6} " + " ".join(f"{name:>16}" for name in rules))
    for name, count in counts.items():
        ratios = " ".join(f"{count.largest[rule]['ratio']:16.3f}" if rule in count.largest else "" for rule in rules)
        say(f"{name:38} {count.runs:5} {count.passed:6} {ratios}")


def run(say: Say) -> CampaignResult:
    """Run everything, with tables at the end."""
    torch.set_num_threads(1)
    calibration = Calibration()
    calibration.hold((*implementations.CORRECT, *implementations.DECLARED_LESS), correct_inputs())
    calibration.hold(implementations.GRADIENTS, gradient_inputs())
    say(f"gradients: {len(calibration.alarms)} false alarms so far")
    built = [
        *(KERNELS[name] for name in KERNELS if needs(name) is None),
        *GRADIENT_KERNELS.values(),
        load_kernel(str(ROOT / TRITON_KERNEL)),
    ]
    for kernel in built:
        assert isinstance(kernel, Kernel)
        cases = (
            (p.with_(dtype=dtype, task=task), kind, 0)
            for p in SIMULATED
            for task in TASKS
            for dtype in ("float16", "bfloat16")
            if not kernel.why_not(p.with_(dtype=dtype, task=task))
            for kind in INPUT_KINDS
        )
        calibration.hold([Simulated(kernel)], cases)
        say(f"{kernel.name}: {len(calibration.alarms)} false alarms so far")
    calibration.hold_worse(implementations.WORSE, worse_inputs())
    runs = sum(count.runs for count in calibration.correct.values())
    _say_table(say, "correct: largest error / limit", calibration.correct)
    _say_table(say, "by kind of inputs", calibration.kinds)
    _say_table(say, "worse arithmetic", calibration.worse)
    for alarm in calibration.alarms:
        say(f"FALSE ALARM: {alarm['implementation']} on {alarm['where']}: {alarm['reason']}")
    content = {
        "totals": {
            "implementations": len(calibration.correct),
            "runs": runs,
            "false_alarms": len(calibration.alarms),
            "exact_elements": sum(count.exact for count in calibration.correct.values()),
        },
        "false_alarms": calibration.alarms,
        "correct": _rows(calibration.correct),
        "kinds": _rows(calibration.kinds),
        "worse": [
            {**row, "nearest_to_passing": count.least}
            for row, count in zip(_rows(calibration.worse), calibration.worse.values(), strict=True)
        ],
    }
    enough = len(calibration.correct) >= LEAST_IMPLEMENTATIONS and runs >= LEAST_RUNS
    summary = f"{len(calibration.alarms)} false alarms in {runs} runs of {len(calibration.correct)} implementations"
    return CampaignResult(content, enough and not calibration.alarms, summary)
