"""Names that distinguish the builds of a kernel: the macros in which they differ, and the shapes that ran them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sdpalab.evidence.records import AttemptRecord, BuildRecord
from sdpalab.problem import Problem

__all__ = ["BuildLabel", "build_labels"]


@dataclass(frozen=True)
class BuildLabel:
    """One build of an attempt, and what distinguishes it from the others.

    Attributes
    ----------
    build : BuildRecord
    variant : str
        Its own macros and, of several modules, its module: ``RAGGED_KV=1 STREAM_K=0``; empty for a single build.
    problems : tuple of Problem
        Those of the judged cases that ran it, the largest first.
    """

    build: BuildRecord
    variant: str
    problems: tuple[Problem, ...]

    @property
    def shapes(self) -> str:
        """The largest of the problems, and how many more there are."""
        if not self.problems:
            return "no case ran it"
        more = len(self.problems) - 1
        return self.problems[0].label + (f" and {more} more" if more else "")


def build_labels(attempt: AttemptRecord) -> tuple[BuildLabel, ...]:
    """The builds of an attempt in their order; no two have the same variant."""
    builds = attempt.builds
    words = Counter(word for build in builds for word in {build.module, *build.command})
    variants = []
    for build in builds:
        own = [word.removeprefix("-D") for word in (build.module, *build.command) if words[word] < len(builds)]
        variants.append(" ".join(own))
    repeated = Counter(variants)
    for number, build in enumerate(builds):
        if repeated[variants[number]] > 1:
            # The same source under the same options: another entry of it, or other values that are no macros.
            variants[number] = f"{variants[number]} code {build.ptx_sha256[:8]}".strip()
    return tuple(
        BuildLabel(build, variant, _problems(attempt, build)) for build, variant in zip(builds, variants, strict=True)
    )


def _problems(attempt: AttemptRecord, build: BuildRecord) -> tuple[Problem, ...]:
    cases = attempt.verdict.cases if attempt.verdict else ()
    ran = dict.fromkeys(case.problem for case in cases if build.ptx_sha256 in case.run.get("ptx_sha256", ()))
    return tuple(sorted(ran, key=lambda problem: (-problem.scores, problem.label)))
