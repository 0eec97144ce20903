"""Comparisons of kernels with torch by the eager clock, from the records of ``bench`` and ``prove``.

The op replaces a call of torch's function in a program that calls one operation after another. The cost of such a call
is the eager clock's time, the larger of dispatch and computation: host time for a short problem, GPU time for a long
one. The GPU's own clock may favour a kernel whose result arrives later.

The worst kind of inputs counts: a kernel may take longer on some scores (:data:`sdpalab.inputs.TIMED_KINDS`), and the
op does not inspect them. A comparison is therefore made on the inputs with the kernel's worst ratio to torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from sdpalab.compile import build
from sdpalab.evidence.store.measured import BenchRecord
from sdpalab.evidence.store.record import AnyRecord, StoredRecord
from sdpalab.inputs import TIMED_KINDS
from sdpalab.kernels.equivalent import modules_of
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.measure.comparison import Comparison, ComparisonOutcome, compare
from sdpalab.measure.samples import ClockKind, L2State, Samples
from sdpalab.problem import Problem

__all__ = ["LEAST_ROUNDS", "SLOWER_BY", "TORCH", "Timing", "codes_of", "timings_of"]

TORCH = "torch"
"""The deciding peer: torch's function with the backend that torch itself chooses."""

SLOWER_BY = 0.02
"""A kernel is not slower if the whole 99% interval of its time over torch's is below 1 plus this value.

An AMBIGUOUS comparison therefore counts if its interval ends below 1.02, which means at most 2% slower. If the interval
ends above, it does not count, for any median.
"""

LEAST_ROUNDS = 10
"""Fewest rounds of a valid interval."""


@dataclass(frozen=True)
class Timing:
    """A kernel and torch's function, timed in the same rounds.

    Attributes
    ----------
    kernel, config : str
    problem : Problem
    code : frozenset of str
        :attr:`~sdpalab.compile.Build.code_sha256` of the timed builds.
    gpu, driver, torch : str
        The GPU's name, and the versions of the driver and of torch.
    lab : str or None
        Version of the lab; None for a record shipped with this version.
    when : datetime
    rounds : int
    comparison : Comparison
        The kernel's time over torch's; INVALID if the kernel has none, with the reason.
    record : str
        As :attr:`sdpalab.evidence.store.certificate.Certificate.record`.
    inputs : str
        Kind of inputs of the comparison, with the kernel's worst ratio.
    """

    kernel: str
    config: str
    problem: Problem
    code: frozenset[str]
    gpu: str
    driver: str
    torch: str
    lab: str | None
    when: datetime
    rounds: int
    comparison: Comparison
    record: str
    inputs: str = TIMED_KINDS[0]

    @property
    def not_slower(self) -> bool:
        """Whether the comparison allows at most :data:`SLOWER_BY`."""
        interval = self.comparison.interval
        return interval is not None and self.rounds >= LEAST_ROUNDS and interval.high <= 1 + SLOWER_BY

    @property
    def says(self) -> str:
        """The ratio in words."""
        if self.comparison.ratio is None or self.comparison.interval is None:
            return f"no time that is known: {self.comparison.reason}"
        low, high = self.comparison.interval.low, self.comparison.interval.high
        times = f"{self.comparison.ratio:.2f}x torch's eager time ({low:.2f} to {high:.2f}, {self.rounds} rounds)"
        return f"{times} on {self.inputs} inputs, its worst,"


def codes_of(
    kernels: Iterable[tuple[Kernel, Config]], problem: Problem, arch: str, sms: int
) -> dict[str, dict[str, Any]]:
    """Timed code as JSON values: each kernel's configuration, and the digests of its modules' builds."""
    by_kernel = {}
    for kernel, config in kernels:
        builds = [build(module, arch) for module in modules_of(kernel.launch_plan(problem, config, sms=sms))]
        codes = sorted({each.code_sha256 for each in builds})
        by_kernel[kernel.name] = {"config": str(config), "code_sha256": codes}
    return by_kernel


