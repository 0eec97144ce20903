"""The last stage of a judgement on the simulator: cases that reach code which no case executed.

A branch on scalar arguments or on the grid is evaluated on the launch plans of larger and smaller problems; the
smallest one that takes it becomes a case. A plan of larger problems may also launch a build that no case ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from sdpalab.errors import MachineError
from sdpalab.judge.sandbox.executed import Executed, ExecutedBuild, SentEntry, SentRegion, launches_of
from sdpalab.judge.sandbox.isolation import CandidateProcesses
from sdpalab.judge.sandbox.plans import SentPlan
from sdpalab.judge.small_cases import CaseSpec
from sdpalab.judge.unjudged import EntryCode, UnjudgedCode
from sdpalab.problem import Problem

__all__ = ["Reaching"]

MOST_WORK = 1 << 28
"""Most products of Q and K elements (scores times head_dim) of a case that reaches code: seconds on the simulator."""
_MOST_CASES, _MOST_BUILDS = 6, 2
_LONG_KEYS = (2049, 8192)
_LONGEST = 1 << 16
"""Longest sequence whose plan is examined."""
_MOST_PLANS = 200
"""Most plans of a search, a few milliseconds each."""
_MOST_ELEMENTS = 1 << 30
_SIZES = {"arguments", "launch", "a loop"}
"""Origins of conditions that the sizes of a problem decide."""

Region = tuple[int, int]
"""Numbers of a build and of a region in it."""


class Reaching:
    """Finds the unexecuted code of a candidate, and problems that reach it.

    Parameters
    ----------
    executed : Executed
        The code that the cases executed.
    worker : CandidateProcesses
        Answers questions about plans and builds.
    """

    def __init__(self, executed: Executed, worker: CandidateProcesses) -> None:
        self._executed, self._worker = executed, worker
        self._builds: list[ExecutedBuild] = []
        self._entries: list[SentEntry] = []
        self._reached: dict[tuple[str, ...], Problem] = {}
        self._further: dict[str, list[Problem]] = {}
        self._plans_left = _MOST_PLANS

    def look(self) -> None:
        """Read the code that is unexecuted now."""
        self._builds = list(self._executed.builds.values())
        self._entries = sorted(self._worker.code(self._builds), key=lambda each: each.build) if self._builds else []

    def cases(self, first: Problem, hidden: int) -> list[CaseSpec]:
        """Cases that reach unexecuted code, the cheapest first; cases of builds that no case ran and that larger
        versions of ``first`` launch; and a long case, whose number of keys depends on the ``hidden`` number."""
        self._survey(first)
        reaching = dict(self._problems())
        for (build, number), problem in reaching.items():
            self._reached[_identity(self._entries[build].regions[number])] = problem
        further = [problem for problems in self._further.values() for problem in problems[:_MOST_BUILDS]]
        problems = sorted({*reaching.values(), *further}, key=lambda each: (_work(each), each.label))
        affordable = [each for each in problems if _work(each) <= MOST_WORK][:_MOST_CASES]
        specs = [CaseSpec(f"{each.label} reaches further code", each, seed=None, derived=True) for each in affordable]
        long = self._long(first, hidden)
        if long is not None:
            specs.append(CaseSpec(f"{long.label} hidden length", long, seed=None, derived=True))
        return specs

    def _long(self, first: Problem, hidden: int) -> Problem | None:
        """A few queries with more keys than all cases, for arithmetic on sizes that is no branch; None with a causal
        mask, which hides these keys, and for a kernel that does not support it."""
        longest = max(build.problem.seq_kv for build in self._builds)
        if first.causal or longest >= _LONG_KEYS[0]:
            return None
        keys = _LONG_KEYS[0] + hidden % (_LONG_KEYS[1] - _LONG_KEYS[0])
        heads = {"heads": first.group, "kv_heads": 1}
        problem = _changed(first, batch=1, seq_q=min(first.seq_q, 16), seq_kv=keys, **heads)
        self._plans_left += 1
        return problem if self._plan(problem) is not None else None

    def record(self, judged: Sequence[Problem]) -> tuple[EntryCode, ...]:
        """The code of each entry; ``judged`` are the problems of the cases."""
        names = list(dict.fromkeys(each.entry for each in self._entries))
        entries = [self._of_entry([each for each in self._entries if each.entry == name]) for name in names]
        unjudged = {name: [each for each in all_ if each not in judged] for name, all_ in self._further.items()}
        further = [
            UnjudgedCode((f"{len(each)} further builds of {name}",), "", "", ("arguments",), each[0].label)
            for name, each in unjudged.items()
            if each
        ]
        if further:
            first = entries[0]
            entries[0] = replace(first, unjudged=(*first.unjudged, *further))
        return tuple(entries)

    def _of_entry(self, builds: Sequence[SentEntry]) -> EntryCode:
        regions = {
            _identity(region): region
            for each in builds
            for region in each.regions
            if region.outcome is None or _identity(region) in self._reached
        }
        unjudged = tuple(
            UnjudgedCode(
                tuple(region.places),
                region.branch,
                region.condition,
                tuple(region.depends),
                self._reached[identity].label if identity in self._reached else "",
                region.fails,
            )
            for identity, region in regions.items()
        )
        return EntryCode(
            builds[0].entry,
            len(builds),
            sum(each.blocks for each in builds),
            sum(each.executed for each in builds),
            unjudged,
            tuple(sorted({name for each in builds for name in each.identity})),
        )

    def _problems(self) -> Iterator[tuple[Region, Problem]]:
        """For each region that the sizes of a problem decide the cheapest problem that reaches it."""
        by_code: dict[tuple[str, ...], list[int]] = {}
        for number, build in enumerate(self._builds):
            by_code.setdefault(_code_of(build.plan), []).append(number)
        for known, numbers in by_code.items():
            open_regions = {
                (number, k): region
                for number in numbers
                for k, region in enumerate(self._entries[number].regions)
                if not region.fails and set(region.depends) <= _SIZES
            }
            base = self._builds[numbers[0]].problem
            yield from self._search(base, known, open_regions).items()

    def _search(
        self, base: Problem, known: tuple[str, ...], regions: Mapping[Region, SentRegion]
    ) -> dict[Region, Problem]:
        best: dict[Region, Problem] = {}
        constants = {abs(c) + d for region in regions.values() for c in region.constants for d in (-1, 0, 1)}
        for change, most in _CHANGES:
            below = 0
            left = set(regions) - {region for region, problem in best.items() if _work(problem) <= MOST_WORK}
            for size in sorted({*_LADDER, *(each + 1 for each in _LADDER), *constants}):
                if not left or self._plans_left <= 0 or not 0 < size <= most:
                    continue
                for region in self._hits(change(base, size), known, left, regions):
                    least = self._least(change, base, below, size, known, region, regions)
                    if region not in best or _work(least) < _work(best[region]):
                        best[region] = least
                    left.discard(region)
                below = size
        return best

    def _least(
        self,
        change: Callable[[Problem, int], Problem | None],
        base: Problem,
        below: int,
        size: int,
        known: tuple[str, ...],
        region: Region,
        regions: Mapping[Region, SentRegion],
    ) -> Problem:
        """The problem of the least size in (below, size] that reaches a region, if larger ones do as well."""
        while size - below > 1:
            middle = (below + size) // 2
            if region in self._hits(change(base, middle), known, {region}, regions):
                size = middle
            else:
                below = middle
        problem = change(base, size)
        assert problem is not None
        return problem

    def _hits(
        self,
        problem: Problem | None,
        known: tuple[str, ...],
        wanted: set[Region],
        regions: Mapping[Region, SentRegion],
    ) -> set[Region]:
        """The wanted regions that the plan of a problem reaches, if it has the code ``known``."""
        plan = self._plan(problem)
        if plan is None or _code_of(plan) != known:
            return set()
        by_build: dict[int, list[Region]] = {}
        for region in wanted:
            by_build.setdefault(region[0], []).append(region)
        asked = [(self._builds[number], [regions[region] for region in those]) for number, those in by_build.items()]
        try:
            answers = self._worker.reached(plan, asked) if asked else []
        except MachineError:  # such as a plan with other arguments than the entry's
            return set()
        return {
            region
            for those, replies in zip(by_build.values(), answers, strict=True)
            for region, reply in zip(those, replies, strict=True)
            if reply
        }

    def _survey(self, first: Problem) -> None:
        """Note the builds that no case ran, each with the first problem that launches it."""
        ran = {_build_code(build.step) for build in self._builds}
        one = {"batch": 1, "heads": first.group, "kv_heads": 1}
        for change in (_keys, _both):
            for size in _LADDER:
                problem = change(first, size)
                problem = problem and _changed(problem, **one)
                plan = self._plan(problem)
                for step in launches_of(plan) if plan is not None else ():
                    if _build_code(step) not in ran and problem is not None:
                        ran.add(_build_code(step))
                        self._further.setdefault(step.code.entry or step.code.name, []).append(problem)

    def _plan(self, problem: Problem | None) -> SentPlan | None:
        if problem is None or _elements(problem) > _MOST_ELEMENTS or self._plans_left <= 0:
            return None
        self._plans_left -= 1
        return self._worker.plan(problem)


def _build_code(step: object) -> str:
    return repr(getattr(step, "code", ""))


def _code_of(plan: SentPlan) -> tuple[str, ...]:
    """Source, options and entry of each launch."""
    return tuple(_build_code(step) for step in launches_of(plan))


def _identity(region: SentRegion) -> tuple[str, ...]:
    return (*region.places, region.branch, *region.depends, str(region.outcome))


def _work(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.seq_q * problem.seq_kv * problem.head_dim


def _elements(problem: Problem) -> int:
    return sum(math.prod(shape) for shape in (problem.q_shape, problem.kv_shape))


_LADDER = tuple(1 << k for k in range(17))


def _changed(problem: Problem, **sizes: int) -> Problem | None:
    """The problem with other sizes; None where its other fields do not allow them."""
    if set(problem.features) - {"head_dim_v", "softcap", "alibi_slopes", "sinks", "bottom_right", "window_size"}:
        return None
    return problem.with_(**sizes)


def _both(problem: Problem, size: int) -> Problem | None:
    return _changed(problem, seq_q=size, seq_kv=size)


def _keys(problem: Problem, size: int) -> Problem | None:
    return _changed(problem, seq_kv=size)


def _queries(problem: Problem, size: int) -> Problem | None:
    return _changed(problem, seq_q=size)


def _batch(problem: Problem, size: int) -> Problem | None:
    return _changed(problem, batch=size)


def _heads(problem: Problem, size: int) -> Problem | None:
    return _changed(problem, heads=size * problem.group, kv_heads=size)


_CHANGES = ((_keys, _LONGEST), (_both, _LONGEST), (_queries, _LONGEST), (_batch, 64), (_heads, 64))
"""Sizes that are varied, each with the largest one."""
