"""Labels that distinguish the builds of a kernel: the macros that differ, and the shapes that ran them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sdpalab.evidence.records import AttemptRecord, BuildRecord
from sdpalab.problem import Problem

__all__ = ["BuildLabel", "build_labels"]


@dataclass(frozen=True)
class BuildLabel:
    """One build of an attempt, with the label that distinguishes it from the others.

    Attributes
    ----------
    build : BuildRecord
    variant : str
        Its macros that differ, and its module if there are several: ``RAGGED_KV=1 STREAM_K=0``; empty for a single
        build.
    problems : tuple of Problem
        Problems of the judged cases that ran it, the largest first.
    """

    build: BuildRecord
    variant: str
    problems: tuple[Problem, ...]

    @property
    def shapes(self) -> str:
        """The largest of the problems, and the number of further ones."""
        if not self.problems:
            return "no case ran it"
        more = len(self.problems) - 1
        return self.problems[0].label + (f" and {more} more" if more else "")


def build_labels(attempt: AttemptRecord) -> tuple[BuildLabel, ...]:
    """The builds of an attempt in their order, each with a unique label."""
    builds = attempt.builds
    words = Counter(word for build in builds for word in {build.module, *build.command})
    variants = []
    for build in builds:
        own = [word.removeprefix("-D") for word in (build.module, *build.command) if words[word] < len(builds)]
        variants.append(" ".join(own))
    repeated = Counter(variants)
    for number, build in enumerate(builds):
        if repeated[variants[number]] > 1:
            # Same source and options: another entry point, or other values that are not macros.
            variants[number] = f"{variants[number]} code {build.ptx_sha256[:8]}".strip()
    return tuple(
        BuildLabel(build, variant, _problems(attempt, build)) for build, variant in zip(builds, variants, strict=True)
    )


def _problems(attempt: AttemptRecord, build: BuildRecord) -> tuple[Problem, ...]:
    cases = attempt.verdict.cases if attempt.verdict else ()
    ran = dict.fromkeys(case.problem for case in cases if build.ptx_sha256 in case.run.get("ptx_sha256", ()))
    return tuple(sorted(ran, key=lambda problem: (-problem.scores, problem.label)))
