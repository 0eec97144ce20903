"""Whether a kernel is slower than torch: comparisons by the eager clock, from the records of ``bench`` and ``prove``.

The op replaces a call of torch's function in a program that calls one operation after another. What such a call costs
is the eager clock's time, the larger of dispatch and computing: on a short problem the host decides, on a long one the
GPU, and the program pays whichever is larger. The GPU's own clock would call a kernel faster that the program gets
later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sdpalab.compile import build
from sdpalab.evidence.kept import AnyRecord, KeptRecord
from sdpalab.evidence.measured import BenchRecord
from sdpalab.kernels.equivalent import modules_of
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.measure.comparison import Comparison, ComparisonOutcome, compare
from sdpalab.measure.samples import ClockKind, L2State, Samples
from sdpalab.problem import Problem

__all__ = ["LEAST_ROUNDS", "SLOWER_BY", "TORCH", "Timing", "codes_of", "timings_of"]

TORCH = "torch"
"""The peer that decides: torch's function with the backend that torch itself chooses."""

SLOWER_BY = 0.02
"""A kernel is not slower if the whole 99% interval of its time over torch's lies below 1 plus this.

So an AMBIGUOUS comparison counts if its interval ends below 1.02: it then says "faster or the same, or at most 2%
slower". One whose interval reaches beyond does not, wherever its median lies.
"""

LEAST_ROUNDS = 10
"""An interval from fewer rounds is none."""


@dataclass(frozen=True)
class Timing:
    """A kernel and torch's function, timed in the same rounds.

    Attributes
    ----------
    kernel, config : str
    problem : Problem
    code : frozenset of str
        :attr:`~sdpalab.compile.Build.code_sha256` of what was timed.
    gpu, driver, torch : str
        The GPU's name, and the versions of the driver and of torch.
    lab : str or None
        The version of the lab; None for a record that is shipped with this one.
    when : datetime
    rounds : int
    comparison : Comparison
        The kernel's time over torch's; INVALID if the kernel has none, with the reason.
    record : str
        As :attr:`sdpalab.evidence.proven.Proof.record`.
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
        return f"{self.comparison.ratio:.2f}x torch's eager time ({low:.2f} to {high:.2f}, {self.rounds} rounds)"


def codes_of(
    kernels: Iterable[tuple[Kernel, Config]], problem: Problem, arch: str, sms: int
) -> dict[str, dict[str, Any]]:
    """The code behind the times, as JSON values: each kernel's configuration, and the digests of its modules'
    builds."""
    by_kernel = {}
    for kernel, config in kernels:
        builds = [build(module, arch) for module in modules_of(kernel.launch_plan(problem, config, sms=sms))]
        codes = sorted({each.code_sha256 for each in builds})
        by_kernel[kernel.name] = {"config": str(config), "code_sha256": codes}
    return by_kernel


def timings_of(record: AnyRecord, name: str, *, own: bool = False) -> Iterator[Timing]:
    """Every comparison of a kernel with torch by the eager clock, inputs in L2, that the record holds.

    Samples are compared again here: the figures that a record has beside them are not used.

    Parameters
    ----------
    record, name, own
        As :func:`sdpalab.evidence.proven.proof_of`.

    Raises
    ------
    ValueError, KeyError, TypeError
        If the record has the form of none.
    """
    stored = record if isinstance(record, KeptRecord) else None
    bench = stored.bench if stored else record
    if not isinstance(bench, BenchRecord):
        return
    driver = stored.driver if stored else bench.environment.driver
    for result in bench.results:
        measurements = {each["name"]: each for each in result["measurements"]}
        if result["clock"] != ClockKind.EAGER.value or driver is None or not _has_time(measurements.get(TORCH)):
            continue
        base = _samples(measurements[TORCH])
        if base.l2 is not L2State.WARM:
            continue
        for kernel, timed in result.get("code", {}).items():
            comparison, rounds = _compared(measurements[kernel], base)
            yield Timing(
                kernel=kernel,
                config=str(timed["config"]),
                problem=Problem(**result["problem"]),
                code=frozenset(timed["code_sha256"]),
                gpu=bench.gpu,
                driver=driver,
                torch=bench.environment.packages.get("torch", ""),
                lab=stored.lab if stored and own else None,
                when=bench.when,
                rounds=rounds,
                comparison=comparison,
                record=name,
            )


def _has_time(measurement: Mapping[str, Any] | None) -> bool:
    return measurement is not None and measurement["summary"] is not None


def _compared(measurement: Mapping[str, Any], base: Samples) -> tuple[Comparison, int]:
    """A kernel's measurement beside torch's samples, and over how many rounds."""
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
