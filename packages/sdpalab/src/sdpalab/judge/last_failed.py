"""Failed cases of a kernel's last judgement, for ``judge --rerun-failed``: stored in the user's data folder."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.strides import Strides
from sdpalab.judge.verdict import Verdict
from sdpalab.kernels.userfile import is_user_file
from sdpalab.problem import Problem
from sdpalab.user_folder import data_folder

__all__ = ["failed_cases", "note_failed"]


def note_failed(kernel: str, specs: Sequence[CaseSpec], verdict: Verdict) -> None:
    """Store the cases of ``specs`` that failed or were not judged, with their drawn seeds.

    Without write access to the data folder, nothing is stored.
    """
    bad = {case.name: case.seed for case in verdict.cases if not case.passed}
    chosen = [replace(spec, seed=bad[spec.name]) for spec in specs if spec.name in bad]
    chosen += [spec for spec in specs if spec.name in verdict.unjudged]
    named = {spec.name for spec in specs}
    chosen += [  # cases that the judge added to reach code
        CaseSpec(case.name, case.problem, case.inputs, case.seed, derived=True)
        for case in verdict.cases
        if case.name in bad and case.name not in named
    ]
    record = {"kernel": kernel, "cases": [_plain(spec) for spec in chosen]}
    path = _path(kernel)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(record))
        temporary.replace(path)


def failed_cases(kernel: str) -> tuple[CaseSpec, ...]:
    """The cases of ``kernel`` that failed or were not judged in its last judgement.

    Raises
    ------
    UserError
        If it was not judged here before, or all its cases passed.
    """
    try:
        record = json.loads(_path(kernel).read_bytes())
        specs = tuple(_spec(fields) for fields in record["cases"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"--rerun-failed: {kernel} was not judged here before; judge it without the option") from None
    if not specs:
        raise UserError(f"--rerun-failed: every case of {kernel} passed when it was last judged")
    return specs


def _path(kernel: str) -> Path:
    """The file of a kernel; a user's kernel is identified by the path of its file."""
    place = f"{Path.cwd()}/{kernel}" if is_user_file(kernel) and not Path(kernel).is_absolute() else kernel
    return data_folder() / "judged" / f"{sha256(place.encode()).hexdigest()[:32]}.json"


def _plain(spec: CaseSpec) -> dict[str, Any]:
    return {**asdict(spec), "problem": spec.problem.to_dict(), "strides": spec.strides.value}


def _spec(fields: dict[str, Any]) -> CaseSpec:
    return CaseSpec(**{**fields, "problem": Problem(**fields["problem"]), "strides": Strides(fields["strides"])})
