"""Builds of a verdict, taken from the executed launch plans and independent of the candidate's Python."""

from __future__ import annotations

from collections.abc import Iterable

from sdpalab.compile import build, resources
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.built import BuiltModule, built_module
from sdpalab.judge.sandbox.plans import SentPlan, SentStep
from sdpalab.judge.verdict import Verdict
from sdpalab.problem import Problem
from warpsan.build import Workshop, foreign

__all__ = ["ExecutedPlans"]


class ExecutedPlans:
    """Collects the launches of executed plans; an instance is the ``on_plan`` of the judge."""

    def __init__(self) -> None:
        self._steps: list[tuple[SentStep, str]] = []

    def __call__(self, problem: Problem, plan: SentPlan, arch: str) -> None:
        """Record each launch whose code is new."""
        for step in plan.steps:
            if isinstance(step, SentStep) and all(step.code != known.code for known, _ in self._steps):
                self._steps.append((step, arch))

    def builds(
        self, verdict: Verdict, known: Iterable[BuiltModule] = (), *, workshop: Workshop | None = None
    ) -> tuple[BuiltModule, ...]:
        """``known``, and every further build that a case or a problem in exact arithmetic of ``verdict`` ran.

        ``workshop`` compiles modules that are not in the cache (:func:`sdpalab.judge.sandbox.workshop.workshop_for`).
        Resources of a further build are read only if the first case ran it; reading all would take a minute.

        Raises
        ------
        MachineError
            If a build of this process differs from the executed build, which was not kept.
        """
        ran = {digest for case in verdict.cases for digest in case.run.get("ptx_sha256", ())}
        ran |= {digest for each in verdict.algebra for digest in each.ptx_sha256}
        asked = {digest for case in verdict.cases[:1] for digest in case.run.get("ptx_sha256", ())}
        builds = {each.build.ptx_sha256: each for each in known}
        for step, arch in self._steps:
            if ran <= builds.keys():
                break
            try:
                built = build(foreign(step.code, workshop) if workshop else step.code, arch)
            except UserError:
                continue  # not compiled means not run, as the verdict shows
            if built.ptx_sha256 not in builds:
                used = resources(built, step.launch()) if built.ptx_sha256 in asked else None
                builds[built.ptx_sha256] = built_module(step.code, built, used)
        if not ran <= builds.keys():
            raise MachineError(
                f"the code of {verdict.kernel} that was judged differs from its build in this process: "
                "the build cache stored nothing"
            )
        return tuple(builds.values())
