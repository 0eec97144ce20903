"""The process that executes launch plans: ``executor.main(read_fd, write_fd)``, started under guard by the judge.

No Python of a candidate ever runs in it: it gets a plan as data, builds the plan's CUDA C++ (or takes the PTX that
Triton made), and runs the PTX on the simulator. What it says of hazards and of changed inputs is therefore so.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.build import Cache
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.plans import SentPlan
from sdpalab.judge.verdict import Status
from sdpalab.judge.wire import Channel, serve
from sdpalab.run import SimulatedExecutor
from sdpalab.sim import CHECKS, PtxSyntaxError, SimError, StepLimit, UnsupportedInstruction

__all__ = ["main"]

Array = npt.NDArray[Any]

MOST_HAZARDS = 20
"""Hazards that are told in full."""


def main(read_fd: int, write_fd: int) -> None:
    """Serve one judge until it closes the wire."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Channel(read_fd, write_fd), _answer)


def _answer(order: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run a plan once; ``watched``: with the simulator's checks on."""
    plan = SentPlan.model_validate_json(arrays["plan"].tobytes())
    cache = Cache(order["cache"])
    checks = CHECKS if order["watched"] else ()
    executor = SimulatedExecutor(order["arch"], cache, checks=checks, workers=1)  # the judge has workers of its own
    inputs = {name: arrays[name] for name in ("q", "k", "v")}
    try:
        builds = plan.builds(order["arch"], cache)
        result = executor.run(plan.plan(), inputs, poison=order["poison"], builds=builds)
    except Exception as error:
        status, reason = _classify(error)
        return {"status": status.value, "reason": reason}, {}
    reply = {
        "status": None,
        "device": result.device,
        "ptx_sha256": list(result.ptx_sha256),
        "hazards": list(result.hazards[:MOST_HAZARDS]),
        "hazard_count": len(result.hazards),
        "changed": list(result.changed_inputs),
    }
    return reply, {name: np.asarray(out) for name, out in result.outputs.items()}


def _classify(error: Exception) -> tuple[Status, str]:
    """The status that an exception stands for: whose fault it is."""
    text = str(error) or type(error).__name__
    if isinstance(error, (UnsupportedInstruction, PtxSyntaxError)):
        return Status.UNSUPPORTED, text
    if isinstance(error, StepLimit):
        return Status.TIMED_OUT, text
    if isinstance(error, SimError):
        return Status.HAZARD, text
    if isinstance(error, UserError):
        return Status.BUILD_FAILED, text
    if isinstance(error, MachineError):
        return Status.INFRA_ERROR, text
    return Status.INFRA_ERROR, f"the simulator itself failed: {type(error).__name__}: {text}"
