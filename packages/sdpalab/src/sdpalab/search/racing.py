"""Measured costs: configurations of one kernel timed on the present GPU, interleaved in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdpalab.judge.sandbox.candidate import Candidate
from sdpalab.judge.sandbox.sandboxed import compile_for
from sdpalab.judge.verdict import Verdict
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.problem import Problem

__all__ = ["race"]


def race(
    kernel: Kernel,
    entrants: Mapping[str, Config],
    problems: Sequence[Problem],
    *,
    seconds: float,
    seed: int,
    candidate: Candidate | None = None,
    verdicts: Mapping[str, Verdict] | None = None,
    include_dirs: Sequence[Path] = (),
) -> dict[str, Any]:
    """Time the entrants on each problem by graph replay, with checked outputs.

    Parameters
    ----------
    kernel : Kernel
    entrants : mapping of str to Config
        Configurations by entrant name; all others are compared with the first. An entrant without a verdict on its code
        for a problem is judged on the GPU first.
    problems : sequence of Problem
    seconds : float
        Largest wall clock for one problem.
    seed : int
        Seed of the inputs and of the checked rounds.
    candidate, include_dirs
        As for :func:`sdpalab.measure.timing_gate.judge_for_timing`.
    verdicts : mapping of str to Verdict, optional
        Available verdicts, by any names.

    Returns
    -------
    dict
        ``times_us`` by problem label and entrant: the median; ``outcomes`` likewise: the
        :class:`~sdpalab.measure.comparison.ComparisonOutcome` against the first entrant. An entrant without a time is
        in ``reasons`` instead.

    Raises
    ------
    UserError
        Without a GPU.
    """
    from sdpalab.measure.benchmark import benchmark, cuda_device
    from sdpalab.measure.stopping import StoppingRule
    from sdpalab.measure.timing_gate import judge_for_timing
    from sdpalab.run import GpuExecutor

    device = cuda_device()
    executor = GpuExecutor(device.ordinal)
    compile_for(kernel, executor.arch)
    results: dict[str, Any] = {"times_us": {}, "outcomes": {}, "reasons": {}}
    gates = {
        name: judge_for_timing(
            kernel,
            config,
            problems,
            arch=executor.arch,
            sms=executor.sms,
            candidate=candidate,
            recorded=verdicts,
            device="gpu",
            include_dirs=include_dirs,
        )
        for name, config in entrants.items()
    }
    first, *others = entrants
    for problem in problems:
        permits = {name: permit for name, gate in gates.items() if (permit := gate.permit_for(problem))}
        named = [permit.named(name) for name, permit in permits.items()]
        rule = StoppingRule(seconds=seconds)
        session = benchmark(problem, [], named, device, rule=rule, executor=executor, seed=seed)
        times = {each.name: each.summary.median_us for each in session.measurements if each.summary}
        results["times_us"][problem.label] = {name: times[name] for name in entrants if name in times}
        results["outcomes"][problem.label] = {
            name: session.compare(name, first).outcome.value for name in others if name in times and first in times
        }
        results["reasons"] |= {
            each.name: each.reason for each in session.measurements if each.name in entrants and each.reason
        }
        results["reasons"] |= {
            name: gate.reason or gate.left_out.get(problem.label, "it has no verdict")
            for name, gate in gates.items()
            if name not in permits
        }
    return results
