"""One measurement of several subjects: interleaved, checked, stopped by a rule, with every sample recorded.

A round takes one sample of each subject, in forward order in even rounds and in backward order in odd ones: drift and
neighbours then favour no subject. A subject with a wrong output is not timed. Each subject is called and checked first,
and again after randomly drawn rounds, with its output overwritten before. Calls that only appear to compute are
detected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from sdpalab.errors import UserError
from sdpalab.measure.clocks import Clock, Stopwatch
from sdpalab.measure.comparison import LEAST_ROUNDS, MARGIN, Comparison, ComparisonOutcome, compare
from sdpalab.measure.floor import FloorCheck
from sdpalab.measure.samples import Samples
from sdpalab.measure.statistics import Summary, summarise
from sdpalab.measure.stopping import StoppingRule, StopReason
from sdpalab.measure.throttle import ClockState, NoWatch, Watch, slowed_share

__all__ = ["MeasureStatus", "MeasuredSession", "Measurement", "Subject", "measure"]

WARM_UP_ROUNDS = 5
CHECKED_SHARE = 0.05
"""Share of rounds, drawn at random, after which all outputs are checked."""


class MeasureStatus(str, Enum):
    """The outcome of one subject."""

    MEASURED = "MEASURED"
    INVALID = "INVALID"
    """No valid time: the output is wrong, or the time is below what is possible."""
    FAILED = "FAILED"
    """The subject could not be called or timed."""
    LEFT_OUT = "LEFT OUT"
    """The subject is so slow that the others would get too few rounds."""


@dataclass(frozen=True)
class Subject:
    """A timed computation.

    Attributes
    ----------
    name : str
    call : callable
        Launches one computation without waiting for it.
    check : callable
        Waits, and returns the error of the last call's output; empty if right.
    overwrite_output : callable
        Overwrites that output.
    floor : callable, optional
        Checks whether a time in microseconds is possible; None if the subject computes nothing.
    scope : callable
        Context for ``call``, entered outside the times.
    """

    name: str
    call: Callable[[], Any]
    check: Callable[[], str]
    overwrite_output: Callable[[], None]
    floor: Callable[[float], FloorCheck] | None = None
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Measurement:
    """The result of one subject: a summary if it was MEASURED, otherwise a reason.

    ``samples`` are recorded even if their median is impossible, for diagnosis. ``checks`` is the number of successful
    output checks.
    """

    name: str
    status: MeasureStatus
    reason: str = ""
    samples: Samples | None = None
    summary: Summary | None = None
    floor: FloorCheck | None = None
    checks: int = 0

    def __post_init__(self) -> None:
        measured = self.status is MeasureStatus.MEASURED
        if measured != (self.summary is not None) or measured == bool(self.reason):
            raise ValueError(f"{self.name}: a summary if MEASURED, otherwise a reason")
        if measured and (self.samples is None or not self.checks):
            raise ValueError(f"{self.name}: MEASURED without samples, or without a checked output")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, including all samples."""
        return {
            "name": self.name,
            "status": self.status.value,
            "reason": self.reason,
            "checks": self.checks,
            "summary": self.summary.to_dict() if self.summary else None,
            "floor": vars(self.floor) if self.floor else None,
            "samples": self.samples.to_dict() if self.samples else None,
        }


