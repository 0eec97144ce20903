"""Recorded answers of a candidate's processes, and a verdict derived from them without running the kernel.

A worker on another machine judges and sends the answers of the candidate's processes. Its verdict is not used: the
judge runs again here on the same cases, with the answers in place of the processes. Outputs are compared with the
float64 reference again, under the arithmetic that the candidate declares in a process of this machine. Statuses that no
array shows (a hazard, a crash) are taken from the worker.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from sdpalab.errors import MachineError, UserError
from sdpalab.judge.judgement import Start
from sdpalab.judge.options import JudgeOptions
from sdpalab.judge.sandbox.candidate import CandidateSpec
from sdpalab.judge.sandbox.isolation import CandidateDied, CandidateProcesses, room_for
from sdpalab.judge.sandbox.messages import Message, PlanReply, Text, plain
from sdpalab.judge.sandbox.wire import DTYPES
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

__all__ = ["Recorded", "RecordedRuns", "Recording"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Answer = tuple[dict[str, Any], dict[str, Array]]
_NEEDED: Mapping[str, tuple[str, ...]] = {"run": ("first.", "second."), "attempt": ("",), "run_in_ring": ()}
"""Recorded methods, and prefixes of the outputs of the task without which an answer of theirs is a failure."""


class SentArray(Message):
    """An array: ``data`` is base64 of its compressed bytes."""

    dtype: str
    shape: list[Annotated[int, Field(ge=0, lt=1 << 31)]]
    data: str


class RecordedDevice(Message):
    """Device of the processes."""

    device: Text
    arch: Text
    sms: int | None


class RecordedReply(PlanReply):
    """A reply of the processes, with the judge's additions."""

    confinement: Text = ""
    confined_by: Text = ""
    lse_refusal: Text = ""


class Recorded(Message):
    """One answer: to ``start``, or to a method of :class:`CandidateProcesses`.

    ``failure`` is the cause of its end: the candidate ``died`` with a ``status``, or the request or the machine was at
    fault.
    """

    call: Literal["start", "run", "attempt", "run_in_ring"]
    problem: str
    device: RecordedDevice | None = None
    reply: RecordedReply | None = None
    outputs: dict[Text, SentArray] = Field(default_factory=dict)
    failure: Literal["", "died", "user", "machine"] = ""
    status: str = ""
    reason: Text = ""


class Recording:
    """Records the answers of processes in order.

    Attributes
    ----------
    answers : list of dict
        Plain JSON values, each a :class:`Recorded`.
    """

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []

    def start(self, spec: CandidateSpec) -> Start:
        """Starts the processes of a candidate, and records their answers."""
        return partial(_RecordedCandidate, self, spec)

    def keep(self, call: str, problem: str, ask: Callable[[], Answer]) -> Answer:
        """Call, and record the answer or the failure, which is raised again."""
        answer: dict[str, Any] = {"call": call, "problem": problem}
        self.answers.append(answer)
        try:
            reply, outputs = ask()
        except CandidateDied as death:
            answer |= {"failure": "died", "status": death.status.value, "reason": death.reason}
            raise
        except (UserError, MachineError) as error:
            answer |= {"failure": "user" if isinstance(error, UserError) else "machine", "reason": str(error)}
            raise
        answer |= {"device" if call == "start" else "reply": json.loads(json.dumps(reply))}
        answer["outputs"] = {name: _sent(array) for name, array in outputs.items()}
        return reply, outputs


def _recorded(call: str) -> Callable[..., Answer]:
    """The method ``call`` of :class:`CandidateProcesses`, whose answers are recorded."""

    def recorded(self: _RecordedCandidate, problem: Problem, *arrays: Any, **how: Any) -> Answer:
        method = getattr(CandidateProcesses, call)
        return self.recording.keep(call, problem.label, lambda: method(self, problem, *arrays, **how))

    return recorded


class _RecordedCandidate(CandidateProcesses):
    """A candidate's processes whose answers are recorded."""

    run, attempt, run_in_ring = map(_recorded, _NEEDED)

    def __init__(
        self, recording: Recording, spec: CandidateSpec, problems: tuple[Problem, ...], options: JudgeOptions
    ) -> None:
        def start() -> Answer:
            super(_RecordedCandidate, self).__init__(spec, problems, options)
            return {"device": self.about["device"], "arch": self.about["arch"], "sms": self.about.get("sms")}, {}

        self.recording = recording
        recording.keep("start", _labels(problems), start)


