"""The process that runs a candidate's Python: ``worker.main(read_fd, write_fd)``, started under guard by the judge.

It has no reference and is not trusted. For a callable it returns the output; for a kernel that the lab builds, only the
launch plan, which another process executes (:mod:`sdpalab.judge.sandbox.executor`). It receives neither the kind of the
inputs nor their seed, and only executes orders, which fix the data, the memory and the number of runs.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.layouts import Layout
from sdpalab.judge.sandbox.callables import BadOutput, CallableRunner
from sdpalab.judge.sandbox.plans import send_plan
from sdpalab.judge.sandbox.raised import launches_triton, raised, text_of
from sdpalab.judge.sandbox.wire import Channel, serve
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Config, Kernel, UnsupportedProblem
from sdpalab.kernels.triton_kernel import HOW_TO_DESCRIBE
from sdpalab.problem import Problem
from warpsan.gpus import default_sms

__all__ = ["main"]

Array = npt.NDArray[Any]
Answer = tuple[dict[str, Any], dict[str, Array]]


def main(read_fd: int, write_fd: int) -> None:
    """Serve one judge until it closes the wire."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _CandidateServer()
    serve(Channel(read_fd, write_fd), worker.answer)


class _CandidateServer:
    """Server of one loaded candidate."""

    def __init__(self) -> None:
        self._arch = ""
        self._callable: CallableRunner | None = None
        self._kernel: Kernel | None = None
        self._sms = 0
        self._config = self._algebraic = Config()

    def answer(self, order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        """Execute an order: ``load`` the candidate; ``call`` a callable, or read its output ``again``; ``plan``."""
        if order["do"] == "load":
            return self._load(order, arrays), {}
        try:
            if order["do"] == "plan":
                return self._plan(Problem(**order["problem"]), self._algebraic if order["ring"] else self._config)
            assert self._callable is not None, "the candidate is not a callable"
            if order["do"] == "again":
                return {"status": None}, self._callable.look_again()
            problem, layout = Problem(**order["problem"]), Layout(order["layout"])
            outputs, notes = self._callable.run(problem, arrays, order["poison"], order["reuse"], layout)
            return {"status": None, **notes}, outputs
        except BadOutput as error:
            return {"status": Status.BAD_OUTPUT.value, "reason": str(error)}, {}
        except BaseException as error:
            if launches_triton(error):
                return {"status": Status.BUILD_FAILED.value, "reason": self._triton_reason()}, {}
            return {"status": Status.CRASHED.value, "reason": f"the candidate {raised(error)}"}, {}

    def _triton_reason(self) -> str:
        assert self._callable is not None, "the candidate is a callable, which launches what it likes"
        return (
            f"{self._callable.describe()['name']} launches a Triton function, and the judge calls it on CPU tensors: "
            f"define a TritonKernel with that function, its grid and its args, and judge that; {HOW_TO_DESCRIBE}"
        )

    def _plan(self, problem: Problem, config: Config) -> Answer:
        assert self._kernel is not None, "the candidate is not a kernel"
        try:
            launch_plan = self._kernel.launch_plan(problem, config, lse=self._kernel.lse, sms=self._sms)
            plan = send_plan(launch_plan, self._arch)
        except UnsupportedProblem as error:
            return {"status": Status.UNSUPPORTED.value, "reason": text_of(error)}, {}
        except UserError as error:
            return {"status": Status.BUILD_FAILED.value, "reason": text_of(error)}, {}
        except MachineError as error:
            return {"status": Status.INFRA_ERROR.value, "reason": text_of(error)}, {}
        return {"status": None}, {"plan": np.frombuffer(plan, np.uint8)}

    def _load(self, order: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Load the candidate and describe it, or return the reason why it does not load."""
        try:
            candidate = _resolve(order, arrays)
            if not isinstance(candidate, Kernel):
                self._callable = CallableRunner(candidate)
                return {"ok": True, **self._callable.describe()}
            self._kernel, self._arch = candidate, order["arch"] or candidate.default_arch
            self._sms = order["sms"] or default_sms(self._arch)
            settings = order["config"]
            self._config = candidate.default_config if settings is None else candidate.config_with(settings)
            free = {name: value for name, value in candidate.algebraic.items() if name not in (settings or {})}
            self._algebraic = self._config.but(**free)
            return {"ok": True, **self._describe(candidate, [Problem(**fields) for fields in order["problems"]])}
        except MachineError as error:
            return {"ok": False, "machine": True, "message": text_of(error)}
        except UserError as error:
            return {"ok": False, "message": text_of(error)}
        except BaseException as error:
            return {"ok": False, "message": f"the candidate does not load: it {raised(error)}"}

    def _describe(self, kernel: Kernel, problems: list[Problem]) -> dict[str, Any]:
        return {
            "kind": "cuda",
            "name": kernel.name,
            "config": str(self._config),
            "arch": self._arch,
            "refuses": kernel.arch_reason(self._arch),
            "lse": kernel.lse,
            "algebraic": str(Config(dict(self._algebraic.items() - self._config.items()))),
            "numerics": kernel.numerics_of(self._config).to_dict(),
            "declares_support": kernel.declares_support,
            "rejects": [kernel.reject_reason(problem, self._config) for problem in problems],
        }


def _resolve(order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Any:
    if order["kind"] == "registry":
        from sdpalab.kernels.registry import get

        return get(order["spec"])
    if order["kind"] == "file":
        from sdpalab.kernels.userfile import load_user_kernel

        return load_user_kernel(order["spec"])
    import cloudpickle

    return cloudpickle.loads(arrays["pickle"].tobytes())
