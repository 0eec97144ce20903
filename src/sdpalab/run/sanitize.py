"""Races and memory errors of a kernel: its launches on the simulator, in every schedule, with all checks.

A wrong order of warps need not give a wrong result, and one schedule need not show every hazard. So each launch is
repeated, and the hazards are merged: one hazard for each kind and instruction, with the runs that showed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from sdpalab.compile import Build, Cache, SetAside, build, set_aside
from sdpalab.errors import UserError
from sdpalab.gpus import default_sms
from sdpalab.inputs import make_inputs
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import LaunchPlan, Source
from sdpalab.problem import HALF_DTYPES, Problem
from sdpalab.run.hazards import ENDINGS, HazardGroup, SanitizedHazard, ending, group
from sdpalab.run.ptx_case import PtxCase
from sdpalab.run.simulated import SimulatedExecutor
from sdpalab.run.sources import Sources
from sdpalab.run.suppressions import Suppression, suppress, suppressions_in
from sdpalab.sim import DEFAULT_NUMERICS, Hazard, Report, SimError, thorough_checks
from sdpalab.sim.progress import shows_progress

__all__ = [
    "ASYNC_MODES",
    "SCHEDULES",
    "Modes",
    "Sanitized",
    "SanitizedHazard",
    "combine",
    "sanitize_case",
    "sanitize_kernel",
    "small_problems",
]

SCHEDULES = ("lockstep", "forward", "reverse", "random")
ASYNC_MODES = ("late", "early")
MAX_STEPS = 2_000_000
"""Vector steps of one run: fifty times what the shipped kernels take on their small problems."""

_HEAD_DIMS = (64, 128, 32, 16, 96, 256, 80, 48, 112, 192)
_TILE = 64
"""Keys of a tile where no knob says so."""


@dataclass(frozen=True)
class Modes:
    """How each launch is run.

    Attributes
    ----------
    schedules, async_modes : tuple of str
        See :func:`sdpalab.sim.launch`. Code without asynchronous instructions is run in the first async mode only.
    strict : bool
        Also report accesses that leave the buffer of their pointer, and mbarriers for copies without a fence behind
        their initialisation.
    volatile : str
        Whether volatile accesses synchronise, or are data (:func:`sdpalab.sim.launch`).
    reads : str
        Whether reads may be stale (:func:`sdpalab.sim.launch`).
    seed : int
        Of the random schedule, and of stale reads.
    numerics : str
        See :func:`sdpalab.sim.launch`.
    max_steps : int
        Vector steps of one warp; more counts as an endless loop.
    """

    schedules: tuple[str, ...] = SCHEDULES
    async_modes: tuple[str, ...] = ASYNC_MODES
    strict: bool = False
    volatile: str = "sync"
    reads: str = "latest"
    seed: int = 0
    max_steps: int = MAX_STEPS
    numerics: str = DEFAULT_NUMERICS

    def options(self, asynchronous: bool) -> Iterator[dict[str, Any]]:
        """The options of the simulator, run by run, for code with or without asynchronous instructions."""
        checks = thorough_checks(strict=self.strict)
        for schedule, mode in product(self.schedules, self.async_modes if asynchronous else self.async_modes[:1]):
            yield {
                "schedule": schedule,
                "async_mode": mode,
                "checks": checks,
                "volatile": self.volatile,
                "reads": self.reads,
                "numerics": self.numerics,
                "seed": self.seed,
                "max_steps": self.max_steps,
            }


@dataclass(frozen=True)
class Sanitized:
    """The outcome.

    Attributes
    ----------
    target, config, device : str
    cases, runs : tuple of str
        What ran.
    hazards : tuple of SanitizedHazard
        One for each kind and instruction, in the order of the code.
    groups : tuple of HazardGroup
        The same by kind and pair of source lines.
    unused : tuple of Suppression
        Suppressions that fit no hazard.
    notes : tuple of str
        What is worth a look, and no hazard, by instruction: copies that are never waited for.
    set_aside : SetAside
        Host code beside the kernels, which is not compiled.
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

    @property
    def clean(self) -> bool:
        """True if nothing was found that is not suppressed."""
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