def _replayed(call: str) -> Callable[..., Answer]:
    """Replacement of the method ``call`` of :class:`CandidateProcesses`: the next recorded answer."""

    def replayed(self: _ReplayedCandidate, problem: Problem, inputs: Arrays, *_: Any, **__: Any) -> Answer:
        answer = self.replay.next(call, problem.label)
        if answer.reply is None:
            raise _foreign(f"{call} of {problem.label}")
        outputs = {name: _array(sent, room_for(inputs)) for name, sent in answer.outputs.items()}
        reply = answer.reply.model_dump(exclude_unset=True)
        needed = {prefix + name for prefix in _NEEDED[call] for name in problem.outputs}
        if reply.get("status") is None and not needed <= outputs.keys():
            raise _foreign(f"{call} of {problem.label}, with its outputs")
        return reply, outputs

    return replayed


class RecordedRuns:
    """Replays recorded answers in order, in place of processes.

    Parameters
    ----------
    answers : sequence of dict
        Answers of a :class:`Recording`.
    about : mapping
        The candidate's description of itself in a process of this machine, for the same problems.

    Raises
    ------
    MachineError
        If a requested answer was not recorded, because the record is of other cases.
    """

    def __init__(self, answers: Sequence[Any], about: Mapping[str, Any]) -> None:
        self._about = about
        try:
            self._answers = iter([Recorded.model_validate_json(json.dumps(answer)) for answer in answers])
        except (ValidationError, TypeError, ValueError) as error:
            raise MachineError(f"the worker's record of its runs is malformed: {plain(str(error))[:300]}") from None

    def start(self, problems: tuple[Problem, ...], options: JudgeOptions) -> CandidateProcesses:
        """Replaces the start of a candidate's processes."""
        device = self.next("start", _labels(problems)).device
        if device is None:
            raise _foreign("start")
        about = {**self._about, "device": device.device}
        return _ReplayedCandidate(self, about | ({"arch": device.arch, "sms": device.sms} if options.gpu else {}))

    def next(self, call: str, problem: str) -> Recorded:
        """Return the next answer, or raise the recorded failure."""
        answer = next(self._answers, None)
        if answer is None or (answer.call, answer.problem) != (call, problem):
            raise _foreign(f"{call} of {problem}")
        if answer.failure == "died" and answer.status in _DEATHS:
            raise CandidateDied(Status(answer.status), answer.reason or "it died")
        if answer.failure:
            raise (UserError if answer.failure == "user" else MachineError)(answer.reason or "it failed")
        return answer


class _ReplayedCandidate(CandidateProcesses):
    """Recorded answers in place of a candidate's processes."""

    run, attempt, run_in_ring = map(_replayed, _NEEDED)

    def __init__(self, replay: RecordedRuns, about: dict[str, Any]) -> None:
        self.replay, self.about, self.alone = replay, about, False

    def close(self) -> None:
        """Does nothing."""

    def kill(self) -> None:
        """Does nothing."""


_DEATHS = {status.value for status in (Status.TIMED_OUT, Status.CRASHED, Status.INFRA_ERROR, Status.HAZARD)}


def _labels(problems: Sequence[Problem]) -> str:
    return ", ".join(problem.label for problem in problems)


def _foreign(asked: str) -> MachineError:
    return MachineError(f"the worker's record of its runs is not that of these cases: there is no {asked}")


def _sent(array: Array) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 1)).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def _array(sent: SentArray, room: int) -> Array:
    """Decode a sent array of at most ``room`` bytes."""
    dtype = DTYPES.get(sent.dtype, None)
    size = math.prod(sent.shape) * (dtype.itemsize if dtype is not None else 0)
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(sent.data, validate=True), min(size, room) + 1)
    except (ValueError, zlib.error):
        unpacked = b""
    if dtype is None or size > room or len(unpacked) != size:
        raise MachineError(f"the worker's record has an array that is none: {plain(sent.dtype)} {sent.shape}")
    return np.frombuffer(unpacked, dtype).reshape(sent.shape)
