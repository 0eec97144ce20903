"""The process that runs a candidate: ``worker.main(read_fd, write_fd)``, started by :mod:`sdpalab.judge.isolation`.

It holds no oracle and is not trusted: it receives a problem and three arrays, and sends back bytes. It is told neither
which kind of inputs they are nor their seed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.verdict import Status
from sdpalab.judge.wire import Channel, WireClosed
from sdpalab.kernels.kernel import Config, Kernel, UnsupportedProblem
from sdpalab.problem import Problem

__all__ = ["POISONS", "main"]

Array = npt.NDArray[Any]

POISONS = (0xFF, 0x3C)
"""Bytes that fill every output before the first and the second run: NaN, then about 1 (float16) or 0.01 (bfloat16)."""

_FOREVER = 1e9
_BYTES = 1 << 36


def main(read_fd: int, write_fd: int) -> None:
    """Serve one judge until it closes the wire, then leave without running anybody's exit handlers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a judge that is killed leaves nobody behind
    channel = Channel(read_fd, write_fd)
    try:
        channel.send({"ready": True}, seconds=_FOREVER)
        order, arrays = channel.receive(seconds=_FOREVER, max_bytes=_BYTES)
        runner, reply = _load(order, arrays)
        channel.send(reply, seconds=_FOREVER)
        while runner is not None:
            order, arrays = channel.receive(seconds=_FOREVER, max_bytes=_BYTES)
            reply, outputs = _attempt(runner, Problem(**order["problem"]), arrays)
            channel.send(reply, outputs, seconds=_FOREVER)
    except WireClosed:
        pass
    finally:
        os._exit(0)