def small_problems(
    kernel: Kernel, config: Config | None = None, *, dtype: str | None = None, causal: bool = False
) -> list[Problem]:
    """Small problems that exercise all cases of a kernel's pipeline.

    One tile of keys, as many as there are stages, one more, and twice as many and a ragged one: so the number of tiles
    is one, even and odd, and every stage is filled again; and two tiles of rows and an odd number of keys', all of
    them whole, for which a kernel may have code of its own. Tiles and stages are the knobs BLOCK_M, BLOCK_N and
    NUM_STAGES (in Triton num_stages) where the kernel has them; blocks that share a row's keys, as many as SPLIT says,
    get so many each; and as many heads share a tile of rows and K and V as PACK_GQA says. Unless all are causal, a
    ragged causal one comes last.

    Raises
    ------
    UserError
        If the kernel supports none of them.
    """
    config = kernel.default_config if config is None else config
    keys, rows, stages = (_knob(config, name) for name in ("BLOCK_N", "BLOCK_M", "NUM_STAGES"))
    keys, rows, stages = keys or _TILE, rows or _TILE, max(2, stages or _knob(config, "num_stages"))
    share, heads = keys * max(1, _knob(config, "SPLIT")), max(1, _knob(config, "PACK_GQA"))
    rows //= heads
    lengths = [keys, stages * share, (stages + 1) * share, (2 * stages + 1) * share - 7]
    for dim, kind in product(_HEAD_DIMS, [dtype] if dtype else HALF_DTYPES):
        sizes = [(length if causal else min(length, rows + 7), length, causal) for length in dict.fromkeys(lengths)]
        sizes += (
            [] if causal else [(2 * rows, (2 * stages + 1) * share, False), ((stages + 1) * keys - 7,) * 2 + (True,)]
        )
        problems = [Problem(1, heads, q, dim, kv_heads=1, seq_kv=kv, dtype=kind, causal=mask) for q, kv, mask in sizes]
        problems = [problem for problem in problems if kernel.reject_reason(problem, config) is None]
        if problems:
            return problems
    problem = Problem(1, 1, keys, _HEAD_DIMS[0], dtype=dtype or "float16", causal=causal)
    raise UserError(f"no small problem suits {kernel.name}: {kernel.reject_reason(problem, config)}; give a --shape")


def _knob(config: Config, name: str) -> int:
    value = config.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0


def sanitize_kernel(
    kernel: Kernel,
    problems: Sequence[Problem],
    config: Config | None = None,
    modes: Modes | None = None,
    *,
    arch: str | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    suppressions: Sequence[Suppression] = (),
) -> Sanitized:
    """Run a kernel's launch plan for each problem in each mode, and collect what the simulator finds.

    Parameters
    ----------
    kernel, config
        The kernel, and its configuration (default: its own).
    problems : sequence of Problem
        Inputs are standard normal, with seed 0.
    modes : Modes, optional
        Default: all schedules, both async modes.
    arch : str, optional
        Default: the kernel's own.
    cache : Cache, optional
        Where builds are kept. Default: the user's.
    progress : callable, optional
        Called with the label of each run before it, and in a long one with that and how far it is.
    suppressions : sequence of Suppression
        Beside those in the kernel's source (:mod:`sdpalab.run.suppressions`).

    Raises
    ------
    UserError
        If a problem does not suit the kernel, its source does not compile, or its PTX cannot be launched or holds an
        instruction that is not modelled (with its PTX line).
    """
    modes, collected = modes or Modes(), _Collected(kernel.name, progress)
    config = kernel.default_config if config is None else config
    arch = arch or kernel.default_arch
    for problem in problems:
        plan, inputs = _plan(kernel, problem, config, arch), make_inputs(problem)
        arrays = inputs.arrays
        builds = [build(step.module, arch, cache=cache) for step in plan.launches if step.module is not None]
        names = [f"{built.name}.ptx" for built in builds]
        for options in modes.options(any(b"async" in built.ptx for built in builds)):
            label = f"{problem.label}, {options['schedule']}, {options['async_mode']}"
            executor = SimulatedExecutor(arch, cache, on_launch=collected.launched, **options)
            with collected.run(label, names):
                executor.run(plan, arrays)
    return _of_kernel(collected, kernel, problems, config, arch, suppressions)


def combine(
    kernel: Kernel,
    problems: Sequence[Problem],
    config: Config,
    parts: Iterable[tuple[Sequence[str], Sequence[SanitizedHazard], Sequence[str]]],
    *,
    arch: str,
    suppressions: Sequence[Suppression] = (),
) -> Sanitized:
    """The outcome of :func:`sanitize_kernel` on ``problems``, from the runs, hazards and notes of each alone."""
    collected = _Collected(kernel.name, None)
    for labels, hazards, notes in parts:
        collected.labels += labels
        collected.notes |= dict.fromkeys(notes)
        for hazard in hazards:
            collected.note(hazard)
    return _of_kernel(collected, kernel, problems, config, arch, suppressions)


