"""What a report shows of each kernel, in the order in which a reader asks: the verdict, why it failed, where, on what.

Everything here follows from the records and arrays of a bundle.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sdpalab.evidence.build_labels import BuildLabel, build_labels
from sdpalab.evidence.listing import Excerpt, SourceListing, excerpts, listings
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.report_data import RULES, CaseArrays, ReportData
from sdpalab.judge.diagnose.summary import FailureSummary, summarise
from sdpalab.judge.verdict import Case
from warpsan.report import HazardGroup

__all__ = ["KernelView", "WorstShare", "kernel_views"]


@dataclass(frozen=True)
class WorstShare:
    """The error of an attempt that uses most of its limit, as a share of it."""

    share: float
    rule: str
    case: str


@dataclass(frozen=True)
class KernelView:
    """One attempt, as the report shows it.

    Attributes
    ----------
    number : int
        Its position in the bundle; anchors and filters are made of it.
    title : str
        The kernel's name; with the knobs in which they differ where the bundle has several attempts of that name.
    attempt : AttemptRecord
    summary : FailureSummary
        Of a failed verdict; else empty.
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
        """How many of them passed."""
        return sum(case.passed for case in self.cases)

    @property
    def good(self) -> bool:
        """True if the verdict is PASSED and no build failed the static gate."""
        return self.attempt.passed and self.attempt.gate_ok is not False

    @property
    def status(self) -> str:
        """That of the verdict, or that there is none."""
        return self.attempt.verdict.status.value if self.attempt.verdict else "NOT JUDGED"

    @property
    def failed(self) -> list[Case]:
        """The failed cases, those of the verdict's status first."""
        failed = [case for case in self.cases if not case.passed]
        return sorted(failed, key=lambda case: case.status.value != self.status)

    @property
    def gate_failures(self) -> list[str]:
        """A sentence for each limit of the static gate that a build does not keep."""
        return [
            f"{each.variant}: {sentence}" if each.variant else sentence
            for each in self.builds
            if each.build.gate
            for sentence in each.build.gate.failures
        ]

    @cached_property
    def worst(self) -> WorstShare | None:
        """The largest share of a limit over all cases; None if nothing was compared."""
        shares = [
            WorstShare(share, RULES[rule], case.name) for case in self.cases for rule, share in case.shares.items()
        ]
        return max(shares, key=lambda each: each.share, default=None)

    def case(self, name: str) -> Case | None:
        """The case of that name, if it was judged on it."""
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
        with contextlib.suppress(KeyError):  # where arrays are missing there is no diagnosis
            summary = summarise(attempt.verdict, data.failed_arrays, candidate, options)
    sources = listings(attempt, data.sources, summary.hazards, f"source-{number}")
    picture = data.pictured(attempt)
    return KernelView(number, title, attempt, summary, build_labels(attempt), picture, sources)


def _titles(attempts: Sequence[AttemptRecord]) -> list[str]:
    """Names that tell the attempts apart: by kernel, then by the knobs in which those of one kernel differ."""
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
    """What the command line calls the kernel: its name, or ``FILE.py:NAME`` as it was when it was judged."""
    if not attempt.sources:
        return attempt.kernel
    files = {path.rpartition("/")[2] for path in attempt.sources}
    specs = [word for word in command if re.sub(r"\.py(:\w+)?$", ".py", word).rpartition("/")[2] in files]
    named = [word for word in specs if word.endswith(f":{attempt.kernel}")]
    return next(iter([*named, *specs]), None)


def _options(command: Sequence[str]) -> list[str]:
    """The options of the command line that a next step needs, too: the architecture and the knobs."""
    pairs = itertools.pairwise(command)
    return [part for option, value in pairs if option in ("--arch", "--set") for part in (option, value)]
