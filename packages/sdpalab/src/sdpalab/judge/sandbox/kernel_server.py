"""The process that loads a user's kernel for commands that build it: ``kernel_server.main(read_fd, write_fd)``.

It runs the Python of the user's file under guard, and returns the declarations of
:class:`sdpalab.kernels.kernel.Kernel` as data: knobs, rejections, numerics, limits and launch plans.
:class:`sdpalab.judge.sandbox.sandboxed.SandboxedKernel` is its client. Judged candidates are loaded by
:mod:`sdpalab.judge.sandbox.worker` instead.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.plans import send_plan
from sdpalab.judge.sandbox.raised import raised, text_of
from sdpalab.judge.sandbox.wire import Channel, serve
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, Kernel, UnsupportedProblem
from sdpalab.kernels.source import source_text
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.problem import Problem

__all__ = ["main"]

Array = npt.NDArray[Any]
Answer = tuple[dict[str, Any], dict[str, Array]]


def main(read_fd: int, write_fd: int) -> None:
    """Serve one command until it closes the wire."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Channel(read_fd, write_fd), _KernelServer().answer)


class _KernelServer:
    """Server of one loaded kernel."""

    def __init__(self) -> None:
        self._kernel: Kernel | None = None

    def answer(self, order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        """Execute an order: ``load`` the file, then the orders of :class:`SandboxedKernel`."""
        try:
            if order["do"] == "load":
                return {"status": None, "about": self._load(order["spec"])}, {}
            assert self._kernel is not None, "the kernel is loaded first"
            return self._answered(self._kernel, order)
        except UnsupportedProblem as error:
            status, reason = Status.UNSUPPORTED, text_of(error)
        except UserError as error:
            status, reason = Status.BUILD_FAILED, text_of(error)
        except MachineError as error:
            status, reason = Status.INFRA_ERROR, text_of(error)
        except BaseException as error:
            status, reason = Status.CRASHED, raised(error)
        return {"status": status.value, "reason": reason}, {}

    def _load(self, spec: str) -> dict[str, Any]:
        loaded = load_user_kernel(spec)
        if not isinstance(loaded, Kernel):
            return {"kind": "callable", "name": str(getattr(loaded, "__name__", type(loaded).__name__))}
        self._kernel = loaded
        return {
            "kind": "kernel",
            "name": loaded.name,
            "idea": loaded.idea,
            "source": source_text(loaded),
            "configs": [dict(config) for config in loaded.configs],
            "knobs": {name: list(values) for name, values in loaded.knobs.items()},
            "min_arch": loaded.min_arch,
            "only_arch": loaded.only_arch,
            "lse": loaded.lse,
        }

    def _answered(self, kernel: Kernel, order: Mapping[str, Any]) -> Answer:
        reply: dict[str, Any] = {"status": None}
        if order["do"] == "numerics":
            return {**reply, "numerics": kernel.numerics_of(Config(order["config"])).to_dict()}, {}
        if order["do"] == "survey":
            problems = [Problem(**each) for each in order["problems"]]
            configs = [Config(each) for each in order["configs"]]
            return {**reply, "survey": [_surveyed(kernel, config, problems, order["sms"]) for config in configs]}, {}
        problem = Problem(**order["problem"])
        if order["do"] == "limits":
            return {**reply, "limits": asdict(kernel.static_limits(problem))}, {}
        config = Config(order["config"])
        if order["do"] == "reject":
            return {**reply, "refusal": kernel.reject_reason(problem, config)}, {}
        if order["do"] == "resolve":
            return {**reply, "config": dict(kernel.resolved(problem, config, order["sms"]))}, {}
        plan = kernel.launch_plan(problem, config, lse=order["lse"], sms=order["sms"])
        return reply, {"plan": np.frombuffer(send_plan(plan, order["arch"]), np.uint8)}


def _surveyed(
    kernel: Kernel, config: Config, problems: Sequence[Problem], sms: Sequence[int]
) -> str | list[dict[str, int]]:
    """Reason why a configuration cannot run one of the problems, or the needs of each launch
    (:class:`~sdpalab.judge.sandbox.messages.LaunchNeeds`). Triton compiles nothing for it."""
    for problem in problems:
        refusal = kernel.reject_reason(problem, config)
        if refusal is not None:
            return refusal
    plans = [kernel.launch_plan(problem, config, sms=each) for problem in problems for each in sms]
    launches = [launch for plan in plans for launch in plan.launches]
    return [{"threads": math.prod(launch.block), "dynamic_smem": launch.dynamic_smem} for launch in launches]
