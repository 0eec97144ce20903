"""A user's kernel for commands: its Python runs in a guarded process, and this process only has data.

Commands that build, sanitize or time a kernel use it like a shipped one. They compile and run the text of its launch
plan, after the same checks as in the judge.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.candidate import file_of, prepare
from sdpalab.judge.sandbox.candidate_server import SERVER
from sdpalab.judge.sandbox.guarded import START_SECONDS, GuardedProcess, Quota, describe
from sdpalab.judge.sandbox.messages import CandidateReply, KernelDescription, LaunchNeeds, plain
from sdpalab.judge.sandbox.plans import MOST_PLAN, read_plan
from sdpalab.judge.sandbox.wire import WireError
from sdpalab.judge.sandbox.workshop import ConfinedWorkshop
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, Kernel, Numerics, StaticLimits, UnsupportedProblem
from sdpalab.kernels.plan import LaunchPlan, problem_buffers
from sdpalab.kernels.registry import get
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import FEATURES, Problem

__all__ = ["NotBuilt", "SandboxedKernel", "compile_for", "configured_kernel", "kernel_in_sandbox"]

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 300.0
"""Seconds for one answer, which may include the compilation of a Triton function."""
_CPU_SECONDS = 3600

_RAISED: Mapping[str, type[Exception]] = {
    Status.UNSUPPORTED.value: UnsupportedProblem,
    Status.INFRA_ERROR.value: MachineError,
}
"""Exception for each kind of failure; any other failure is a UserError."""


class NotBuilt(UserError):
    """The file holds a Python callable, called ``name``, which the lab does not build."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


@contextmanager
def kernel_in_sandbox(
    spec: str, *, arch: str | None = None, else_say: str, include_dirs: Sequence[Path] = ()
) -> Iterator[Kernel]:
    """The kernel named on a command line: a shipped one, or a user's from ``FILE.py[:NAME]`` in a guarded process.

    Parameters
    ----------
    spec : str
    arch : str, optional
        Target architecture of a user's Triton kernel. Default: the kernel's own.
    else_say : str
        Clause of the message for a Python callable: ``there is nothing to build``.
    include_dirs : sequence of Path
        Folders for ``#include`` beside those of a user's kernel.

    Raises
    ------
    UserError
        If the kernel is unknown, or the file does not load.
    NotBuilt
        If it is a callable.
    MachineError
        If no process can be started.
    """
    if not is_user_file(spec):
        yield get(spec)
        return
    kernel = SandboxedKernel(spec, arch=arch, else_say=else_say, include_dirs=include_dirs)
    try:
        yield kernel
    finally:
        kernel.close()


@contextmanager
def configured_kernel(
    name: str,
    problems: Sequence[Problem],
    settings: Mapping[str, str],
    *,
    else_say: str,
    include_dirs: Sequence[Path] = (),
) -> Iterator[tuple[Kernel, Config]]:
    """The kernel of :func:`kernel_in_sandbox` with its default configuration, changed by ``settings``.

    Raises
    ------
    UserError
        As :func:`kernel_in_sandbox`, or if a knob is unknown, or the kernel supports none of the problems.
    """
    with kernel_in_sandbox(name, else_say=else_say, include_dirs=include_dirs) as kernel:
        config = kernel.config_with(settings)
        reasons = [kernel.why_not(problem, config) for problem in problems]
        if reasons and reasons[0] is not None and None not in reasons:
            raise UserError(reasons[0])
        yield kernel, config


def compile_for(kernel: Kernel, arch: str) -> None:
    """Compile the Triton functions of a user's kernel for ``arch`` in its process."""
    if isinstance(kernel, SandboxedKernel):
        kernel.arch = arch


