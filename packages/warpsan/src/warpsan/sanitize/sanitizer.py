"""Races and memory errors of launches on the simulator, in every schedule, with all checks.

An incorrect order of warps need not change the result, and one schedule need not show every hazard. Each launch is
therefore repeated, and the hazards are merged: one per kind and instruction, with its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from warpsan import DEFAULT_NUMERICS, Hazard, Report, SimError, thorough_checks
from warpsan.build.host_code import SetAside, set_aside
from warpsan.errors import UserError
from warpsan.profile import SelfProfile
from warpsan.report.groups import ENDINGS, HazardGroup, SanitizedHazard, ending, group
from warpsan.report.source_text import Sources
from warpsan.report.suppressions import Suppression, suppress, suppressions_in
from warpsan.sanitize.case import PtxCase

__all__ = ["ASYNC_MODES", "MAX_STEPS", "SCHEDULES", "Collected", "Modes", "Progress", "Sanitized", "sanitize_case"]

SCHEDULES = ("lockstep", "forward", "reverse", "random")
ASYNC_MODES = ("late", "early")
MAX_STEPS = 2_000_000
"""Maximum vector steps of a run: 50 times those of the shipped kernels on small problems."""


@dataclass(frozen=True)
class Modes:
    """Execution modes of each launch.

    Attributes
    ----------
    schedules, async_modes : tuple of str
        See :func:`warpsan.launch`. Code without asynchronous instructions runs in the first async mode only.
    strict : bool
        Also report accesses that leave the buffer of their pointer, and mbarriers for copies without a fence after
        initialization.
    volatile : str
        Meaning of volatile accesses: synchronization, or data (:func:`warpsan.launch`).
    seed : int
        Seed of the random schedule.
    numerics : str
        See :func:`warpsan.launch`.
    max_steps : int
        Maximum vector steps of one warp; more are reported as an endless loop.
    self_profile : bool
        Whether to measure the time of the simulator (:func:`warpsan.launch`).
    """

    schedules: tuple[str, ...] = SCHEDULES
    async_modes: tuple[str, ...] = ASYNC_MODES
    strict: bool = False
    volatile: str = "sync"
    seed: int = 0
    max_steps: int = MAX_STEPS
    numerics: str = DEFAULT_NUMERICS
    self_profile: bool = False

    def options(self, asynchronous: bool) -> Iterator[dict[str, Any]]:
        """Simulator options of each run, for code with or without asynchronous instructions."""
        checks = thorough_checks(strict=self.strict)
        for schedule, mode in product(self.schedules, self.async_modes if asynchronous else self.async_modes[:1]):
            yield {
                "schedule": schedule,
                "async_mode": mode,
                "checks": checks,
                "volatile": self.volatile,
                "numerics": self.numerics,
                "seed": self.seed,
                "max_steps": self.max_steps,
                "self_profile": self.self_profile,
            }


@dataclass(frozen=True)
class Sanitized:
    """Outcome of all runs.

    Attributes
    ----------
    target, config, device : str
    cases, runs : tuple of str
        Executed cases and runs.
    hazards : tuple of SanitizedHazard
        One per kind and instruction, in code order.
    groups : tuple of HazardGroup
        The hazards by kind and pair of source lines.
    unused : tuple of Suppression
        Suppressions without a matching hazard.
    notes : tuple of str
        Remarks that are not hazards, by instruction: copies without a wait.
    set_aside : SetAside
        Host code beside the kernels that is not compiled.
    self_profiles : tuple of SelfProfile
        The simulator's time for each launch, if requested.
    """

    target: str
    config: str
    device: str
    cases: tuple[str, ...]
    runs: tuple[str, ...]
    hazards: tuple[SanitizedHazard, ...]
    groups: tuple[HazardGroup, ...]
    unused: tuple[Suppression, ...] = ()
    notes: tuple[str, ...] = ()
    set_aside: SetAside = field(default_factory=SetAside)
    self_profiles: tuple[SelfProfile, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether there is no hazard without a suppression."""
        return all(group.suppressed for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "target": self.target,
            "config": self.config,
            "device": self.device,
            "clean": self.clean,
            "cases": list(self.cases),
            "runs": list(self.runs),
            "hazards": [hazard.to_dict() for hazard in self.hazards],
            "groups": [group.to_dict() for group in self.groups],
            "unused_suppressions": [str(suppression) for suppression in self.unused],
            "notes": list(self.notes),
            **({"set_aside": self.set_aside.to_dict()} if self.set_aside else {}),
        }


Progress = Callable[[str], None]


