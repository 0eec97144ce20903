"""Hold correct implementations of attention, and deliberately worse arithmetic, against the judge's rule.

    python scripts/calibrate_judge.py [--out FILE]

Every implementation of ``tests/judge/implementations.py``, and every shipped kernel and the tests' Triton kernel on the
simulator, computes problems of many shapes with every kind of inputs, in both dtypes, with and without the causal mask.
No correct one may be rejected: exit 1 if one is, or if there are fewer than 20 of them or 1,000 runs. The record says
how near each came to each limit (error / limit, 1 is the limit), and how far beyond it the worse arithmetic is. Kernels
that write the log-sum-exp of their rows are asked for it, and held to its limits, too.

By default it goes to ``evidence/campaigns/calibration-<commit>.json``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Many small products: threads would only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "judge"))

from implementations import CORRECT, DECLARED_LESS, WORSE, Implementation

from sdpalab.errors import UserError
from sdpalab.evidence.campaign import Campaign
from sdpalab.inputs import INPUT_KINDS, Inputs, make_inputs
from sdpalab.judge.evaluate import Judged, judge_output
from sdpalab.judge.verdict import LIMITED, Status, limited
from sdpalab.kernels.kernel import Kernel, Numerics
from sdpalab.kernels.registry import KERNELS, needs, resolve
from sdpalab.problem import MISSION, TWELVE_CASES, Problem
from sdpalab.run.simulated import SimulatedExecutor

ROOT = Path(__file__).resolve().parent.parent
LEAST_IMPLEMENTATIONS, LEAST_RUNS = 20, 1000
TRITON_KERNEL = "tests/sim/triton_attention.py"
SHAPES = (
    Problem(1, 2, 64, 64),
    Problem(1, 2, 99, 64, kv_heads=1),
    Problem(2, 2, 37, 32, seq_kv=101),
    Problem(1, 4, 130, 64, kv_heads=2, seq_kv=50),
    Problem(1, 1, 256, 128),
    Problem(1, 3, 192, 64),
)
EDGES = (Problem(1, 1, 1, 64), Problem(1, 2, 2, 32), Problem(1, 2, 17, 64, seq_kv=1), Problem(1, 1, 5, 64, seq_kv=640))
LONG = (MISSION, MISSION.with_(heads=2, seq_q=500), Problem(1, 1, 1024, 64))
SIMULATED = (Problem(1, 1, 64, 64), Problem(1, 1, 33, 64, causal=True))
"""What the simulator runs in a second or two."""


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
        """What it is called in the record."""
        return f"{self.kernel.name}, simulated"

    @property
    def numerics(self) -> Numerics:
        """What the kernel declares for its default configuration, which is what is run."""
        return self.kernel.numerics_of()

    def outputs(self, problem: Problem, inputs: Inputs) -> tuple[Any, Any]:
        """The output, and the log-sum-exp if it writes one."""
        plan = self.kernel.launch_plan(problem, lse=self.kernel.lse)
        made = SimulatedExecutor(self.kernel.default_arch, checks=()).run(plan, vars(inputs)).outputs
        return made["o"], made.get("lse")


Subject = Implementation | Simulated


@dataclass
class Tally:
    """What came of the runs of one implementation, or of one kind of inputs."""

    runs: int = 0
    passed: int = 0
    exact: int = 0
    largest: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By rule, the run that came nearest to the limit or went furthest beyond it."""
    least: dict[str, Any] = field(default_factory=dict)
    """The run whose largest ratio is the smallest: how well the worst of it can hide."""

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
    """All runs: by implementation and by kind of inputs, and what was rejected."""

    correct: dict[str, Tally] = field(default_factory=dict)
    kinds: dict[str, Tally] = field(default_factory=dict)
    worse: dict[str, Tally] = field(default_factory=dict)
    alarms: list[dict[str, str]] = field(default_factory=list)

    def hold(self, subjects: Sequence[Subject], cases: Iterator[tuple[Problem, str, int]]) -> None:
        """Every correct implementation on every case."""
        for problem, kind, seed in cases:
            where = f"{problem.label} {kind} seed {seed}"
            try:
                inputs = make_inputs(problem, kind, seed)
            except UserError:
                continue  # this kind cannot be made for this problem
            for subject in subjects:
                if kind in subject.overflows:
                    continue
                judged = _judged(subject, problem, inputs)
                for tallies, name in ((self.correct, subject.name), (self.kinds, kind)):
                    tallies.setdefault(name, Tally()).add(judged, where)
                if judged.status is not Status.PASSED:
                    self.alarms.append({"implementation": subject.name, "where": where, "reason": judged.reason})

    def hold_worse(self, cases: Iterator[tuple[Problem, str, int]]) -> None:
        """Every worse arithmetic on every case; what is no worse in a dtype is left out."""
        for problem, kind, seed in cases:
            inputs = make_inputs(problem, kind, seed)
            for subject in WORSE:
                if problem.dtype == "float16" or "bfloat16" not in subject.name:
                    judged = _judged(subject, problem, inputs, Numerics())
                    where = f"{problem.label} {kind} seed {seed}"
                    self.worse.setdefault(subject.name, Tally()).add(judged, where)