@dataclass(frozen=True)
class MeasuredSession:
    """All subjects of one measurement.

    Attributes
    ----------
    measurements : tuple of Measurement
        Results in the order of the subjects.
    stopped : StopReason or None
        None if no subject could be measured.
    seconds : float
        Wall clock of the rounds.
    watch : str
        Source of the clock states, or the reason why they are missing.
    states : tuple of (ClockState or None)
        State after each counted round.
    """

    measurements: tuple[Measurement, ...]
    stopped: StopReason | None
    seconds: float
    watch: str
    states: tuple[ClockState | None, ...]

    @property
    def slowed(self) -> float | None:
        """Share of the rounds that ended with a throttled GPU; None if unknown."""
        return slowed_share(self.states)

    def of(self, name: str) -> Measurement:
        """The measurement of that subject; raises KeyError for an unknown name."""
        for measurement in self.measurements:
            if measurement.name == name:
                return measurement
        raise KeyError(name)

    def compare(self, a: str, b: str, *, margin: float = MARGIN) -> Comparison:
        """A against B in paired rounds; INVALID if one of them was not measured."""
        pair = self.of(a), self.of(b)
        for one in pair:
            if one.status is not MeasureStatus.MEASURED:
                return Comparison(a, b, ComparisonOutcome.INVALID, margin=margin, reason=f"{one.name}: {one.reason}")
        times_a, times_b = (one.samples for one in pair)
        assert times_a is not None
        assert times_b is not None
        return compare(times_a, times_b, margin=margin)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "measurements": [measurement.to_dict() for measurement in self.measurements],
            "stopped": self.stopped.value if self.stopped else None,
            "seconds": self.seconds,
            "watch": self.watch,
            "states": [state.to_dict() if state else None for state in self.states],
        }


class _SubjectRow:
    """Mutable state of one subject during the measurement."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.stopwatch: Stopwatch | None = None
        self.warm_up: list[float] = []
        self.times: list[float] = []
        self.checks = 0
        self.seconds = 0.0
        """Wall-clock seconds of the last sample."""
        self.status, self.reason = MeasureStatus.MEASURED, ""

    @property
    def alive(self) -> bool:
        return self.status is MeasureStatus.MEASURED

    def attempt(self, step: Callable[[], None]) -> None:
        """Run a step in the subject's scope; an exception ends the measurement of this subject only."""
        try:
            with self.subject.scope():
                step()
        except Exception as error:
            message = " ".join(str(error).split())[:300]
            self.status, self.reason = MeasureStatus.FAILED, f"{type(error).__name__}: {message}"

    def ready(self, clock: Clock) -> None:
        """Call once and check before the first sample."""
        self.subject.call()
        self.verify()
        if self.alive:
            self.stopwatch = clock.ready(self.subject.call)

    def sample(self, into: list[float], now: Callable[[], float]) -> None:
        assert self.stopwatch is not None
        start = now()
        into.append(self.stopwatch())
        self.seconds = now() - start

    def verify(self) -> None:
        wrong = self.subject.check()
        if wrong:
            self.status, self.reason = MeasureStatus.INVALID, f"its output is wrong: {wrong}"
        self.checks += not wrong

    def result(self, clock: Clock) -> Measurement:
        name = self.subject.name
        if not self.alive or not self.times:
            status = MeasureStatus.FAILED if self.alive else self.status
            return Measurement(name, status, self.reason or "no round was finished in time", checks=self.checks)
        assert self.stopwatch is not None
        calls = self.stopwatch.calls
        samples = Samples(name, clock.kind, clock.l2, calls, tuple(self.times), tuple(self.warm_up))
        summary = summarise(self.times)
        floor = self.subject.floor(summary.median_us) if self.subject.floor else None
        if floor and not floor.possible:
            return Measurement(name, MeasureStatus.INVALID, floor.reason, samples, None, floor, self.checks)
        return Measurement(name, self.status, "", samples, summary, floor, self.checks)


