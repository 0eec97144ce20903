"""GREEN before FAST: timing a kernel of the lab requires a permit, and only PASSED verdicts give permits.

A permit holds for one kernel, one configuration, one architecture with its number of multiprocessors, and problems
whose PTX the verdict's cases have run, by its digest. Before timing, the code is built again and compared with these
digests: code that changed after the verdict has no permit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdpalab.compile import Build, build
from sdpalab.errors import UserError
from sdpalab.judge.cases import cases_for
from sdpalab.judge.same_code import cases_with_same_code
from sdpalab.judge.sandbox.candidate import Candidate
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Verdict
from sdpalab.kernels.equivalent import modules_of
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import Problem

__all__ = ["NOT_BUILT", "GateOutcome", "TimingPermit", "judge_for_timing", "permit_by"]

NOT_BUILT = "only what the lab builds can be timed"
"""Message for a Python callable, which has no builds to time."""


class TimingPermit:
    """The right to time a kernel, issued only by :func:`permit_by` and :func:`judge_for_timing`.

    Attributes
    ----------
    name : str
        Name of the kernel in a measurement.
    kernel : Kernel
    config : Config
    arch : str
        Architecture of the builds, such as ``sm_89``.
    sms : int
        Multiprocessors of the GPU of its plans.
    proven_by : mapping of Problem to str
        Name of the verdict's record, or ``""`` for a verdict of this process.
    """

    __slots__ = ("_code", "arch", "config", "kernel", "name", "proven_by", "sms")

    name: str
    kernel: Kernel
    config: Config
    arch: str
    sms: int
    proven_by: Mapping[Problem, str]
    _code: Mapping[Problem, frozenset[str]]

    def __init__(self) -> None:
        raise TypeError("a TimingPermit comes from a PASSED verdict: permit_by or judge_for_timing issues it")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a TimingPermit does not change")

    def named(self, name: str) -> TimingPermit:
        """The same permit with another name in a measurement, for example for one of several configurations."""
        values = {slot: getattr(self, slot) for slot in self.__slots__}
        return _issue(**{**values, "name": name})

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems that the permit holds for."""
        return tuple(self._code)

    def prepared(self, problem: Problem) -> tuple[LaunchPlan, tuple[Build, ...]]:
        """The plan for a problem, and the builds of its launches, equal to the judged ones.

        Raises
        ------
        UserError
            If the permit is not for this problem, or the present build differs from the judged code.
        MachineError
            Without a compiler.
        """
        if problem not in self._code:
            raise UserError(
                f"{self.name} is not timed on {problem.label}: no PASSED verdict on its code there is at hand; "
                "judge_for_timing judges it"
            )
        plan = self.kernel.launch_plan(problem, self.config, sms=self.sms)
        builds = tuple(build(module, self.arch) for module in modules_of(plan))
        if {each.ptx_sha256 for each in builds} != self._code[problem]:
            raise UserError(f"{self.name} is not timed on {problem.label}: its code changed after it was judged")
        return plan, builds


def _issue(**values: Any) -> TimingPermit:
    permit = object.__new__(TimingPermit)
    for name, value in values.items():
        object.__setattr__(permit, name, value)
    return permit


def permit_by(
    kernel: Kernel,
    config: Config,
    problems: Sequence[Problem],
    verdicts: Mapping[str, Verdict],
    *,
    arch: str,
    sms: int,
) -> TimingPermit:
    """The permit that PASSED verdicts give a kernel; each problem's PTX must be among that of their cases.

    Parameters
    ----------
    kernel, config
        As :meth:`~sdpalab.kernels.kernel.Kernel.launch_plan` takes them.
    problems : sequence of Problem
    verdicts : mapping of str to Verdict
        Verdicts by record name; those on other kernels or configurations are ignored.
    arch : str
        Architecture such as ``sm_89``.
    sms : int
        Multiprocessors of the GPU of the plans.

    Raises
    ------
    UserError
        If a problem has no verdict, or the kernel rejects it or does not build.
    """
    permit = _permit(kernel, config, problems, verdicts, arch, sms)
    missing = [problem.label for problem in problems if problem not in permit.problems]
    if missing or not problems:
        where = ", ".join(missing) or "any problem"
        raise UserError(f"{kernel.name} ({config}) is not timed: no PASSED verdict covers its code for {where}")
    return permit


