"""The process that runs the Python of a candidate: ``candidate_server.main(read_fd, write_fd)``, started under guard.

It serves the judge (:class:`sdpalab.judge.sandbox.isolation.CandidateProcesses`) and commands that build or time a
kernel (:class:`sdpalab.judge.sandbox.sandboxed.SandboxedKernel`). It has no reference and is not trusted. A callable
returns its output; a kernel that the lab builds returns declarations and launch plans as data, which another process
executes. The process receives neither the kind of the inputs nor their seed, and only executes orders, which fix the
data, the memory and the number of runs.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.callables import BadOutput, CallableRunner
from sdpalab.judge.sandbox.candidate import file_of
from sdpalab.judge.sandbox.messages import plain
from sdpalab.judge.sandbox.plans import send_plan
from sdpalab.judge.sandbox.wire import serve
from sdpalab.judge.signatures import adapted
from sdpalab.judge.strides import Strides
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, Kernel, UnsupportedProblem
from sdpalab.kernels.source import source_text
from sdpalab.problem import Problem

__all__ = ["SERVER", "main"]

SERVER = __name__

Array = npt.NDArray[Any]
Answer = tuple[dict[str, Any], dict[str, Array]]

_DECODED: Mapping[str, Callable[[Any], Any]] = {
    "problem": lambda fields: Problem(**fields),
    "problems": lambda many: [Problem(**fields) for fields in many],
    "config": Config,
    "configs": lambda many: [Config(knobs) for knobs in many],
    "strides": Strides,
}
"""Decoders of the fields of an order that are not plain JSON values."""
_STATUSES = (
    (UnsupportedProblem, Status.UNSUPPORTED),
    (UserError, Status.BUILD_FAILED),
    (MachineError, Status.INFRA_ERROR),
)
"""Status of an exception while a candidate is loaded, or a kernel answers; of any other CRASHED."""


def main(read_fd: int, write_fd: int) -> None:
    """Serve one client until it closes the wire."""
    serve(read_fd, write_fd, _CandidateServer().answer)


class _CandidateServer:
    """Server of one loaded candidate. Each order ``do`` is the method of that name, with the order's other fields."""

    def __init__(self) -> None:
        self._loaded: Any = None
        self._runner: CallableRunner | None = None

    def answer(self, order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        """Execute an order."""
        fields = {name: value for name, value in order.items() if name not in ("do", "number", "arrays")}
        fields = {name: _DECODED[name](value) if name in _DECODED else value for name, value in fields.items()}
        calls: Mapping[str, Callable[..., Answer]] = {"load": self._load, "call": self._call, "again": self._again}
        try:
            if order["do"] in calls:
                return calls[order["do"]](arrays, **fields)
            reply = getattr(self, f"_{order['do']}")(**fields)
        except BaseException as error:
            status, reason = self._failure(error, called=order["do"] in ("call", "again"))
            return {"status": status.value, "reason": reason}, {}
        if isinstance(reply, bytes):
            return {"status": None}, {"plan": np.frombuffer(reply, np.uint8)}
        return {"status": None, order["do"]: reply}, {}

    def _failure(self, error: BaseException, *, called: bool) -> tuple[Status, str]:
        """Status and reason of an exception; ``called``: of a callable."""
        if called and isinstance(error, BadOutput):
            return Status.BAD_OUTPUT, str(error)
        if called and type(error).__name__ == "KernelHazard":  # without Triton its module is not imported
            return Status.HAZARD, str(error)
        known = () if called else (status for kind, status in _STATUSES if isinstance(error, kind))
        status = next(iter(known), Status.CRASHED)
        return status, _raised(error) if status is Status.CRASHED else _text_of(error)

    @property
    def _kernel(self) -> Kernel:
        assert isinstance(self._loaded, Kernel), "the candidate is not a kernel"
        return self._loaded

    @property
    def _callable(self) -> CallableRunner:
        assert self._runner is not None, "the candidate is not a callable"
        return self._runner

    def _load(self, arrays: Mapping[str, Array], kind: str, spec: str) -> Answer:
        """Load the candidate: a registry name, a user's file, an importable function, or a pickled object."""
        if kind == "registry":
            from sdpalab.kernels.registry import get

            self._loaded = get(spec)
        elif kind == "file":
            from sdpalab.kernels.userfile import load_user_kernel

            _install_extensions(spec)
            self._loaded = load_user_kernel(spec)
        elif kind == "module":
            self._loaded = _imported(spec)
        else:
            import cloudpickle

            self._loaded = cloudpickle.loads(arrays["pickle"].tobytes())
        return {"status": None}, {}

    # Orders of the judge.

    def _about(
        self, settings: Mapping[str, str] | None, arch: str | None, problems: Sequence[Problem], signature: str
    ) -> Mapping[str, Any]:
        """Description of the candidate under these settings (:class:`sdpalab.judge.sandbox.messages.About`)."""
        if not isinstance(self._loaded, Kernel):
            self._runner = CallableRunner(adapted(self._loaded, signature))
            return self._runner.describe() | {"signature": signature}
        if signature:
            raise UserError(f"signature {signature} is that of a function, and {self._loaded.name} is a kernel")
        kernel, arch = self._loaded, arch or self._loaded.default_arch
        config = kernel.default_config if settings is None else kernel.config_with(settings)
        free = {name: value for name, value in kernel.algebraic.items() if name not in (settings or {})}
        return {
            "kind": "cuda",
            "name": kernel.name,
            "config": config,
            "arch": arch,
            "refuses": kernel.why_not_on(arch),
            "lse": kernel.lse,
            "algebraic": free,
            "numerics": kernel.numerics_of(config).to_dict(),
            "declares_support": kernel.declares_support,
            "rejects": [kernel.why_not(problem, config) for problem in problems],
        }

    def _call(
        self, arrays: Mapping[str, Array], problem: Problem, poison: int, reuse: bool, strides: Strides
    ) -> Answer:
        """Call a callable."""
        outputs, notes = self._callable.run(problem, arrays, poison, reuse, strides)
        return {"status": None, **notes}, outputs

    def _again(self, arrays: Mapping[str, Array]) -> Answer:
        """Read the output of the last call again."""
        return {"status": None}, self._callable.look_again()

    # Orders of both.

    def _plan(self, problem: Problem, config: Config, lse: bool, sms: int | None, arch: str) -> bytes:
        return send_plan(self._kernel.launch_plan(problem, config, lse=lse, sms=sms), arch)

    # Orders of commands: fields and methods of Kernel, as data.

    def _description(self) -> Mapping[str, Any]:
        """See :class:`sdpalab.judge.sandbox.messages.KernelDescription`."""
        kernel = self._loaded
        if not isinstance(kernel, Kernel):
            return {"kind": "callable", "name": str(getattr(kernel, "__name__", type(kernel).__name__))}
        names = ("name", "idea", "configs", "knobs", "min_arch", "only_arch", "lse")
        return {"kind": "kernel", "source": source_text(kernel), **{name: getattr(kernel, name) for name in names}}

    def _facts(self) -> str:
        """Facts of a submission in a public format, as JSON."""
        return json.dumps(CallableRunner(self._loaded).facts())

    def _numerics(self, config: Config) -> Mapping[str, Any]:
        return self._kernel.numerics_of(config).to_dict()

    def _limits(self, problem: Problem) -> Mapping[str, Any]:
        return asdict(self._kernel.static_limits(problem))

    def _refusal(self, problem: Problem, config: Config) -> str | None:
        return self._kernel.why_not(problem, config)

    def _config(self, problem: Problem, config: Config, sms: int) -> Config:
        return self._kernel.resolved(problem, config, sms)

    def _survey(
        self, configs: Sequence[Config], problems: Sequence[Problem], sms: Sequence[int]
    ) -> list[str | list[dict[str, int]]]:
        """For each configuration the reason why it cannot run one of the problems, or the needs of each launch
        (:class:`sdpalab.judge.sandbox.messages.LaunchNeeds`). Triton compiles nothing for it."""
        return [self._surveyed(config, problems, sms) for config in configs]

    def _surveyed(self, config: Config, problems: Sequence[Problem], sms: Sequence[int]) -> str | list[dict[str, int]]:
        for problem in problems:
            refusal = self._kernel.why_not(problem, config)
            if refusal is not None:
                return refusal
        plans = [self._kernel.launch_plan(problem, config, sms=each) for problem in problems for each in sms]
        launches = [launch for plan in plans for launch in plan.launches]
        return [{"threads": math.prod(launch.block), "dynamic_smem": launch.dynamic_smem} for launch in launches]


def _install_extensions(spec: str) -> None:
    """Let a user's file load extensions of torch in CUDA C++, if it names them."""
    file = file_of(spec)
    if file.suffix == ".py" and file.is_file() and "cpp_extension" in file.read_text(errors="replace"):
        from sdpalab.judge.sandbox.kernel_calls import ARCH
        from warpsan.program import install_extensions

        install_extensions(ARCH)


def _imported(spec: str) -> Any:
    """The function that ``module:NAME`` names."""
    module, _, name = spec.partition(":")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise UserError(f"{module} does not import: {_text_of(error)}") from None
    if not callable(function):
        raise UserError(f"module {module} has no function {name!r}")
    return function


def _raised(error: BaseException) -> str:
    """``raised ValueError: text (file.py, line 3)``, with the place of the exception."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({_text_of(error)})"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {_text_of(error)[:500]}{where}"


def _text_of(error: BaseException) -> str:
    """The exception's text, which may have any type or size, or raise another exception."""
    try:
        return plain(str(error)) or type(error).__name__
    except BaseException as other:
        return f"nothing: its text {type(other).__name__}"
