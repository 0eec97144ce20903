"""GREEN before FAST: a kernel of the lab is timed only with a permit, and a permit comes from a PASSED verdict alone.

A permit holds for one kernel, one configuration, one architecture with its number of multiprocessors, and problems
whose PTX the verdict's cases have run, by its digest. What is timed is built again and compared with these digests:
code that changed after the verdict has no permit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdpalab.compile import Build, build
from sdpalab.errors import UserError
from sdpalab.judge.cases import cases_for
from sdpalab.judge.covering import covering_cases
from sdpalab.judge.sandbox.candidate import Candidate
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Verdict
from sdpalab.kernels.equivalent import modules_of
from sdpalab.kernels.kernel import Config, Kernel
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import Problem

__all__ = ["GateOutcome", "TimingPermit", "judge_for_timing", "permit_by"]


class TimingPermit:
    """The right to time a kernel; :func:`permit_by` and :func:`judge_for_timing` issue it, and nothing else does.

    Attributes
    ----------
    name : str
        The kernel's name in a measurement.
    kernel : Kernel
    config : Config
    arch : str
        What it was built for, such as ``sm_89``.
    sms : int
        Multiprocessors of the GPU that its plans are for.
    proven_by : mapping of Problem to str
        The record of the verdict, or ``""`` for a verdict of this process.
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
        """The same permit under another name in a measurement, such as of one of several configurations."""
        values = {slot: getattr(self, slot) for slot in self.__slots__}
        return _issue(**{**values, "name": name})

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems that it holds for."""
        return tuple(self._code)

    def prepared(self, problem: Problem) -> tuple[LaunchPlan, tuple[Build, ...]]:
        """The plan for a problem, and the builds of its launches, which are those that were judged.

        Raises
        ------
        UserError
            If the permit is not for this problem, or the kernel builds to other code than was judged.
        MachineError
            If there is no compiler.
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
    """The permit that PASSED verdicts give a kernel; it needs each problem's PTX among what their cases ran.

    Parameters
    ----------
    kernel, config
        As :meth:`~sdpalab.kernels.kernel.Kernel.launch_plan` takes them.
    problems : sequence of Problem
    verdicts : mapping of str to Verdict
        By the names of their records; verdicts on other kernels or configurations count for nothing.
    arch : str
        Such as ``sm_89``.
    sms : int
        Multiprocessors of the GPU that the plans are for.

    Raises
    ------
    UserError
        If a problem has no verdict, or the kernel refuses it or does not build.
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
    """A permit for those of the problems that a verdict covers."""
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
    """A kernel at the gate: its permit, or the reason why it has none.

    Attributes
    ----------
    kernel : str
    config : str
    arch : str
    sms : int
    permit : TimingPermit or None
    left_out : mapping of str to str
        By label, the problems on which it may not be timed, with the reasons.
    verdict : Verdict or None
        The simulator's, where one was needed.
    reason : str
        Why there is no permit; empty if there is one.
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
        """The permit if it holds for the problem."""
        return self.permit if self.permit is not None and problem in self.permit.problems else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``proven_by`` has the records of verdicts by the labels of problems."""
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
    """A permit from recorded verdicts on the PTX of each problem, or from a verdict now.

    It judges the twelve cases, with the dtypes and masks that are to be timed, and small problems with the code of
    those that no verdict covers, which themselves are often too large for the simulator: a measurement checks their
    outputs (:mod:`sdpalab.measure.outputs`).

    Parameters
    ----------
    kernel, config, problems, arch, sms
        As :func:`permit_by` takes them.
    candidate : str, CudaKernel or callable, optional
        The kernel as :func:`sdpalab.judge.judge` takes it. Default: the kernel itself.
    recorded : mapping of str to Verdict, optional
        By the names of their records.
    device : {"sim", "gpu"}
        What judges it.
    include_dirs : sequence of Path
        Folders for ``#include``, of a user's file.

    Raises
    ------
    MachineError
        If the machine cannot judge. A kernel that cannot be built or judged has a reason in the outcome.
    """

    def outcome(**more: Any) -> GateOutcome:
        return GateOutcome(kernel.name, str(config), arch, sms, **more)

    reason = kernel.arch_reason(arch)
    if reason is not None:
        return outcome(reason=reason)
    spec: Candidate = kernel if candidate is None else candidate
    try:
        known = dict(recorded or {})
        permit = _permit(kernel, config, problems, known, arch, sms)
        unproven = [problem for problem in problems if problem not in permit.problems]
        if problems and not unproven:
            return outcome(permit=permit)
        covering = covering_cases(kernel, config, unproven, sms=sms)
        kinds = sorted({(problem.dtype, problem.causal) for problem in unproven})
        specs = [
            each for dtype, causal in kinds for each in cases_for("quick", dtype=dtype, causal=causal, claims=False)
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