class SandboxedKernel(Kernel):
    """A kernel whose Python runs in a guarded process, until :meth:`close` ends the process.

    Attributes
    ----------
    described_source : str
        Text of its own source, as of :func:`sdpalab.kernels.source.source_text`.
    arch : str
        Target architecture of Triton.
    workshop : ConfinedWorkshop
        The process that compiles the modules of its plans.
    usable : bool
        False once its process has ended, hung, or sent an invalid answer.

    Raises
    ------
    UserError
        If it does not load.
    NotBuilt
        If it is a callable.
    MachineError
        If the process cannot be started.
    """

    def __init__(self, spec: str, *, arch: str | None, else_say: str, include_dirs: Sequence[Path] = ()) -> None:
        candidate, self.workshop = prepare(spec), ConfinedWorkshop(spec, include_dirs)
        self.usable = True
        self._include_dirs = tuple(include_dirs)
        self._spec, self._file = spec, file_of(spec)
        reads = (*candidate.files, *include_dirs)
        self._process = GuardedProcess(
            SERVER, Quota(cpu_seconds=_CPU_SECONDS), untrusted=True, read=reads
        ).await_ready()
        try:
            if self._process.confinement != "namespaces":
                _log.warning("%s: %s", spec, describe(self._process.confinement, self._process.confined_by))
            self._ask("load", seconds=START_SECONDS, kind=candidate.kind, spec=spec)
            description = self._ask("description")[0].description
            if description is None:
                raise UserError(f"{spec} does not load: its process did not describe it")
            if description.kind == "callable":
                raise NotBuilt(f"{spec} is a Python callable: {else_say}, but it can be judged", description.name)
        except BaseException:
            self.close()
            raise
        self._describe(description)
        self.arch = arch or self.default_arch

    def _describe(self, about: KernelDescription) -> None:
        self.name, self.idea, self.described_source = about.name, about.idea, about.source
        self.configs, self.knobs = about.configs, about.knobs
        self.min_arch, self.only_arch, self.lse = about.min_arch, about.only_arch, about.lse
        self.supports, self.features = lambda problem: None, FEATURES
        self.reject, self.numerics, self.limits = self._reject, self._numerics, self._limits

    def why_not_problem(self, problem: Problem) -> str | None:
        """None: the process gives all reasons at once."""
        return None

    @property
    def folder(self) -> Path:
        """Folder of the user's file."""
        return self._file.resolve().parent

    def resolved(self, problem: Problem, config: Config, sms: int) -> Config:
        """See :meth:`Kernel.resolved`."""
        return Config(self._ask("config", problem=problem, config=config, sms=sms)[0].config or {})

    def launch_plan(
        self,
        problem: Problem,
        config: Config | None = None,
        *,
        lse: bool = False,
        sms: int | None = None,
    ) -> LaunchPlan:
        """See :meth:`Kernel.launch_plan`; Triton's modules are already compiled for :attr:`arch`."""
        config = self.default_config if config is None else config
        _, results = self._ask("plan", room=MOST_PLAN, problem=problem, config=config, lse=lse, sms=sms, arch=self.arch)
        data = results["plan"].tobytes() if "plan" in results else b""
        plan = read_plan(data, problem_buffers(problem, lse=lse), self._include_dirs).plan(modules=True)
        return self.workshop.own(plan)

    def survey(
        self, configs: Sequence[Config], problems: Sequence[Problem], sms: Sequence[int]
    ) -> list[str | list[LaunchNeeds]]:
        """Check many configurations at once for a search, before compilation.

        Returns for each configuration the reason why it cannot run one of the problems, or the needs of each launch,
        for every problem on GPUs with ``sms`` multiprocessors.
        """
        reply, _ = self._ask("survey", configs=configs, problems=problems, sms=sms)
        if reply.survey is None or len(reply.survey) != len(configs):
            raise UserError(f"{self._spec}: its process did not answer for every configuration")
        return list(reply.survey)

    def _plan(self, problem: Problem, config: Config) -> LaunchPlan:
        return self.launch_plan(problem, config, lse=self.lse)

    def close(self) -> None:
        """End its processes."""
        self._process.close()
        self.workshop.close()

    def _reject(self, problem: Problem, config: Config) -> str | None:
        return self._ask("refusal", problem=problem, config=config)[0].refusal

    def _numerics(self, config: Config) -> Numerics:
        declared = self._ask("numerics", config=config)[0].numerics
        return Numerics.from_dict(declared.model_dump()) if declared else Numerics()

    def _limits(self, problem: Problem) -> StaticLimits:
        declared = self._ask("limits", problem=problem)[0].limits
        try:
            return TypeAdapter(StaticLimits).validate_python(declared)
        except ValidationError as error:
            raise UserError(f"{self._spec} declares limits that are none ({_first(error)})") from None

    def _ask(
        self, do: str, *, room: int = 0, seconds: float = ANSWER_SECONDS, **fields: Any
    ) -> tuple[CandidateReply, dict[str, npt.NDArray[np.uint8]]]:
        """Send an order; return the answer, or raise the exception of its failure."""
        self._process.forget_output()
        usable, self.usable = self.usable, False
        order, deadline = {"do": do, **fields}, time.monotonic() + seconds
        try:
            reply, results = self._process.ask(CandidateReply, order, {}, room, deadline)
        except WireError as error:
            raise self._process.no_answer(error, self._spec, seconds) from None
        self.usable = usable
        if reply.status is not None:
            raise _RAISED.get(reply.status, UserError)(_failure(self._spec, reply))
        return reply, results


def _failure(spec: str, reply: CandidateReply) -> str:
    """Reason of a failure; for an exception with the file that raised it."""
    return f"{spec} {reply.reason}" if reply.status == Status.CRASHED else reply.reason


def _first(error: ValidationError) -> str:
    return plain(error.errors()[0]["msg"])
