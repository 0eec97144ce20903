"""View of each kernel in a report: the verdict, the reason of a failure, its place, and its inputs.

All values are derived from the records and arrays of a bundle.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.report.build_labels import BuildLabel, build_labels
from sdpalab.evidence.report.data import RULES, CaseArrays, ReportData
from sdpalab.evidence.report.listing import Excerpt, SourceListing, excerpts, listings
from sdpalab.judge.diagnose.summary import FailureSummary, summarise
from sdpalab.judge.verdict import Case
from warpsan.report import HazardGroup

__all__ = ["KernelView", "WorstShare", "kernel_views"]


@dataclass(frozen=True)
class WorstShare:
    """The error of an attempt with the largest share of its limit."""

    share: float
    rule: str
    case: str


@dataclass(frozen=True)
class KernelView:
    """One attempt, as the report shows it.

    Attributes
    ----------
    number : int
        Position in the bundle; part of anchors and filters.
    title : str
        The kernel's name; with the differing knobs if the bundle has several attempts of that name.
    attempt : AttemptRecord
    summary : FailureSummary
        Summary of a failed verdict; otherwise empty.
    builds : tuple of BuildLabel
    picture : CaseArrays, optional
    sources : tuple of SourceListing
    """

    number: int
    title: str
    attempt: AttemptRecord
    summary: FailureSummary
    builds: tuple[BuildLabel, ...]
    picture: CaseArrays | None
    sources: tuple[SourceListing, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """The judged cases."""
        return self.attempt.verdict.cases if self.attempt.verdict else ()

    @property
    def passed_cases(self) -> int:
        """Number of passed cases."""
        return sum(case.passed for case in self.cases)

    @property
    def good(self) -> bool:
        """True if the verdict is PASSED and no build failed the static gate."""
        return self.attempt.passed and self.attempt.gate_ok is not False

    @property
    def status(self) -> str:
        """Status of the verdict, or a text for a missing verdict."""
        return self.attempt.verdict.status.value if self.attempt.verdict else "NOT JUDGED"

    @property
    def failed(self) -> list[Case]:
        """The failed cases, with those of the verdict's status first."""
        failed = [case for case in self.cases if not case.passed]
        return sorted(failed, key=lambda case: case.status.value != self.status)

    @property
    def gate_failures(self) -> list[str]:
        """One sentence for each static-gate limit that a build exceeds."""
        return [
            f"{each.variant}: {sentence}" if each.variant else sentence
            for each in self.builds
            if each.build.gate
            for sentence in each.build.gate.failures
        ]

    @cached_property
    def worst(self) -> WorstShare | None:
        """The largest share of a limit over all cases; None without a comparison."""
        shares = [
            WorstShare(share, RULES[rule], case.name) for case in self.cases for rule, share in case.shares.items()
        ]
        return max(shares, key=lambda each: each.share, default=None)

    def case(self, name: str) -> Case | None:
        """The case of that name, if it was judged."""
        return next((case for case in self.cases if case.name == name), None)

    @property
    def hazards(self) -> list[tuple[HazardGroup, tuple[Excerpt, ...]]]:
        """The hazards by kind and pair of lines, with the source of both accesses."""
        return [(group, excerpts(group, self.sources)) for group in self.summary.hazards]


def kernel_views(data: ReportData) -> tuple[KernelView, ...]:
    """A view of each attempt of a bundle."""
    titles = _titles(data.attempts)
    return tuple(_view(data, n, titles[n], attempt) for n, attempt in enumerate(data.attempts))


def _view(data: ReportData, number: int, title: str, attempt: AttemptRecord) -> KernelView:
    summary = FailureSummary()
    if attempt.verdict is not None:
        candidate, options = _candidate(data.command, attempt), _options(data.command)
        with contextlib.suppress(KeyError):  # without the arrays there is no diagnosis
            summary = summarise(attempt.verdict, data.failed_arrays, candidate, options)
    sources = listings(attempt, data.sources, summary.hazards, f"source-{number}")
    picture = data.pictured(attempt)
    return KernelView(number, title, attempt, summary, build_labels(attempt), picture, sources)


def _titles(attempts: Sequence[AttemptRecord]) -> list[str]:
    """Titles that distinguish the attempts: kernel names, with the differing knobs of several attempts of one
    kernel."""
    names = Counter(attempt.kernel for attempt in attempts)
    titles = []
    for attempt in attempts:
        same = [other for other in attempts if other.kernel == attempt.kernel]
        knobs = Counter(knob for other in same for knob in set(other.config.split()))
        own = [knob for knob in attempt.config.split() if knobs[knob] < len(same)]
        titles.append(" ".join([attempt.kernel, *own]) if names[attempt.kernel] > 1 else attempt.kernel)
    repeated = Counter(titles)
    return [f"{title} ({n + 1})" if repeated[title] > 1 else title for n, title in enumerate(titles)]


def _candidate(command: Sequence[str], attempt: AttemptRecord) -> str | None:
    """The kernel on a command line: its name, or the judged ``FILE.py:NAME``."""
    if not attempt.sources:
        return attempt.kernel
    files = {path.rpartition("/")[2] for path in attempt.sources}
    specs = [word for word in command if re.sub(r"\.py(:\w+)?$", ".py", word).rpartition("/")[2] in files]
    named = [word for word in specs if word.endswith(f":{attempt.kernel}")]
    return next(iter([*named, *specs]), None)


def _options(command: Sequence[str]) -> list[str]:
    """Further command-line options of a next step: the architecture and the knobs."""
    pairs = itertools.pairwise(command)
    return [part for option, value in pairs if option in ("--arch", "--set") for part in (option, value)]
