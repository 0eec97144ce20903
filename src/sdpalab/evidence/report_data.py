"""What a report is made from: the records and raw arrays of a bundle, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdpalab.evidence.records import SOURCES, AttemptRecord, Environment, FloorRecord
from sdpalab.evidence.verifier.archive import read
from sdpalab.evidence.verifier.arrays import array_shape, decode
from sdpalab.evidence.verifier.attention import reference_of
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
"""The limited errors, as the report names them."""

_SHOWN = (Status.PASSED, Status.INCORRECT)
"""Statuses whose arrays make a picture: finite, and judged by the rule."""


@dataclass(frozen=True)
class CaseArrays:
    """One case's output [B, H, Sq, D] as float32, and the float64 reference."""

    kernel: str
    case: Case
    out: Any
    exact: Any


@dataclass(frozen=True)
class ReportData:
    """What a report is made from.

    Attributes
    ----------
    name : str
        Of the bundle.
    environment : Environment
    attempts : tuple of AttemptRecord
    floors : tuple of FloorRecord
    arrays : mapping of str to bytes
        Raw arrays by digest.
    sources : mapping of str to str
        Text of the files of users' kernels, by their paths in the bundle.
    """

    name: str
    environment: Environment
    attempts: tuple[AttemptRecord, ...]
    floors: tuple[FloorRecord, ...]
    arrays: Mapping[str, bytes]
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_members(cls, name: str, members: Mapping[str, bytes]) -> ReportData:
        """From the files of a bundle, by their paths in it.

        Raises
        ------
        ValueError
            If a record is missing or illegal.
        """
        records = sorted(path for path in members if path.startswith("records/"))
        return cls(
            name=name,
            environment=Environment.model_validate_json(members["environment.json"]),
            attempts=tuple(AttemptRecord.model_validate_json(members[path]) for path in records),
            floors=tuple(FloorRecord.model_validate(gpu) for gpu in json.loads(members["floors.json"])["gpus"]),
            arrays={Path(path).stem: data for path, data in members.items() if path.startswith("arrays/")},
            sources={
                path: data.decode("utf-8", "replace")
                for path, data in members.items()
                if path.startswith(f"{SOURCES}/")
            },
        )

    @classmethod
    def read(cls, path: Path | str) -> ReportData:
        """From a bundle, packed or unpacked; the bundle is not verified.

        Raises
        ------
        ValueError
            If it is no bundle, or a record in it is missing or illegal.
        """
        members, findings = read(Path(path))
        if findings:
            raise ValueError(f"{path}: {findings[0]}")
        return cls.from_members(json.loads(members["manifest.yaml"])["name"], members)

    @property
    def created(self) -> str:
        """UTC time at which the bundle was written, from its name; empty if the name has none."""
        match = re.search(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$", self.name)
        return "{}-{}-{} {}:{}:{} UTC".format(*match.groups()) if match else ""

    def case_names(self) -> list[str]:
        """Names of all cases that any attempt was judged on, in order of appearance."""
        cases = (case for attempt in self.attempts if attempt.verdict for case in attempt.verdict.cases)
        return list(dict.fromkeys(case.name for case in cases))

    def pictured(self) -> list[CaseArrays]:
        """For each attempt the arrays of one case: the mission shape with the least seed, or else the largest case."""
        pictures: list[CaseArrays] = []
        references: dict[str, Any] = {}
        for attempt in self.attempts:
            cases = [case for case in (attempt.verdict.cases if attempt.verdict else ()) if self._complete(case)]
            if not cases:
                continue
            case = max(cases, key=lambda c: (c.problem == MISSION, c.problem.scores, -c.seed))
            problem = case.problem.to_dict()
            arrays = {
                name: decode(self.arrays[case.digests[name]], array_shape(name, problem), case.problem.dtype)
                for name in ("q", "k", "v", "o")
            }
            key = json.dumps([problem, [case.digests[name] for name in "qkv"]])
            if key not in references:
                q, k, v = (arrays[name] for name in "qkv")
                references[key] = reference_of(q, k, v, problem)
            pictures.append(CaseArrays(attempt.kernel, case, arrays["o"], references[key]))
        return pictures

    def _complete(self, case: Case) -> bool:
        return case.status in _SHOWN and all(case.digests.get(name) in self.arrays for name in ("q", "k", "v", "o"))
