"""A run of a launch plan on the simulator of another process, as data: the order and the reply."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, TypeAdapter

import warpsan
from sdpalab.compile import Build, Cache
from sdpalab.judge.sandbox.plans import SentPlan, send_plan
from sdpalab.kernels.plan import Launch, LaunchPlan, Module
from sdpalab.run import RunResult, SimulatedExecutor
from warpsan import Report, SimError
from warpsan.host import Extent
from warpsan.profile import AccessRecorder, RecordedAccess
from warpsan.report import Hazard
from warpsan.sanitize import read_case

__all__ = ["SimulatedRun", "run_case", "run_sent", "sent_options", "sent_run"]

Array = npt.NDArray[Any]

_BUILDS = TypeAdapter(tuple[Build, ...])
_NOWHERE = Module("", "", "")
"""Module of a sent step, whose build is sent beside it."""
_CONTROL = re.compile(r"\\u00(?:[01][0-9a-bd-f]|0c|1c|7f|8.|9.)|[\x7f-\x9f]", re.IGNORECASE)
"""Control characters of a text in JSON, except line ends."""
_ARRAYS = ("lanes", "offset", "touched")


class _SentAccess(BaseModel):
    """See :class:`warpsan.profile.recording.RecordedAccess`."""

    entry: str
    pc: int
    text: str
    places: tuple[str, ...]
    space: str
    block: tuple[int, int, int]
    warp: int
    lanes: list[int]
    offset: list[int]
    width: int
    cost: int
    buffer: Extent | None
    touched: list[int]


class SimulatedRun(BaseModel):
    """Reply of a run: reports of the finished launches, and the result, or the error that stopped the run."""

    model_config = ConfigDict(extra="forbid")

    reports: list[Report]
    accesses: list[list[_SentAccess]]
    device: str = ""
    ptx_sha256: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
    changed_inputs: tuple[str, ...] = ()
    error: str = ""
    message: str = ""
    line: int = 0
    stopped_with: tuple[Hazard, ...] = ()
    sentences: list[str] = []
    sizes: dict[str, int] = {}

    @classmethod
    def of(cls, data: bytes) -> SimulatedRun:
        """Parse the reply of the other process; raises pydantic's ValidationError or UnicodeDecodeError if it is
        invalid."""
        return cls.model_validate_json(_CONTROL.sub(" ", data.decode()))

    def records(self, number: int) -> tuple[RecordedAccess, ...]:
        """Accesses of the recorder with that number."""
        return tuple(
            RecordedAccess(**{**vars(each), **{name: np.array(getattr(each, name), np.int64) for name in _ARRAYS}})
            for each in self.accesses[number]
        )

    def result(self, outputs: Mapping[str, Array]) -> RunResult:
        """The result of a run; raises the SimError that stopped it."""
        if not self.error:
            return RunResult(outputs, self.device, self.ptx_sha256, self.hazards, self.changed_inputs)
        kind = getattr(warpsan, self.error, SimError)
        error = SimError.__new__(kind if isinstance(kind, type) and issubclass(kind, SimError) else SimError)
        error.args, error.hazards = (self.message,), self.stopped_with
        vars(error).update(message=self.message, line=self.line, instruction="")
        raise error


def sent_run(
    plan: LaunchPlan, builds: Sequence[Build], inputs: Mapping[str, Array], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The order and its arrays: a plan, its builds, its inputs and the options of the simulator."""
    steps = tuple(replace(step, module=_NOWHERE) if isinstance(step, Launch) else step for step in plan.steps)
    names = [name for name in Build.__dataclass_fields__ if name != "cubin"]
    plain = [Build(cubin=b"", **{name: getattr(each, name) for name in names}) for each in builds]
    data = {"plan": send_plan(LaunchPlan(plan.buffers, steps), ""), "builds": _BUILDS.dump_json(tuple(plain))}
    return sent_options(options), {
        **{name: np.frombuffer(text, np.uint8) for name, text in data.items()},
        **_inputs(inputs),
    }


def sent_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Simulator options of an order; recorders are sent as the places that they watch."""
    return {"options": {**options, "watchers": [recorder.place for recorder in options.get("watchers", ())]}}


def run_sent(order: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Execute the order of :func:`sent_run`: the array ``run`` of the reply is a :class:`SimulatedRun`."""
    plan = SentPlan.model_validate_json(arrays["plan"].tobytes()).plan()
    builds = _BUILDS.validate_json(arrays["builds"].tobytes())
    inputs = {name.removeprefix(_INPUT): array for name, array in arrays.items() if name.startswith(_INPUT)}
    options, reports = _options(order), list[Report]()
    executor = SimulatedExecutor(order["arch"], Cache(), on_launch=lambda _, report: reports.append(report), **options)

    def run() -> tuple[dict[str, Any], Mapping[str, Array]]:
        result = executor.run(plan, inputs, poison=order["poison"], builds=builds)
        names = ("device", "ptx_sha256", "hazards", "changed_inputs")
        return {name: getattr(result, name) for name in names}, result.outputs

    return _reply(run, reports, options["watchers"])


def run_case(order: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Run all launches of the launch file that an order names; the array ``run`` of the reply is a
    :class:`SimulatedRun`."""
    gc.collect()  # frees the device memory of the previous run, gigabytes of address space
    case = read_case(Path(order["source"]), Path(order["description"]))
    options, reports = _options(order), list[Report]()

    def run() -> tuple[dict[str, Any], Mapping[str, Array]]:
        sentences, sizes = case.run_all(reports.append, options)
        return {"sentences": sentences, "sizes": dict(sizes)}, {}

    return _reply(run, reports, options["watchers"])


def _options(order: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in order["options"].items()}
    return {**options, "watchers": tuple(map(AccessRecorder, options["watchers"]))}


def _reply(
    run: Callable[[], tuple[dict[str, Any], Mapping[str, Array]]],
    reports: Sequence[Report],
    recorders: Sequence[AccessRecorder],
) -> tuple[dict[str, Any], dict[str, Array]]:
    content: dict[str, Any] = {}
    outputs: Mapping[str, Array] = {}
    try:
        content, outputs = run()
    except SimError as error:
        content = {"error": type(error).__name__, "message": str(error), "line": getattr(error, "line", 0)}
        content["stopped_with"] = [asdict(hazard) for hazard in error.hazards]
    content["reports"] = [asdict(report) for report in reports]
    content["accesses"] = [[_as_json(record) for record in recorder.records] for recorder in recorders]
    text = json.dumps(content).encode()
    return {}, {"run": np.frombuffer(text, np.uint8), **{name: np.asarray(out) for name, out in outputs.items()}}


_INPUT = "in "


def _inputs(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{_INPUT}{name}": array for name, array in inputs.items()}


def _as_json(record: RecordedAccess) -> dict[str, Any]:
    return {**asdict(record), **{name: getattr(record, name).tolist() for name in _ARRAYS}}
