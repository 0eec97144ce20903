"""Answers in the form of flashinfer-bench: a Trace for each audited solution.

Source: flashinfer-bench, ``data/trace.py`` and ``data/workload.py``. A Trace of an audit has no performance, because no
GPU ran the solution; flashinfer-bench reads one of status PASSED only after its own run has added it. The workload is
the judged one, not one of the task's files, whose sizes are those of a GPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpalab.errors import UserError
from sdpalab.formats.submission import Submission
from sdpalab.status import Status

if TYPE_CHECKING:
    from sdpalab.formats.audit import Audited

__all__ = ["trace_of", "write_traces"]

_NUMERICAL = (Status.INCORRECT, Status.NOT_FINITE, Status.STALE, Status.NONDETERMINISTIC, Status.INCONSISTENT)
_STATUSES: Mapping[str, str] = {
    Status.PASSED.value: "PASSED",
    **{status.value: "INCORRECT_NUMERICAL" for status in _NUMERICAL},
    Status.BUILD_FAILED.value: "COMPILE_ERROR",
    Status.TIMED_OUT.value: "TIMEOUT",
    **{each.value: "RUNTIME_ERROR" for each in (Status.CRASHED, Status.HAZARD, Status.BY_TORCH, Status.INPUT_CHANGED)},
}
"""Status of flashinfer-bench by ours; a status of the machine, or of a refused submission, has none."""
_NO_TIME = "performance: none, because the simulator has no clock of a GPU"


def trace_of(submission: Submission, row: Audited) -> dict[str, Any] | None:
    """The Trace of a row; None for another format, a refused submission, or a failure of the machine."""
    status = _status(row)
    if submission.format != "flashinfer" or not status:
        return None
    definition = submission.facts["definition"]
    evaluation: dict[str, Any] = {
        "status": status,
        "environment": {"hardware": "simulator sm_90 (warpsan)", "libs": _libraries()},
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "log": "\n".join(filter(None, (row.reason, *row.unjudged, _NO_TIME))),
        "correctness": None,
        "performance": None,
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        shown = ("status", "problem", "cases", "coverage", "provenance", "own", "check")
        evaluation["correctness"] = {
            "max_relative_error": _number(row.relative_error),
            "max_absolute_error": _number(row.absolute_error),
            "extra": {name: getattr(row, name) for name in shown},
        }
    axes = dict(row.axes)
    digest = sha256(json.dumps([definition["name"], axes], sort_keys=True).encode()).hexdigest()[:32]
    return {
        "definition": definition["name"],
        "workload": {
            "axes": axes,
            "inputs": {name: {"type": "random"} for name in definition["inputs"]},
            "uuid": f"sdpalab-{digest}",
        },
        "solution": submission.facts["name"],
        "evaluation": evaluation,
    }


def write_traces(folder: Path, submissions: Sequence[Submission], rows: Sequence[Audited]) -> int:
    """Write ``DEFINITION.jsonl`` with a line for each solution; the number of lines.

    Raises
    ------
    UserError
        If the folder cannot be written.
    """
    lines: dict[str, list[str]] = {}
    for submission, row in zip(submissions, rows, strict=True):
        trace = trace_of(submission, row)
        if trace is not None:
            lines.setdefault(str(trace["definition"]), []).append(json.dumps(trace))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, some in lines.items():
            (folder / f"{Path(name).name}.jsonl").write_text("\n".join(some) + "\n")
    except OSError as error:
        raise UserError(f"--trace {folder}: cannot write: {error.strerror}") from None
    return sum(map(len, lines.values()))


def _status(row: Audited) -> str:
    if row.status == Status.BAD_OUTPUT.value:
        kinds = {"has shape": "INCORRECT_SHAPE", "has dtype": "INCORRECT_DTYPE"}
        return next((kind for text, kind in kinds.items() if text in row.reason), "RUNTIME_ERROR")
    return _STATUSES.get(row.status, "")


def _number(value: float | None) -> float | str:
    """A number as flashinfer-bench writes it: NaN and infinity are texts."""
    if value is None or value != value:
        return "NaN"
    return "Infinity" if value == float("inf") else value


def _libraries() -> dict[str, str]:
    versions = {}
    for name in ("sdpalab", "warpsan", "torch", "triton", "nvidia-cuda-nvrtc"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