def _plan(kernel: Kernel, problem: Problem, config: Config, arch: str) -> LaunchPlan:
    return kernel.launch_plan(problem, config, lse=kernel.lse, sms=default_sms(arch))


def _of_kernel(
    collected: _Collected,
    kernel: Kernel,
    problems: Sequence[Problem],
    config: Config,
    arch: str,
    suppressions: Sequence[Suppression],
) -> Sanitized:
    modules: dict[str, Source] = {}
    for problem in problems:
        steps = _plan(kernel, problem, config, arch).launches
        modules |= {step.module.name: step.module for step in steps if step.module is not None}
    labels = [problem.label for problem in problems]
    outcome = collected.result(str(config), f"simulator {arch}", labels, Sources.of(modules.values()), suppressions)
    return replace(outcome, set_aside=set_aside(*modules.values()))


def sanitize_case(
    case: PtxCase,
    modes: Modes | None = None,
    *,
    progress: Progress | None = None,
    folders: Sequence[Path] = (),
    suppressions: Sequence[Suppression] = (),
) -> Sanitized:
    """Run the launches of a launch file in each mode, on a new device each time, and collect what the simulator finds.

    A buffer that does not hold what is expected is a hazard of the kind ``result``.

    Parameters
    ----------
    case : PtxCase
    modes, progress, suppressions
        As for :func:`sanitize_kernel`.
    folders : sequence of Path
        Where the sources are that its line information names.

    Raises
    ------
    UserError
        If the PTX cannot be read or launched so, or reaches an instruction that is not modelled (with its PTX line).
    """
    modes, collected = modes or Modes(), _Collected(case.name, progress)
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


class _Collected:
    """Hazards of many runs, each kind and instruction once."""

    def __init__(self, target: str, progress: Progress | None) -> None:
        self.target, self.progress = target, progress
        self.labels: list[str] = []
        self.names: list[str] = []
        """The PTX of the launches that this run still has before it."""
        self.hazards: dict[tuple[str, str, int], SanitizedHazard] = {}
        self.notes: dict[str, None] = {}

    @contextmanager
    def run(self, label: str, names: Sequence[str]) -> Iterator[None]:
        """One run of launches of the PTX called ``names``.

        What stops it is a hazard if it is the kernel's fault, beside what was found before, and bad input otherwise.
        """
        self._show(label)
        self.labels.append(label)
        self.names = list(names)
        try:
            with shows_progress(lambda words: self._show(f"{label}: {words}")):
                yield
        except tuple(ENDINGS) as error:
            self._hazards(self.names[0], error.hazards)
            self.note(ending(error, self.names[0], label))
        except SimError as error:
            raise UserError(f"{self.target}: {error}") from None

    def _show(self, label: str) -> None:
        if self.progress is not None:
            self.progress(label)

    def launched(self, _: Build | None, report: Report) -> None:
        """The next launch of the run has come to its end."""
        name = self.names.pop(0)
        self._hazards(name, report.hazards)
        self.notes |= dict.fromkeys(f"{name}: {note.message}" for note in report.notes)

    def compared(self, name: str, wrong: Sequence[str]) -> None:
        """What is not as expected at the end of a run."""
        for sentence in wrong:
            message = f"result: {sentence}"
            self.note(SanitizedHazard("result", message, name, 1, "", None, None, (self.labels[-1],)))

    def _hazards(self, name: str, hazards: Sequence[Hazard]) -> None:
        """What one launch of the PTX called ``name`` has shown."""
        for hazard in hazards:
            self.note(SanitizedHazard.of(hazard, name, self.labels[-1]))

    def note(self, hazard: SanitizedHazard) -> None:
        """Add a hazard, or its runs to those of the same kind at the same instruction."""
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
        """All of it, in the order of the code, and in groups; suppressions in the sources count, too."""
        ordered = sorted(self.hazards.values(), key=lambda hazard: (hazard.ptx, hazard.ptx_line, hazard.kind))
        groups = group(ordered, sources)
        ran = tuple(cases), tuple(self.labels), tuple(ordered)
        return Sanitized(
            *(self.target, config, device),
            *ran,
            *suppress(groups, [*suppressions, *suppressions_in(sources)]),
            tuple(sorted(self.notes)),
        )
