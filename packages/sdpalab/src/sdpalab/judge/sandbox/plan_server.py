"""The process that executes launch plans: ``plan_server.main(read_fd, write_fd)``, started under guard by the judge.

No Python of a candidate ever runs in it: it receives a plan as data, builds the plan's CUDA C++ (or assembles Triton's
PTX), and runs it on the simulator or on a GPU. Its reports of hazards and of changed inputs are therefore reliable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.compile import Build, set_aside
from sdpalab.errors import MachineError, UserError
from sdpalab.judge.algebra.running import run_in_ring
from sdpalab.judge.sandbox.executed import code_of, launches_of, reached
from sdpalab.judge.sandbox.new_builds import send_builds
from sdpalab.judge.sandbox.plans import SentPlan, SentStep
from sdpalab.judge.sandbox.wire import serve
from sdpalab.judge.verdict import Status
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.kernels.sources import kernel_sources
from sdpalab.run import GpuExecutor, KernelFault, RunResult, SimulatedExecutor
from warpsan import PtxSyntaxError, Report, SimError, StepLimit, UnsupportedInstruction, prepare, thorough_checks
from warpsan.build import ForwardedCache
from warpsan.report import ENDINGS, SanitizedHazard, ending, group

__all__ = ["main"]

Array = npt.NDArray[Any]
Answer = tuple[dict[str, Any], dict[str, Array]]

MOST_HAZARDS = 20
"""Most hazards reported in full, most groups of them, and most instructions of a group."""


def main(read_fd: int, write_fd: int) -> None:
    """Serve one judge until it closes the wire."""
    serve(read_fd, write_fd, _PlanServer().answer)


class _PlanServer:
    """Server that executes plans; it has the GPU, once it is opened."""

    def __init__(self) -> None:
        self._gpu: GpuExecutor | None = None
        self._built: tuple[Any, tuple[Build, ...]] | None = None
        self._sources = kernel_sources()
        self._aside = ""
        self._hazards: list[SanitizedHazard] = []
        """Hazards of the current order."""
        self._launches = 0
        self._unexecuted: list[list[int]] = []
        """First instructions of the unexecuted blocks of each launch of the current order."""
        self._cache: ForwardedCache | None = None

    def answer(self, order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        """Execute an order: ``open`` the GPU, and describe it; ``build`` a plan's modules; or ``run`` it once, on the
        GPU if it is open; or run it in the ``ring``, always on the simulator; list unexecuted ``code`` of builds, or
        whether the launches of a plan ``reach`` some of it.

        ``watched``: with the simulator's checks on.
        """
        reply, outputs = self._answer(order, arrays)
        if self._cache is None or not self._cache.new_builds:
            return reply, outputs
        builds, files = send_builds(self._cache)
        return {**reply, "builds": builds}, {**outputs, **files}

    def _answer(self, order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        self._hazards.clear()
        try:
            if order["do"] == "open":
                self._gpu = GpuExecutor(arch=order["arch"])
                return {"status": None, "device": self._gpu.device, "arch": self._gpu.arch, "sms": self._gpu.sms}, {}
            if order["do"] == "code":
                return self._code(order, arrays)
            sent = SentPlan.model_validate_json(arrays["plan"].tobytes())
            builds = self._builds(sent, order)
            if order["do"] == "build":
                return {"status": None}, {}
            if order["do"] == "reach":
                return {"status": None, "reached": [reached(each, sent, builds) for each in order["builds"]]}, {}
            if order["do"] == "ring":
                draws = {
                    name: array.view(np.uint16) if array.dtype == np.float16 else array
                    for name, array in arrays.items()
                    if name != "plan"
                }
                limits = {name: order[name] for name in ("arch", "poison", "max_steps", "reordered")}
                reply, outputs = run_in_ring(sent.plan(), builds, draws, **limits)
                return {"status": None, **reply}, outputs
            result = self._run(order, sent.plan(), builds, arrays)
        except Exception as error:
            status, reason = _classify(error)
            failure = {"status": status.value, "reason": reason, "lost": isinstance(error, KernelFault)}
            return {**failure, **self._groups(order)}, {}
        reply = {
            "status": None,
            "device": result.device,
            "ptx_sha256": list(result.ptx_sha256),
            "unexecuted": self._unexecuted,
            "hazards": list(result.hazards[:MOST_HAZARDS]),
            "hazard_count": len(result.hazards),
            "changed": list(result.changed_inputs),
            **self._groups(order),
            **({"set_aside": self._aside} if self._aside else {}),
        }
        return reply, {name: np.asarray(out) for name, out in result.outputs.items()}

    def _code(self, order: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answer:
        """Unexecuted code of builds, each of which a plan launches."""
        plans = [SentPlan.model_validate_json(arrays[f"plan {n}"].tobytes()) for n in range(order["plans"])]
        builds = [self._builds(plan, order) for plan in plans]
        sources = kernel_sources(step.code for plan in plans for step in launches_of(plan))
        return {"status": None, "entries": code_of(order["builds"], builds, sources)}, {}

    def _builds(self, sent: SentPlan, order: Mapping[str, Any]) -> tuple[Build, ...]:
        """Builds of the plan; those of the previous plan if the modules are the same."""
        modules = [step.code for step in sent.steps if isinstance(step, SentStep)]
        wanted = order["arch"], order["cache"], modules
        if self._gpu is None:
            prepare()
        if self._built is None or self._built[0] != wanted:
            self._cache = self._cache or ForwardedCache(order["cache"])
            self._built = wanted, sent.builds(order["arch"], self._cache)
            sources = [step.code for step in sent.steps if isinstance(step, SentStep)]
            self._sources, self._aside = kernel_sources(sources), str(set_aside(*sources))
        return self._built[1]

    def _run(
        self, order: Mapping[str, Any], plan: LaunchPlan, builds: tuple[Build, ...], arrays: Mapping[str, Array]
    ) -> RunResult:
        self._launches, self._unexecuted = 0, []
        inputs, poison = {name: array for name, array in arrays.items() if name != "plan"}, order["poison"]
        if self._gpu is None:
            checks = thorough_checks() if order["watched"] else ()
            workers = None if order["alone"] else 1  # one for each core, if no other set of processes uses them
            limits = {name: order[name] for name in ("max_steps", "numerics", "schedule")} | {"workers": workers}
            executor = SimulatedExecutor(order["arch"], self._cache, on_launch=self._launched, checks=checks, **limits)
            try:
                return executor.run(plan, inputs, poison=poison, builds=builds)
            except SimError as error:
                self._stopped(error, builds)
                raise
        try:
            return self._gpu.run(plan, inputs, poison=poison, builds=builds)
        except UserError as error:
            raise _NoSuchLaunch(str(error)) from None

    def _launched(self, built: Build, report: Report) -> None:
        """Called when a launch has finished."""
        self._launches += 1
        self._unexecuted.append(list(report.unexecuted))
        self._hazards += [SanitizedHazard.of(hazard, f"{built.name}.ptx", "") for hazard in report.hazards]

    def _stopped(self, error: SimError, builds: Sequence[Build]) -> None:
        """Called when an error has stopped a launch."""
        name = f"{builds[min(self._launches, len(builds) - 1)].name}.ptx"
        self._hazards += [SanitizedHazard.of(hazard, name, "") for hazard in error.hazards]
        if isinstance(error, tuple(ENDINGS)):
            self._hazards.append(ending(error, name, ""))

    def _groups(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """The hazards of a run, for the reply."""
        groups = group(self._hazards, self._sources)[:MOST_HAZARDS] if order["do"] == "run" else ()
        return {"groups": [{**each.to_dict(), "instructions": each.instructions[:MOST_HAZARDS]} for each in groups]}


class _NoSuchLaunch(Exception):
    """A launch that this GPU rejects, although its source compiled."""


def _classify(error: Exception) -> tuple[Status, str]:
    """Status of an exception: an error of the candidate, or of the machine."""
    text = str(error) or type(error).__name__
    if isinstance(error, (UnsupportedInstruction, PtxSyntaxError)):
        return Status.UNSUPPORTED, text
    if isinstance(error, StepLimit):
        return Status.TIMED_OUT, text
    if isinstance(error, (SimError, _NoSuchLaunch)):
        return Status.HAZARD, text
    if isinstance(error, KernelFault):
        return Status.CRASHED, text
    if isinstance(error, UserError):
        return Status.BUILD_FAILED, text
    if isinstance(error, MachineError):
        return Status.INFRA_ERROR, text
    return Status.INFRA_ERROR, f"the plan server itself failed: {type(error).__name__}: {text}"