def measure(
    subjects: Sequence[Subject],
    clock: Clock,
    rule: StoppingRule | None = None,
    *,
    watch: Watch | None = None,
    warm_up: int = WARM_UP_ROUNDS,
    checked_share: float = CHECKED_SHARE,
    seed: int = 0,
    now: Callable[[], float] = time.monotonic,
) -> MeasuredSession:
    """Time all subjects by one clock, in the same rounds.

    Parameters
    ----------
    subjects : sequence of Subject
        Subjects with distinct names.
    clock : Clock
    rule : StoppingRule, optional
        Rule for stopping.
    watch : Watch, optional
        Reads the GPU's clocks after each round.
    warm_up : int
        Number of warm-up rounds, at least one; fewer if they take more than a quarter of the rule's time.
    checked_share : float
        Share of the other rounds, drawn with ``seed``, after which outputs are checked. Outputs are always checked
        before the first round and after the last one.
    seed : int
    now : callable
        Clock in seconds, for the rule.

    Returns
    -------
    MeasuredSession
        A subject that fails or computes something else has that as its result, and the others continue without it. The
        same holds for slow subjects: after the first round the slowest ones are left out, as long as the rounds that a
        verdict requires exceed the rule's time and the slowest takes over twice the mean of the others.

    Raises
    ------
    UserError
        Without subjects, or if two have the same name.
    """
    names = [subject.name for subject in subjects]
    if not names or len(set(names)) != len(names):
        raise UserError(f"a measurement needs subjects with different names, not {', '.join(names) or 'none'}")
    rule = rule or StoppingRule()
    looker: Watch = watch or NoWatch("unknown: not recorded")
    rows = [_SubjectRow(subject) for subject in subjects]
    for row in rows:
        row.attempt(partial(row.ready, clock))
    draw, start = random.Random(seed), now()
    states: list[ClockState | None] = []
    stopped: StopReason | None = None
    number = 0
    while stopped is None and any(row.alive for row in rows):
        order = rows[:: -1 if number % 2 else 1]
        if number == 0 or (number < warm_up and now() - start < rule.seconds / 4):
            _round([(row, row.warm_up) for row in order], now)
            if number == 0:
                _leave_out(rows, rule.seconds, now)
        else:
            _round([(row, row.times) for row in order], now, checked=draw.random() < checked_share)
            states.append(looker.look())
            stopped = rule.reason_to_stop([row.times for row in rows if row.alive], now() - start)
        number += 1
    seconds = now() - start
    _round([(row, []) for row in rows], now, checked=True)
    return MeasuredSession(tuple(row.result(clock) for row in rows), stopped, seconds, looker.about, tuple(states))


def _leave_out(rows: Sequence[_SubjectRow], seconds: float, now: Callable[[], float]) -> None:
    """Leave out the slowest subject while time is too short for enough rounds and it takes over twice the others' mean.

    A first sample may be slow for another reason, such as a busy host: a second sample must confirm it.
    """
    confirmed: list[_SubjectRow] = []
    while (alive := [row for row in rows if row.alive]) and LEAST_ROUNDS * sum(row.seconds for row in alive) > seconds:
        slowest = max(alive, key=lambda row: row.seconds)
        others = [row.seconds for row in alive if row is not slowest]
        if not others or slowest.seconds <= 2 * sum(others) / len(others):
            return
        if slowest not in confirmed:
            confirmed.append(slowest)
            first = slowest.seconds
            slowest.attempt(partial(slowest.sample, slowest.warm_up, now))
            slowest.seconds = min(first, slowest.seconds)
            continue
        slowest.status = MeasureStatus.LEFT_OUT
        slowest.reason = (
            f"a sample of it takes {slowest.seconds:.2g} s, and {LEAST_ROUNDS} rounds of {len(alive)} subjects have "
            f"{seconds:g} s: give it more with --seconds, or fewer subjects"
        )


def _round(rows: Sequence[tuple[_SubjectRow, list[float]]], now: Callable[[], float], *, checked: bool = False) -> None:
    """Take one sample of each subject. Checks follow all samples, so their effect on caches and clocks is outside the
    samples."""
    steps = [[(row, row.subject.overwrite_output) for row, _ in rows]] if checked else []
    steps.append([(row, partial(row.sample, times, now)) for row, times in rows])
    if checked:
        steps.append([(row, row.verify) for row, _ in rows])
    for step in steps:
        for row, action in step:
            if row.alive:
                row.attempt(action)
