"""What was timed on GPUs: the records that ``sdpalab bench --json`` writes, and the times that they hold.

``evidence/<gpu>/*.json`` keeps them. A time is derived from its raw samples again whenever it is read: what a record
says beside them must agree, or the record is not believed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from sdpalab.errors import MachineError
from sdpalab.evidence.environment import current_environment, harness_diff
from sdpalab.evidence.proven import EVIDENCE
from sdpalab.evidence.records import Environment, Record
from sdpalab.measure.statistics import Summary, summarise
from sdpalab.problem import Problem

__all__ = ["BenchRecord", "MeasuredTime", "bench_record", "read_times"]


class BenchRecord(Record):
    """One call of ``sdpalab bench``: the GPU, what judged its kernels, and each session with all samples."""

    record: Literal["bench"] = "bench"
    kind: Literal["measured"] = "measured"
    gpu: str
    when: datetime
    environment: Environment
    judged: tuple[dict[str, Any], ...]
    results: tuple[dict[str, Any], ...]


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
    """

    subject: str
    problem: Problem
    gpu: str
    when: datetime
    clock: str
    l2: str
    summary: Summary
    record: str


def bench_record(gpu: str, judged: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> BenchRecord:
    """The record of what was timed just now, by this source, on ``gpu``."""
    return BenchRecord(
        gpu=gpu,
        when=datetime.now(timezone.utc).replace(microsecond=0),
        environment=current_environment(harness_diff()),
        judged=tuple(map(dict, judged)),
        results=tuple(map(dict, results)),
    )


def read_times(folder: Path = EVIDENCE) -> tuple[MeasuredTime, ...]:
    """Every time in the records in the folders of ``folder``, in order; other files there are skipped.

    Raises
    ------
    MachineError
        If a record of times is not a legal one, or says of a subject what its samples do not.
    """
    found: list[MeasuredTime] = []
    for path in sorted(folder.glob("*/*.json")):
        name = f"{path.parent.name}/{path.name}"
        try:
            data = json.loads(path.read_bytes())
            if isinstance(data, dict) and data.get("record") == "bench":
                found += _times(BenchRecord.model_validate(data), name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MachineError(f"{name} in the evidence is no legal record: {' '.join(str(error).split())}") from None
    return tuple(found)


def _times(record: BenchRecord, name: str) -> Iterator[MeasuredTime]:
    for result in record.results:
        problem = Problem(**result["problem"])
        for found in result["measurements"]:
            if found["summary"] is None:
                continue
            samples, summary = found["samples"], summarise(found["samples"]["times_us"])
            if summary.to_dict() != found["summary"]:
                raise ValueError(f"the summary of {found['name']} on {problem.label} is not that of its samples")
            kept = samples["clock"], samples["l2"]
            yield MeasuredTime(found["name"], problem, record.gpu, record.when, *kept, summary, name)
