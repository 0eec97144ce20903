"""Times measured on GPUs: the records of ``sdpalab bench --json``.

They are stored in ``evidence/<gpu>/*.json``. A time is derived from its raw samples at every read; a record whose other
figures disagree with them is rejected.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from sdpalab.errors import MachineError
from sdpalab.evidence.environment import current_environment, harness_diff
from sdpalab.evidence.records import Environment
from sdpalab.evidence.store.folders import EVIDENCE
from sdpalab.measure.samples import ClockKind
from sdpalab.measure.statistics import Summary, summarise
from sdpalab.problem import Problem
from sdpalab.record import ENVELOPE, RECORD, JsonRecord, ProblemField, dataclass

if TYPE_CHECKING:
    from sdpalab.measure.session import MeasuredSession

__all__ = ["BenchRecord", "MeasuredTime", "WorstTime", "bench_record", "read_times", "session_result", "worst_times"]


FORMAT = 3
"""Format of new records. In formats up to 2, which can still be read, all times are on normal inputs, without
``worst``. Format 1 lacks ``format``, ``sms`` and ``complete``, and its comparisons lack the number of rounds."""


@dataclass(frozen=True, config=RECORD, kw_only=True)
class WorstTime(JsonRecord):
    """A subject's medians by kind of inputs, in microseconds; None for a kind without a time.

    ``inputs`` is the slowest kind; ``worst_us`` and ``ratio``, to the time on normal inputs, are None if a kind has no
    time, because the worst time is then unknown.
    """

    problem: ProblemField
    clock: str
    subject: str
    times_us: Mapping[str, float | None]
    inputs: str
    worst_us: float | None
    ratio: float | None


def worst_times(results: Sequence[Mapping[str, Any]]) -> tuple[WorstTime, ...]:
    """The worst time of each subject in sessions (a record's ``results``), by problem and clock.

    Raises
    ------
    ValueError, KeyError, TypeError
        If ``results`` are not sessions.
    """
    medians: dict[tuple[Problem, str, str], dict[str, float | None]] = {}
    for result in results:
        for measurement in result["measurements"]:
            key = Problem(**result["problem"]), str(result["clock"]), str(measurement["name"])
            summary = measurement["summary"]
            medians.setdefault(key, {})[result.get("inputs", "normal")] = summary and float(summary["median_us"])
    rows = []
    for (problem, clock, subject), times in medians.items():
        inputs = max(times, key=lambda kind: times[kind] or 0.0)
        worst, normal = times[inputs], times.get("normal")
        known = None not in times.values()
        rows.append(
            WorstTime(
                problem=problem,
                clock=clock,
                subject=subject,
                times_us=times,
                inputs=inputs,
                worst_us=worst if known else None,
                ratio=worst / normal if known and worst and normal else None,
            )
        )
    return tuple(rows)


@dataclass(frozen=True, config=RECORD, kw_only=True)
class BenchRecord(JsonRecord):
    """One call of ``sdpalab bench``: the GPU, the verdicts of its kernels, and each session with all samples.

    ``sms`` is the number of multiprocessors of the plans, None if no kernel of the lab could be launched; ``complete``
    is False until all sessions are done, and stays False after an interrupt. ``worst`` has the medians of each subject
    by kind of inputs (:func:`worst_times`).
    """

    added = ("format", "sms", "complete", "worst")

    record: Literal["bench"] = "bench"
    format: int = Field(default=1, ge=1, le=FORMAT)
    kind: Literal["measured"] = "measured"
    gpu: str
    sms: int | None = None
    complete: bool = True
    when: datetime
    environment: Environment
    judged: tuple[dict[str, Any], ...]
    results: tuple[dict[str, Any], ...]
    worst: tuple[WorstTime, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _out_of_its_envelope(cls, data: Any) -> Any:
        """The record in a document of ``bench --json``."""
        if isinstance(data, Mapping) and str(data.get("schema")).startswith("sdpalab/bench/"):
            return {name: value for name, value in data.items() if name not in ENVELOPE}
        return data


@dataclasses.dataclass(frozen=True)
class MeasuredTime:
    """The time of one subject.

    Attributes
    ----------
    subject : str
        A kernel of the lab, a peer, or ``empty kernel``.
    problem : Problem
    gpu : str
    when : datetime
    clock, l2 : str
        Clock of the time (:class:`sdpalab.measure.samples.ClockKind`), and the L2 state of the inputs.
    summary : Summary
        Microseconds per call.
    record : str
        Its record, as ``<gpu>/<file>``.
    inputs : str
        Kind of the inputs (:data:`sdpalab.inputs.TIMED_KINDS`).
    """

    subject: str
    problem: Problem
    gpu: str
    when: datetime
    clock: str
    l2: str
    summary: Summary
    record: str
    inputs: str = "normal"


def bench_record(
    gpu: str,
    judged: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    *,
    sms: int | None = None,
    complete: bool = True,
    environment: Environment | None = None,
) -> BenchRecord:
    """Record of a timing by this source on ``gpu``; ``environment`` defaults to the current one."""
    return BenchRecord(
        format=FORMAT,
        gpu=gpu,
        sms=sms,
        complete=complete,
        when=datetime.now(timezone.utc).replace(microsecond=0),
        environment=environment or current_environment(harness_diff()),
        judged=tuple(map(dict, judged)),
        results=tuple(map(dict, results)),
        worst=worst_times(results),
    )


def session_result(
    problem: Problem, clock: ClockKind, inputs: str, session: MeasuredSession, code: Mapping[str, Any]
) -> dict[str, Any]:
    """A session as an element of :attr:`BenchRecord.results`, its subjects compared with the fastest peer.

    Parameters
    ----------
    problem, clock, inputs
        The timed problem, clock and inputs; ``inputs`` is a kind (:func:`sdpalab.inputs.make_inputs`).
    session : MeasuredSession
    code : mapping of str to Any
        Result of :func:`sdpalab.evidence.store.timings.codes_of`.
    """
    from sdpalab.measure.benchmark import beside_fastest_peer

    _, against = beside_fastest_peer(session)
    return {
        "problem": problem.to_dict(),
        "clock": clock.value,
        "inputs": inputs,
        **session.to_dict(),
        "comparisons": [comparison.to_dict() for comparison in against.values()],
        "code": dict(code),
    }


def read_times(folder: Path = EVIDENCE) -> tuple[MeasuredTime, ...]:
    """All times of the records in the subfolders of ``folder``, in order; other files are skipped.

    Raises
    ------
    MachineError
        If a record of times is invalid, or its figures disagree with its samples.
    """
    times: list[MeasuredTime] = []
    for path in sorted(folder.glob("*/*.json")):
        name = f"{path.parent.name}/{path.name}"
        try:
            data = json.loads(path.read_bytes())
            if isinstance(data, dict) and data.get("record") == "kept":
                data = data.get("bench")  # of sdpalab prove --time
            if isinstance(data, dict) and data.get("record") == "bench":
                times += _times(BenchRecord.from_dict(data), name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MachineError(
                f"{name} in the evidence is not a valid record: {' '.join(str(error).split())}"
            ) from None
    return tuple(times)


def _times(record: BenchRecord, name: str) -> Iterator[MeasuredTime]:
    for result in record.results:
        problem = Problem(**result["problem"])
        for measurement in result["measurements"]:
            if measurement["summary"] is None:
                continue
            samples, summary = measurement["samples"], summarise(measurement["samples"]["times_us"])
            if summary.to_dict() != measurement["summary"]:
                raise ValueError(f"the summary of {measurement['name']} on {problem.label} is not that of its samples")
            clock_and_l2 = samples["clock"], samples["l2"]
            about = measurement["name"], problem, record.gpu, record.when, *clock_and_l2
            yield MeasuredTime(*about, summary, name, result.get("inputs", "normal"))
    if record.format >= 3 and record.worst != worst_times(record.results):
        raise ValueError("the worst times are not those of the sessions")
