"""What was timed on GPUs: the records that ``sdpalab bench --json`` writes, and the times that they hold.

``evidence/<gpu>/*.json`` keeps them. A time is derived from its raw samples again whenever it is read: the other
figures of the record must agree with them, or the record is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from sdpalab.errors import MachineError
from sdpalab.evidence.environment import current_environment, harness_diff
from sdpalab.evidence.folders import EVIDENCE
from sdpalab.evidence.records import Environment, Record
from sdpalab.measure.benchmark import beside_fastest_peer
from sdpalab.measure.samples import ClockKind
from sdpalab.measure.session import MeasuredSession
from sdpalab.measure.statistics import Summary, summarise
from sdpalab.problem import Problem
from sdpalab.record import ENVELOPE, ProblemField

__all__ = ["BenchRecord", "MeasuredTime", "WorstTime", "bench_record", "read_times", "session_result", "worst_times"]


FORMAT = 3
"""Of the records that are written. Up to 2, which are read as well, all times are on normal inputs, and nothing is
``worst``. 1 has neither ``format`` nor ``sms`` nor ``complete``, and its comparisons do not say how many rounds they
rest on."""


class WorstTime(Record):
    """A subject's medians by kind of inputs, microseconds: None where it has no time on those inputs.

    ``inputs`` are those on which it is slowest; ``worst_us`` and ``ratio``, to the time on normal inputs, are None
    where a kind of inputs has no time: then its worst is not known.
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
        If these are no sessions.
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


class BenchRecord(Record):
    """One call of ``sdpalab bench``: the GPU, what judged its kernels, and each session with all samples.

    ``sms`` are the multiprocessors that the plans are for, None where no kernel of the lab could be launched;
    ``complete`` is False while sessions are still to come, and stays so if the call was interrupted. ``worst`` has the
    medians of each subject by kind of inputs (:func:`worst_times`).
    """

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
        """The record of a document as ``bench --json`` writes it."""
        if isinstance(data, Mapping) and str(data.get("schema")).startswith("sdpalab/bench/"):
            return {name: value for name, value in data.items() if name not in ENVELOPE}
        return data


@dataclass(frozen=True)
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
        What it is a time of (:class:`sdpalab.measure.samples.ClockKind`), and where the inputs were.
    summary : Summary
        Microseconds a call.
    record : str
        Where it is from, as ``<gpu>/<file>``.
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
    """The record of what was timed just now, by this source, on ``gpu``; ``environment`` is the current one if not
    given."""
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
        What was timed: ``inputs`` is a kind (:func:`sdpalab.inputs.make_inputs`).
    session : MeasuredSession
    code : mapping of str to Any
        As :func:`sdpalab.evidence.timings.codes_of` gives it.
    """
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
    """Every time in the records in the folders of ``folder``, in order; other files there are skipped.

    Raises
    ------
    MachineError
        If a record of times is not a legal one, or says of a subject what its samples do not.
    """
    times: list[MeasuredTime] = []
    for path in sorted(folder.glob("*/*.json")):
        name = f"{path.parent.name}/{path.name}"
        try:
            data = json.loads(path.read_bytes())
            if isinstance(data, dict) and data.get("record") == "kept":
                data = data.get("bench")  # of sdpalab prove --time
            if isinstance(data, dict) and data.get("record") == "bench":
                times += _times(BenchRecord.model_validate(data), name)
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