def _load(order: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[_Runner | None, dict[str, Any]]:
    """Make the candidate, and say what it is; or say why there is none."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (order["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_seconds"],) * 2)
    try:
        made = _resolve(order, arrays)
        runner: _Runner = _BuiltRunner(made, order) if isinstance(made, Kernel) else _CallableRunner(made)
        return runner, {"ok": True, **runner.describe([Problem(**fields) for fields in order["problems"]])}
    except MachineError as error:
        return None, {"ok": False, "machine": True, "message": str(error)}
    except UserError as error:
        return None, {"ok": False, "message": str(error)}
    except BaseException as error:
        return None, {"ok": False, "message": f"the candidate does not load: it {_raised(error)}"}


def _resolve(order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Any:
    if order["kind"] == "registry":
        from sdpalab.kernels.registry import get

        return get(order["spec"])
    if order["kind"] == "file":
        from sdpalab.kernels.userfile import load_user_kernel

        return load_user_kernel(order["spec"])
    import cloudpickle

    return cloudpickle.loads(arrays["pickle"].tobytes())


class _CallableRunner:
    """Runs ``fn(q, k, v, *, scale, causal)`` on torch CPU tensors."""

    def __init__(self, function: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self._function = function

    def describe(self, problems: list[Problem]) -> dict[str, Any]:
        import torch

        name = getattr(self._function, "__name__", type(self._function).__name__)
        return {"kind": "callable", "name": name, "config": "", "device": f"cpu (torch {torch.__version__})"}

    def run(self, problem: Problem, inputs: Mapping[str, Array], poison: int) -> tuple[Array, dict[str, Any]]:
        import torch

        from sdpalab.judge.tensors import from_torch, to_torch

        copies = {name: array.copy() for name, array in inputs.items()}
        tensors = [to_torch(copies[name]) for name in ("q", "k", "v")]
        dtype = tensors[0].dtype
        poisoned = _poison_new_memory(poison)
        try:
            out = self._function(*tensors, scale=problem.scale, causal=problem.causal)
        finally:
            _poison_new_memory(None)
        # A subclass could compute its values when they are looked at.
        if type(out) is not torch.Tensor:
            raise _BadOutput(f"the candidate returned {type(out).__name__}, not a torch.Tensor")
        if out.device.type != "cpu" or out.layout != torch.strided:
            raise _BadOutput(f"the candidate returned a tensor on {out.device} in layout {out.layout}")
        if tuple(out.shape) != problem.q_shape:
            raise _BadOutput(f"the output has shape {tuple(out.shape)}, not {problem.q_shape}")
        if out.dtype != dtype:
            raise _BadOutput(f"the output has dtype {out.dtype}, not {dtype}")
        changed = [name for name in copies if _digest(copies[name]) != _digest(inputs[name])]
        return from_torch(out), {"changed": changed, "memory_poisoned": poisoned}


class _BuiltRunner:
    """Runs a kernel that the lab builds on the simulator."""

    def __init__(self, kernel: Kernel, order: Mapping[str, Any]) -> None:
        from sdpalab.run import SimulatedExecutor

        settings = order["config"]
        self._kernel, self._arch = kernel, order["arch"]
        self._config: Config = kernel.default_config if settings is None else kernel.config_with(settings)
        # The first run is watched; the second, for repeatability, executes the same instructions again.
        watched, repeated = SimulatedExecutor(order["arch"]), SimulatedExecutor(order["arch"], checks=())
        self._executors = dict(zip(POISONS, (watched, repeated), strict=True))

    def describe(self, problems: list[Problem]) -> dict[str, Any]:
        numerics = self._kernel.numerics
        return {
            "kind": "cuda",
            "name": self._kernel.name,
            "config": str(self._config),
            "device": f"simulator {self._arch}",
            "min_arch": self._kernel.min_arch,
            "numerics": {"accumulate": numerics.accumulate, "probabilities": numerics.probabilities},
            "rejects": [self._kernel.reject_reason(problem, self._config) for problem in problems],
        }

    def run(self, problem: Problem, inputs: Mapping[str, Array], poison: int) -> tuple[Array, dict[str, Any]]:
        result = self._executors[poison].run(self._kernel.launch_plan(problem, self._config), inputs, poison=poison)
        return result.outputs["o"], {
            "device": result.device,
            "ptx_sha256": list(result.ptx_sha256),
            "hazards": list(result.hazards[:20]),
            "hazard_count": len(result.hazards),
            "changed": list(result.changed_inputs),
        }


_Runner = _CallableRunner | _BuiltRunner


class _BadOutput(Exception):
    """What came back is not an output of this problem."""


def _attempt(runner: _Runner, problem: Problem, inputs: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run twice on differently poisoned memory; a status and its reason where that fails."""
    try:
        (first, notes), (second, again) = (runner.run(problem, inputs, poison) for poison in POISONS)
        notes["changed"] = sorted({*notes["changed"], *again["changed"]})
        return {"status": None, **notes}, {"first": first, "second": second}
    except BaseException as error:
        status, reason = _classify(error)
        return {"status": status.value, "reason": reason}, {}


def _classify(error: BaseException) -> tuple[Status, str]:
    """The status that an exception of a run stands for."""
    from sdpalab.sim import errors as sim

    text = str(error) or type(error).__name__
    if isinstance(error, _BadOutput):
        return Status.BAD_OUTPUT, text
    if isinstance(error, (UnsupportedProblem, sim.UnsupportedInstruction)):
        return Status.UNSUPPORTED, text
    if isinstance(error, UserError):
        return Status.BUILD_FAILED, text
    if isinstance(error, MachineError):
        return Status.INFRA_ERROR, text
    if isinstance(error, (sim.IllegalAccess, sim.Deadlock)):
        return Status.HAZARD, text
    if isinstance(error, sim.StepLimit):
        return Status.TIMED_OUT, text
    return Status.CRASHED, f"the candidate {_raised(error)}"


def _raised(error: BaseException) -> str:
    """``raised ValueError: text (file.py, line 3)``, from where it happened."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:500]}{where}"


def _digest(array: Array) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


def _poison_new_memory(fill: int | None) -> bool:
    """Have malloc fill what it hands out with a byte (None: as usual). False where the C library cannot."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # glibc fills with the complement of the low byte, and takes 0 as off: 0x100 stands for the fill 0xFF.
    return bool(mallopt(-6, 0 if fill is None else 0x100 | (fill ^ 0xFF)))  # -6: M_PERTURB
