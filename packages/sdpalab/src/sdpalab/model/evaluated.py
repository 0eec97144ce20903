"""The modelled time of a candidate's kernel, in a process of its own, which the budget can end.

The plan runs once on the simulator, at the task's own size, with counters and without checks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota
from sdpalab.judge.sandbox.sandboxed import compile_for, configured_kernel
from sdpalab.judge.sandbox.wire import WireError, WireTimeout, serve
from sdpalab.model.counted import arch_on, count
from sdpalab.problem import Problem
from warpsan import SimError
from warpsan.gpus import Gpu, gpu_named

__all__ = ["main", "modelled_us"]


def main(read_fd: int, write_fd: int) -> None:
    """Serve one client until it closes the wire."""
    serve(read_fd, write_fd, lambda order, _: (_answer(order), {}))


def modelled_us(
    spec: str, problem: Problem, gpu: Gpu, *, seconds: float, memory_bytes: int | None
) -> tuple[float | None, str]:
    """The modelled time of one call in microseconds, or None and the reason.

    Parameters
    ----------
    spec : str
        Name of a shipped kernel, ``FILE.py`` or ``FILE.py:NAME``.
    problem : Problem
    gpu : Gpu
    seconds : float
        Most wall-clock seconds.
    memory_bytes : int, optional
        As for :func:`sdpalab.evaluate`.
    """
    order = {"spec": spec, "problem": problem.to_dict(), "gpu": gpu.name}
    quota = Quota(cpu_seconds=int(10 + 4 * seconds)).with_memory(memory_bytes)
    try:
        process = GuardedProcess(__name__, quota, untrusted=False)
    except MachineError as error:
        return None, str(error)
    try:
        process.await_ready()
        reply, _ = process.exchange(order, {}, 0, time.monotonic() + seconds)
    except WireTimeout:
        return None, "the budget ended before the time was modelled"
    except WireError:
        return None, f"{process.ending()}{process.quote()}"
    except MachineError as error:
        return None, str(error)
    finally:
        process.close()
    return reply["us"], str(reply["reason"])


def _answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """``us``, or None and the ``reason``."""
    try:
        problem, gpu = Problem(**order["problem"]), gpu_named(order["gpu"])
        with configured_kernel(order["spec"], [problem], {}, else_say="its time is not modelled") as (kernel, config):
            arch = arch_on(kernel, gpu)
            if arch is None:
                raise UserError(f"{kernel.name} does not run on {gpu.name}: {kernel.why_not_on(gpu.arch)}")
            compile_for(kernel, arch)
            time_ = count(kernel, problem, arch, config, sms=gpu.sms).modelled(gpu)
            return {"us": time_.microseconds, "reason": ""}
    except (UserError, MachineError, SimError) as error:
        return {"us": None, "reason": str(error)}