def _permit(
    kernel: Kernel, config: Config, problems: Sequence[Problem], verdicts: Mapping[str, Verdict], arch: str, sms: int
) -> TimingPermit:
    """A permit for the problems that a verdict covers."""
    ran = {
        record: frozenset(digest for case in verdict.cases for digest in case.run.get("ptx_sha256", ()))
        for record, verdict in verdicts.items()
        if verdict.passed and (verdict.kernel, verdict.config) == (kernel.name, str(config))
    }
    code, proven_by = {}, {}
    for problem in problems:
        modules = modules_of(kernel.launch_plan(problem, config, sms=sms)) if ran else ()
        digests = frozenset(build(module, arch).ptx_sha256 for module in modules)
        record = next((name for name, judged in ran.items() if digests and digests <= judged), None)
        if record is not None:
            code[problem], proven_by[problem] = digests, record
    return _issue(name=kernel.name, kernel=kernel, config=config, arch=arch, sms=sms, proven_by=proven_by, _code=code)


@dataclass(frozen=True)
class GateOutcome:
    """Result of the gate for a kernel: its permit, or the reason for its absence.

    Attributes
    ----------
    kernel : str
    config : str
    arch : str
    sms : int
    permit : TimingPermit or None
    left_out : mapping of str to str
        Labels of problems without permission, with the reasons.
    verdict : Verdict or None
        Verdict of the simulator, if one was needed.
    reason : str
        Why the permit is missing; empty with a permit.
    """

    kernel: str
    config: str
    arch: str
    sms: int
    permit: TimingPermit | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    reason: str = ""

    def permit_for(self, problem: Problem) -> TimingPermit | None:
        """The permit, if it holds for the problem."""
        return self.permit if self.permit is not None and problem in self.permit.problems else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``proven_by`` has the records of verdicts by problem label."""
        recorded = self.permit.proven_by if self.permit else {}
        return {
            **(self.verdict.to_dict() if self.verdict else {}),
            "kernel": self.kernel,
            "config": self.config,
            "arch": self.arch,
            "sms": self.sms,
            "passed": self.permit is not None,
            "reason": self.reason,
            "left_out": dict(self.left_out),
            "proven_by": {problem.label: record for problem, record in recorded.items() if record},
        }


def judge_for_timing(
    kernel: Kernel,
    config: Config,
    problems: Sequence[Problem],
    *,
    arch: str,
    sms: int,
    candidate: Candidate | None = None,
    recorded: Mapping[str, Verdict] | None = None,
    device: str = "sim",
    include_dirs: Sequence[Path] = (),
) -> GateOutcome:
    """A permit from recorded verdicts on the PTX of each problem, or from a new verdict.

    The new verdict is on the twelve cases, with the dtypes and masks to be timed, and on small problems with the code
    of problems without a verdict, which are often too large for the simulator; a measurement checks the outputs of
    those (:mod:`sdpalab.measure.outputs`).

    Parameters
    ----------
    kernel, config, problems, arch, sms
        As :func:`permit_by` takes them.
    candidate : str, CudaKernel or callable, optional
        The kernel in the form of :func:`sdpalab.judge.judge`. Default: the kernel itself.
    recorded : mapping of str to Verdict, optional
        Verdicts by record name.
    device : {"sim", "gpu"}
        Device of the new verdict.
    include_dirs : sequence of Path
        Folders for ``#include`` of a user's file.

    Raises
    ------
    MachineError
        If the machine cannot judge. A kernel that cannot be built or judged has a reason in the outcome.
    """

    def outcome(**more: Any) -> GateOutcome:
        return GateOutcome(kernel.name, str(config), arch, sms, **more)

    reason = kernel.why_not_on(arch)
    if reason is not None:
        return outcome(reason=reason)
    spec: Candidate = kernel if candidate is None else candidate
    try:
        known = dict(recorded or {})
        permit = _permit(kernel, config, problems, known, arch, sms)
        unproven = [problem for problem in problems if problem not in permit.problems]
        if problems and not unproven:
            return outcome(permit=permit)
        covering = cases_with_same_code(kernel, config, unproven, sms=sms)
        kinds = sorted({(problem.dtype, problem.causal, problem.task) for problem in unproven})
        specs = [
            each
            for dtype, causal, task in kinds
            for each in cases_for("quick", dtype=dtype, causal=causal, task=task, claims=False)
        ]
        verdict = judge_candidate(
            spec,
            [*specs, *covering.specs],
            device=device,
            arch=arch,
            sms=sms,
            config={name: str(value) for name, value in config.items()},
            until_failure=True,
            include_dirs=include_dirs if isinstance(spec, str) and is_user_file(spec) else (),
        )
        if not verdict.passed:
            why = f"it is {verdict.status.value} on {verdict.device}: {verdict.reason}"
            return outcome(verdict=verdict, left_out=covering.missing, reason=why)
        permit = _permit(kernel, config, problems, {**known, "": verdict}, arch, sms)
    except UserError as error:
        return outcome(reason=str(error))
    left_out = dict(covering.missing)
    for problem in problems:
        if problem not in permit.problems:
            left_out.setdefault(problem.label, "no case of its verdict ran its code")
    return outcome(permit=permit, left_out=left_out, verdict=verdict)