def sanitize_case(
    case: PtxCase,
    modes: Modes | None = None,
    *,
    progress: Progress | None = None,
    folders: Sequence[Path] = (),
    suppressions: Sequence[Suppression] = (),
) -> Sanitized:
    """Run the launches of a launch file in each mode, on a new device each time, and collect the hazards.

    A buffer that differs from its expected content is a hazard of kind ``result``.

    Parameters
    ----------
    case : PtxCase
    modes, progress, suppressions
        As for :func:`sanitize_kernel`.
    folders : sequence of Path
        Folders of the sources in the line information.

    Raises
    ------
    UserError
        If the PTX is invalid, its launch is invalid, or an executed instruction has no model (with its PTX line).
    """
    modes, collected = modes or Modes(), Collected(case.name, progress)
    try:
        entries = case.entries
    except SimError as error:
        raise UserError(f"{case.name}: {error}") from None
    for options in modes.options("async" in case.ptx):
        label = f"{options['schedule']}, {options['async_mode']}"
        with collected.run(label, [case.name_of(launch) for launch in case.launches.launches]):
            collected.compared(case.name, case.run(lambda report: collected.launched(None, report), **options))
    texts = {case.name_of(launch): case.text_of(launch) for launch in case.launches.launches}
    sources = Sources(texts, folders)
    outcome = collected.result("", "simulator", entries, sources, suppressions)
    return replace(outcome, set_aside=set_aside(*filter(None, [case.module])))


class Collected:
    """Hazards of many runs, one per kind and instruction."""

    def __init__(self, target: str, progress: Progress | None) -> None:
        self.target, self.progress = target, progress
        self.labels: list[str] = []
        self.names: list[str] = []
        """PTX names of the remaining launches of this run."""
        self.hazards: dict[tuple[str, str, int], SanitizedHazard] = {}
        self.notes: dict[str, None] = {}
        self.self_profiles: list[SelfProfile] = []

    @contextmanager
    def run(self, label: str, names: Sequence[str]) -> Iterator[None]:
        """One run of launches of the PTX files ``names``.

        An error of the kernel that ends the run is a hazard, beside the earlier ones; any other error is bad input.
        """
        self._show(label)
        self.labels.append(label)
        self.names = list(names)
        try:
            yield
        except tuple(ENDINGS) as error:
            self._hazards(self.names[0], error.hazards)
            self.note(ending(error, self.names[0], label))
        except SimError as error:
            raise UserError(f"{self.target}: {error}") from None

    def _show(self, label: str) -> None:
        if self.progress is not None:
            self.progress(label)

    def launched(self, _: Any, report: Report) -> None:
        """Record the report of the run's next launch."""
        name = self.names.pop(0)
        self._hazards(name, report.hazards)
        self.self_profiles.extend(filter(None, [report.self_profile]))
        self.notes |= dict.fromkeys(f"{name}: {note.message}" for note in report.notes)

    def compared(self, name: str, wrong: Sequence[str]) -> None:
        """Record buffers that differ from their expected content at the end of a run."""
        for sentence in wrong:
            message = f"result: {sentence}"
            self.note(SanitizedHazard("result", message, name, 1, "", None, None, (self.labels[-1],)))

    def _hazards(self, name: str, hazards: Sequence[Hazard]) -> None:
        """Record the hazards of one launch of the PTX ``name``."""
        for hazard in hazards:
            self.note(SanitizedHazard.of(hazard, name, self.labels[-1]))

    def note(self, hazard: SanitizedHazard) -> None:
        """Add a hazard, or add its runs to the same hazard at the same instruction."""
        key = hazard.ptx, hazard.kind, hazard.ptx_line
        known = self.hazards.setdefault(key, hazard)
        if known is not hazard:
            self.hazards[key] = replace(known, runs=tuple(dict.fromkeys((*known.runs, *hazard.runs))))

    def result(
        self,
        config: str,
        device: str,
        cases: Sequence[str],
        sources: Sources,
        suppressions: Sequence[Suppression],
    ) -> Sanitized:
        """The outcome, in code order and in groups, with the suppressions in the sources."""
        ordered = sorted(self.hazards.values(), key=lambda hazard: (hazard.ptx, hazard.ptx_line, hazard.kind))
        groups = group(ordered, sources)
        ran = tuple(cases), tuple(self.labels), tuple(ordered)
        return Sanitized(
            *(self.target, config, device),
            *ran,
            *suppress(groups, [*suppressions, *suppressions_in(sources)]),
            tuple(sorted(self.notes)),
            self_profiles=tuple(self.self_profiles),
        )
