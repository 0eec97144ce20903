"""Two bundles side by side: kernels, cases, builds, figures, environments and regressions.

Kernels are matched by name and configuration, then by name alone; cases by name; builds by module and the largest
problem that ran them, because different configurations have different macros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdpalab.evidence.records import AttemptRecord, Environment
from sdpalab.evidence.report.build_labels import BuildLabel, build_labels
from sdpalab.evidence.report.data import ReportData
from sdpalab.judge.verdict import Case

__all__ = ["BuildChange", "BundleComparison", "CaseChange", "FigureChange", "KernelChange", "compare_bundles"]

USED = ("registers", "shared_bytes", "spill_bytes", "stack_bytes", "blocks_per_sm", "warps_per_sm")
"""Compared resources of a build."""


@dataclass(frozen=True)
class CaseChange:
    """One case in both bundles; None where it was not judged."""

    name: str
    before: Case | None
    after: Case | None

    @property
    def regressed(self) -> bool:
        """True if it passed before, and was judged again and failed."""
        return self.before is not None and self.before.passed and self.after is not None and not self.after.passed

    @property
    def changed(self) -> bool:
        """True if the statuses differ, or only one bundle has the case."""
        return self.statuses[0] != self.statuses[1]

    @property
    def statuses(self) -> tuple[str, str]:
        """Before and after; empty where it was not judged."""
        first, second = (each.status.value if each else "" for each in (self.before, self.after))
        return first, second

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """The largest error as a share of its limit, before and after."""
        first, second = (
            max(each.shares.values(), default=None) if each else None for each in (self.before, self.after)
        )
        return first, second

    @property
    def same_output(self) -> bool | None:
        """Whether the outputs are bit-identical; None if the inputs differ, or an output is missing."""
        if self.before is None or self.after is None:
            return None
        first, second = self.before.digests, self.after.digests
        outputs = self.before.problem.outputs
        if not first.keys() & second.keys() >= outputs.keys() or any(first[name] != second.get(name) for name in "qkv"):
            return None
        return all(first[name] == second[name] for name in outputs)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        facts = {"status": list(self.statuses), "share": list(self.shares), "same_output": self.same_output}
        return {"name": self.name, **facts, "regressed": self.regressed}


@dataclass(frozen=True)
class BuildChange:
    """The builds of both bundles for one module and shape; None where there is none."""

    name: str
    before: BuildLabel | None
    after: BuildLabel | None

    @property
    def same_code(self) -> bool:
        """True if both have the same PTX."""
        digests = {each.build.ptx_sha256 if each else None for each in (self.before, self.after)}
        return len(digests) == 1

    @property
    def used(self) -> dict[str, tuple[int | None, int | None]]:
        """Each of :data:`USED`, before and after."""
        read = [each.build.resources if each else None for each in (self.before, self.after)]
        first, second = ({name: getattr(one, name) if one else None for name in USED} for one in read)
        return {name: (first[name], second[name]) for name in USED}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        used = {name: list(pair) for name, pair in self.used.items()}
        return {"name": self.name, "same_code": self.same_code, **used}


@dataclass(frozen=True)
class FigureChange:
    """A figure of an attempt that at least one bundle has, with its unit and its kind."""

    name: str
    unit: str
    kind: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class KernelChange:
    """One kernel in both bundles; None where it was not tried."""

    kernel: str
    before: AttemptRecord | None
    after: AttemptRecord | None
    cases: tuple[CaseChange, ...]
    builds: tuple[BuildChange, ...]
    figures: tuple[FigureChange, ...]

    @property
    def configs(self) -> tuple[str, str]:
        """Before and after."""
        first, second = (each.config if each else "" for each in (self.before, self.after))
        return first, second

    @property
    def title(self) -> str:
        """The kernel, with its configuration, or the knobs that changed."""
        first, second = (config.split() for config in self.configs)
        changed = (
            [f"{a} -> {b}" for a, b in zip(first, second, strict=False) if a != b] if self.before and self.after else []
        )
        return f"{self.kernel} ({', '.join(changed)})" if changed else self.kernel

    @property
    def statuses(self) -> tuple[str, str]:
        """The verdicts before and after: a status, ``NOT JUDGED``, or empty where the kernel was not tried."""
        first, second = (_status(each) for each in (self.before, self.after))
        return first, second

    @property
    def counts(self) -> tuple[str, str]:
        """Numbers of passed cases and of all cases, before and after."""
        cases = [each.verdict.cases if each and each.verdict else () for each in (self.before, self.after)]
        first, second = (f"{sum(case.passed for case in each)}/{len(each)}" if each else "-" for each in cases)
        return first, second

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """The largest share of a limit over all cases, before and after."""
        first, second = (
            max((pair for case in self.cases if (pair := case.shares[side]) is not None), default=None)
            for side in (0, 1)
        )
        return first, second

    @property
    def outputs(self) -> str:
        """Number of bit-identical outputs among the cases with the same inputs."""
        compared = [case.same_output for case in self.cases if case.same_output is not None]
        return f"{sum(compared)} of {len(compared)} the same" if compared else "-"

    @property
    def regressed(self) -> bool:
        """True if it passed before, and was tried again and failed."""
        return self.before is not None and self.before.passed and self.after is not None and not self.after.passed

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        facts = {"config": list(self.configs), "status": list(self.statuses), "share": list(self.shares)}
        parts = {"cases": [each.to_dict() for each in self.cases], "builds": [each.to_dict() for each in self.builds]}
        return {"kernel": self.kernel, **facts, **parts, "figures": [vars(each) for each in self.figures]}


@dataclass(frozen=True)
class BundleComparison:
    """Two bundles: ``before``, the reference, and ``after``."""

    before: ReportData
    after: ReportData
    kernels: tuple[KernelChange, ...]

    @property
    def regressions(self) -> tuple[str, ...]:
        """Regressions: one sentence for each case, or for a kernel without a case, that passed before and fails now."""
        sentences = []
        for kernel in self.kernels:
            cases = [case for case in kernel.cases if case.regressed]
            sentences += [f"{kernel.kernel}, {case.name}: PASSED, and now {case.statuses[1]}" for case in cases]
            if kernel.regressed and not cases:
                sentences.append(f"{kernel.kernel}: PASSED, and now {kernel.statuses[1]}")
        return tuple(sentences)

    @property
    def environment(self) -> tuple[tuple[str, str, str], ...]:
        """Differences of the environments: name, before, after."""
        first, second = _facts(self.before.environment), _facts(self.after.environment)
        names = sorted(first.keys() | second.keys())
        return tuple((n, first.get(n, "none"), second.get(n, "none")) for n in names if first.get(n) != second.get(n))


def compare_bundles(before: ReportData, after: ReportData) -> BundleComparison:
    """Match the kernels, cases and builds of two bundles; the result contains every one of either bundle."""
    matched = _matched(before.attempts, after.attempts)
    return BundleComparison(before, after, tuple(_kernel(first, second) for first, second in matched))


def _matched(
    before: Sequence[AttemptRecord], after: Sequence[AttemptRecord]
) -> list[tuple[AttemptRecord | None, AttemptRecord | None]]:
    left = list(after)
    partners: dict[int, AttemptRecord] = {}
    for same_config in (True, False):
        for n, attempt in enumerate(before):
            for other in left if n not in partners else ():
                if other.kernel == attempt.kernel and (other.config == attempt.config or not same_config):
                    partners[n] = other
                    left.remove(other)
                    break
    pairs: list[tuple[AttemptRecord | None, AttemptRecord | None]] = [
        (attempt, partners.get(n)) for n, attempt in enumerate(before)
    ]
    return [*pairs, *((None, other) for other in left)]


def _kernel(before: AttemptRecord | None, after: AttemptRecord | None) -> KernelChange:
    both = [before, after]
    cases = [{case.name: case for case in (each.verdict.cases if each and each.verdict else ())} for each in both]
    builds = [{_build_name(label): label for label in (build_labels(each) if each else ())} for each in both]
    figures = [{(f.name, f.unit, f.kind.value): f.value for f in (each.figures if each else ())} for each in both]
    return KernelChange(
        kernel=next(each.kernel for each in both if each),
        before=before,
        after=after,
        cases=tuple(CaseChange(n, cases[0].get(n), cases[1].get(n)) for n in _names(*cases)),
        builds=tuple(BuildChange(n, builds[0].get(n), builds[1].get(n)) for n in _names(*builds)),
        figures=tuple(FigureChange(n[0], n[1], n[2], figures[0].get(n), figures[1].get(n)) for n in _names(*figures)),
    )


def _names(first: dict[Any, Any], second: dict[Any, Any]) -> list[Any]:
    """Unique keys of both, in order."""
    return list({**first, **second})


def _build_name(label: BuildLabel) -> str:
    shape = label.problems[0].label if label.problems else label.variant or "no case ran it"
    return f"{label.build.module}, {shape}, {label.build.arch}"


def _status(attempt: AttemptRecord | None) -> str:
    if attempt is None:
        return ""
    return attempt.verdict.status.value if attempt.verdict else "NOT JUDGED"


def _facts(environment: Environment) -> dict[str, str]:
    """The environment as text by name."""
    harness, values = environment.harness, environment.to_dict()
    shown = {name: value for name, value in values.items() if name not in ("packages", "harness") and value is not None}
    facts = {name.replace("_", " "): str(value) for name, value in shown.items()}
    commit = f"{(harness.commit or 'none')[:12]}{', with changes' if harness.dirty else ''}"
    return {**facts, **environment.packages, "commit": commit, "sdpalab": harness.version}