def timings_of(record: AnyRecord, name: str, *, own: bool = False) -> Iterator[Timing]:
    """Worst comparison of each kernel and problem of the record with torch by the eager clock, with inputs in L2.

    The comparison is recomputed from the samples; the other figures of the record are not used.

    Parameters
    ----------
    record, name, own
        As :func:`sdpalab.evidence.store.certificate.certificate_of`.

    Raises
    ------
    ValueError, KeyError, TypeError
        If the record has an invalid form.
    """
    stored = record if isinstance(record, StoredRecord) else None
    bench = stored.bench if stored else record
    if not isinstance(bench, BenchRecord):
        return
    driver = stored.driver if stored else bench.environment.driver
    sessions: dict[Problem, dict[str, Mapping[str, Any]]] = {}
    for result in bench.results:
        if result["clock"] == ClockKind.EAGER.value:
            sessions.setdefault(Problem(**result["problem"]), {})[result.get("inputs", TIMED_KINDS[0])] = result
    for problem, by_kind in sessions.items():
        tables = {kind: _table(result) for kind, result in by_kind.items()}
        base = tables.get(TIMED_KINDS[0], {}).get(TORCH)
        if driver is None or not _has_time(base) or _samples(base).l2 is not L2State.WARM:
            continue
        for kernel, timed in by_kind[TIMED_KINDS[0]].get("code", {}).items():
            inputs, comparison, rounds = _worst(kernel, tables)
            yield Timing(
                kernel=kernel,
                config=str(timed["config"]),
                problem=problem,
                code=frozenset(timed["code_sha256"]),
                gpu=bench.gpu,
                driver=driver,
                torch=bench.environment.packages.get("torch", ""),
                lab=stored.lab if stored and own else None,
                when=bench.when,
                rounds=rounds,
                comparison=comparison,
                record=name,
                inputs=inputs,
            )


def _table(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The measurements of a session by their names."""
    return {each["name"]: each for each in result["measurements"]}


def _worst(kernel: str, tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[str, Comparison, int]:
    """The kind of inputs with the kernel's worst ratio to torch, that comparison, and its rounds.

    A kind without a time of both counts as the worst, because the kernel's time is unknown.
    """
    compared = {}
    for kind in TIMED_KINDS:
        table = tables.get(kind, {})
        if not _has_time(table.get(TORCH)):
            reason = f"{TORCH} and {kernel} have no times on {kind} inputs"
            compared[kind] = Comparison(kernel, TORCH, ComparisonOutcome.INVALID, reason=reason), 0
        else:
            compared[kind] = _compared(table[kernel], _samples(table[TORCH]))

    def reach(kind: str) -> float:
        interval = compared[kind][0].interval
        return math.inf if interval is None else interval.high

    worst = max(compared, key=reach)
    return worst, compared[worst][0], min(rounds for _, rounds in compared.values())


def _has_time(measurement: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    return measurement is not None and measurement["summary"] is not None


def _compared(measurement: Mapping[str, Any], base: Samples) -> tuple[Comparison, int]:
    """A kernel's measurement compared with torch's samples, and the number of rounds."""
    if not _has_time(measurement):
        reason = f"{measurement['status']}: {measurement['reason']}"
        return Comparison(measurement["name"], TORCH, ComparisonOutcome.INVALID, reason=reason), 0
    samples = _samples(measurement)
    return compare(samples, base), len(samples.times_us)


def _samples(measurement: Mapping[str, Any]) -> Samples:
    data = measurement["samples"]
    return Samples(
        name=data["name"],
        clock=ClockKind(data["clock"]),
        l2=L2State(data["l2"]),
        calls=data["calls"],
        times_us=tuple(data["times_us"]),
        warm_up_us=tuple(data["warm_up_us"]),
    )