def _judged(subject: Subject, problem: Problem, inputs: Inputs, numerics: Numerics | None = None) -> Judged:
    if isinstance(subject, Simulated):
        out, lse = subject.outputs(problem, inputs)
    else:
        out, lse = subject.compute(problem, inputs), None
    return judge_output(problem, inputs, out, numerics or subject.numerics, lse)


def _rows(tallies: dict[str, Tally]) -> list[dict[str, Any]]:
    return [
        {"name": name, "runs": t.runs, "passed": t.passed, "exact_elements": t.exact, "largest": t.largest}
        for name, t in tallies.items()
    ]


def _print(title: str, tallies: dict[str, Tally]) -> None:
    rules = (*LIMITED, "lse")
    print(f"{title:38} {'runs':>5} {'passed':>6} " + " ".join(f"{name:>16}" for name in rules))
    for name, tally in tallies.items():
        ratios = " ".join(f"{tally.largest[rule]['ratio']:16.3f}" if rule in tally.largest else "" for rule in rules)
        print(f"{name:38} {tally.runs:5} {tally.passed:6} {ratios}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, print tables, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ran = Campaign(
        "calibration",
        "python scripts/calibrate_judge.py",
        sources=("src", "tests/judge", str(TRITON_KERNEL)),
        packages=("numpy", "torch"),
    )
    found = Calibration()
    found.hold((*CORRECT, *DECLARED_LESS), correct_inputs())
    built = [*(KERNELS[name] for name in KERNELS if needs(name) is None), resolve(str(ROOT / TRITON_KERNEL))]
    for kernel in built:
        assert isinstance(kernel, Kernel)
        dtypes = [
            dtype for dtype in ("float16", "bfloat16") if not kernel.reject_reason(SIMULATED[0].with_(dtype=dtype))
        ]
        cases = ((p.with_(dtype=dtype), kind, 0) for p in SIMULATED for dtype in dtypes for kind in INPUT_KINDS)
        found.hold([Simulated(kernel)], cases)
    found.hold_worse(worse_inputs())
    runs = sum(tally.runs for tally in found.correct.values())
    record = ran.record(
        totals={
            "implementations": len(found.correct),
            "runs": runs,
            "false_alarms": len(found.alarms),
            "exact_elements": sum(tally.exact for tally in found.correct.values()),
        },
        false_alarms=found.alarms,
        correct=_rows(found.correct),
        kinds=_rows(found.kinds),
        worse=[
            {**row, "nearest_to_passing": tally.least}
            for row, tally in zip(_rows(found.worse), found.worse.values(), strict=True)
        ],
    )
    ran.write(record, given.out)
    _print("correct: largest error / limit", found.correct)
    _print("by kind of inputs", found.kinds)
    _print("worse arithmetic", found.worse)
    for alarm in found.alarms:
        print(f"FALSE ALARM: {alarm['implementation']} on {alarm['where']}: {alarm['reason']}")
    outcome = f"{len(found.alarms)} false alarms in {runs} runs of {len(found.correct)} implementations"
    print(f"{outcome}, in {record['seconds']} s")
    enough = len(found.correct) >= LEAST_IMPLEMENTATIONS and runs >= LEAST_RUNS
    return 0 if enough and not found.alarms else 1


if __name__ == "__main__":
    sys.exit(main())
