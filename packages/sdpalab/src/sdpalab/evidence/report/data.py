"""Data of a report: the records and raw arrays of a bundle."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sdpalab.evidence.records import CUBIN, LOG, PTX, SOURCES, AttemptRecord, Environment, FloorRecord
from sdpalab.evidence.verifier.archive import read
from sdpalab.evidence.verifier.arrays import arrays_of, inputs_of
from sdpalab.inputs import Inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.judge.verdict import Case, Status
from sdpalab.problem import MISSION

__all__ = ["RULES", "CaseArrays", "ReportData"]

RULES = {
    "max_abs": "largest error",
    "rel_l2": "relative L2",
    "rms_row_rel_l2": "RMS of rows",
    "worst_row_rel_l2": "worst row",
    "lse": "log-sum-exp",
}
"""Names of the limited errors in the report."""


@dataclass(frozen=True)
class CaseArrays:
    """One case's output [B, H, Sq, D] in the problem's dtype, and the float64 reference."""

    case: Case
    out: Any
    reference: Any


@dataclass(frozen=True)
class ReportData:
    """Data of a report.

    Attributes
    ----------
    name : str
        Name of the bundle.
    environment : Environment
    attempts : tuple of AttemptRecord
    floors : tuple of FloorRecord
    arrays : mapping of str to bytes
        Raw arrays by digest.
    command : tuple of str
        The command line that made the bundle.
    sources : mapping of str to str
        Text of the files of users' kernels and of built sources with their headers, by their paths in the bundle.
    """

    name: str
    environment: Environment
    attempts: tuple[AttemptRecord, ...]
    floors: tuple[FloorRecord, ...]
    arrays: Mapping[str, bytes]
    command: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_members(cls, name: str, members: Mapping[str, bytes], command: Sequence[str] = ()) -> ReportData:
        """Build from the files of a bundle, by their paths in it, and the ``command`` of its manifest.

        Raises
        ------
        ValueError
            If a record is missing or invalid.
        """
        records = sorted(path for path in members if path.startswith("records/"))
        return cls(
            name=name,
            environment=Environment.from_dict(json.loads(members["environment.json"])),
            attempts=tuple(AttemptRecord.from_dict(json.loads(members[path])) for path in records),
            floors=tuple(FloorRecord.from_dict(gpu) for gpu in json.loads(members["floors.json"])["gpus"]),
            arrays={Path(path).stem: data for path, data in members.items() if path.startswith("arrays/")},
            command=tuple(command),
            sources={path: data.decode("utf-8", "replace") for path, data in members.items() if _is_source(path)},
        )

    @classmethod
    def read(cls, path: Path | str) -> ReportData:
        """Read a bundle, packed or unpacked, without verification.

        Raises
        ------
        ValueError
            If it is not a bundle, or a record in it is missing or invalid.
        """
        members, findings = read(Path(path))
        if findings:
            raise ValueError(f"{path}: {findings[0]}")
        manifest = json.loads(members["manifest.yaml"])
        return cls.from_members(manifest["name"], members, manifest["command"])

    @property
    def created(self) -> str:
        """UTC time at which the bundle was written, from its name; empty if the name has none."""
        match = re.search(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$", self.name)
        return "{}-{}-{} {}:{}:{} UTC".format(*match.groups()) if match else ""

    def case_names(self) -> list[str]:
        """Names of all cases that any attempt was judged on, in order of appearance."""
        cases = (case for attempt in self.attempts if attempt.verdict for case in attempt.verdict.cases)
        return list(dict.fromkeys(case.name for case in cases))

    def failed_arrays(self, case: Case) -> tuple[Inputs, dict[str, Any]]:
        """Inputs and outputs of a case in the problem's dtype, for :func:`~sdpalab.judge.diagnose.summary.summarise`.

        Raises
        ------
        KeyError
            If the bundle lacks an array of the case.
        """
        members = self._members
        inputs = inputs_of(case.problem, case.digests, members)
        return inputs, arrays_of(case.problem, case.digests, members, case.problem.outputs)

    def pictured(self, attempt: AttemptRecord) -> CaseArrays | None:
        """The arrays of the case that a picture of an attempt shows; None if it has none.

        The case is the first with a numerical failure, else the mission shape with the smallest seed, else the largest
        case.
        """
        cases = [case for case in (attempt.verdict.cases if attempt.verdict else ()) if self._has_arrays(case)]
        wrong = [case for case in cases if case.status in (Status.INCORRECT, Status.NOT_FINITE)]
        if not cases:
            return None
        case = (wrong or [max(cases, key=_fitness)])[0]
        inputs, outputs = self.failed_arrays(case)
        key = json.dumps([case.problem.to_dict(), inputs.digests()])
        if key not in self._references:
            scoring = case.problem.scoring_with(inputs.arrays)
            self._references[key] = attention_float64(*inputs.qkv, **scoring)
        return CaseArrays(case, outputs["o"], self._references[key])

    @cached_property
    def _members(self) -> dict[str, bytes]:
        """The arrays by their paths in the bundle."""
        return {f"arrays/{digest}.raw": content for digest, content in self.arrays.items()}

    @cached_property
    def _references(self) -> dict[str, Any]:
        """float64 references by problem and inputs, shared by kernels."""
        return {}

    def _has_arrays(self, case: Case) -> bool:
        judged = case.errors is not None and case.limits is not None
        names = ("q", "k", "v", *case.problem.array_shapes, "o")
        return judged and not case.problem.backward and all(case.digests.get(name) in self.arrays for name in names)


def _is_source(path: str) -> bool:
    """Whether a file of a bundle is source text: a file of a user's kernel, or a file of a build other than PTX, cubin
    and log."""
    folder, _, name = path.rpartition("/")
    return path.startswith(f"{SOURCES}/") or (folder.startswith("build/") and name not in (PTX, CUBIN, LOG))


def _fitness(case: Case) -> tuple[bool, bool, int, int]:
    """Sort key of the passed cases for the picture: the mission shape with normal inputs, else the largest problem."""
    return case.problem == MISSION, case.inputs == "normal", case.problem.scores, -case.seed
