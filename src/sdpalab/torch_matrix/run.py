"""The same candidate and the same inputs in one environment per torch version, and the matrix of the results."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import dtype_of
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem
from sdpalab.torch_matrix.compare import compare
from sdpalab.torch_matrix.environments import (
    CannotInstall,
    TorchEnvironment,
    check_version,
    lab_packages,
    make_environment,
    this_environment,
)
from sdpalab.torch_matrix.matrix import Matrix, Run

__all__ = ["MAX_DOWNLOAD", "run_matrix"]

MAX_DOWNLOAD = 4 << 30
"""Bytes that one environment may download by default: torch's CUDA build with all its libraries is about 3 GB."""

_PACKAGE = Path(__file__).resolve().parents[1]
_BOOT = "import sys; sys.path[:0] = sys.argv[2:]; from sdpalab.torch_matrix.runner import main; main(sys.argv[1])"


def run_matrix(
    candidate: str,
    versions: Sequence[str],
    specs: Sequence[CaseSpec],
    *,
    config: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    max_bytes: int = MAX_DOWNLOAD,
    tell: Callable[[str], None] = lambda message: None,
) -> Matrix:
    """Judge ``candidate`` with each version of torch, and compare the results.

    Parameters
    ----------
    candidate : str
        A registry name, or ``FILE.py[:NAME]``.
    versions : sequence of str
        Versions of torch; the first that runs is the base. A build of the version that this process has is not
        installed again.
    specs : sequence of CaseSpec
        The cases, each with its seed: hidden ones would differ between the versions.
    config : mapping of str to str, optional
        Knobs of a CUDA or Triton kernel.
    packages : sequence of str
        What the candidate imports beyond the lab's own packages and torch's, as pip takes it.
    max_bytes : int
        Most that one environment may download.
    tell : callable
        Called with a short description of each step.

    Returns
    -------
    Matrix
        A version that cannot be installed, or in which nothing runs, is a row with a reason.

    Raises
    ------
    UserError
        If a version is invalid, the candidate does not load here, or these cases do not suit it in any version.
    MachineError
        If there is no version in which anything could be run.
    """
    chosen = [check_version(version) for version in dict.fromkeys(versions)]
    assert all(spec.seed is not None for spec in specs), "hidden seeds would differ between the versions"
    tell("trying the candidate here")
    # What does not load here, or does not compute this, is said before gigabytes are downloaded for it.
    judge_candidate(candidate, specs[:1], config=config)
    with tempfile.TemporaryDirectory(prefix="sdpalab-torch-") as name:
        exchange = _Exchange(Path(name), candidate, specs, config, tell)
        runs = [exchange.run(version, packages, max_bytes) for version in chosen]
        if all(run.reason for run in runs):
            if exchange.refusals:
                raise UserError(exchange.refusals[0])
            raise MachineError("; ".join(f"torch {run.asked}: {run.reason}" for run in runs))
        tell("comparing")
        return compare(specs, runs, exchange.load)


class _Exchange:
    """The folder through which this process and those of the environments exchange data: the order, the lab, arrays and
    results."""

    def __init__(
        self,
        folder: Path,
        candidate: str,
        specs: Sequence[CaseSpec],
        config: Mapping[str, str] | None,
        tell: Callable[[str], None],
    ) -> None:
        self._folder, self._steps, self._tell = folder, 2 * len(specs), tell
        self._arrays = folder / "arrays"
        self._arrays.mkdir()
        # A copy: all versions get the same lab, and with it none of the packages that it may be installed beside.
        shutil.copytree(_PACKAGE, folder / "lab" / "sdpalab", ignore=shutil.ignore_patterns("__pycache__"))
        self._order = {
            "candidate": candidate,
            "config": dict(config or {}),
            "specs": [{**asdict(spec), "problem": spec.problem.to_dict()} for spec in specs],
            "arrays": str(self._arrays),
        }
        self.refusals: list[str] = []

    def run(self, version: str, packages: Sequence[str], max_bytes: int) -> Run:
        """Run everything with one version."""
        try:
            environment = this_environment(version) or make_environment(
                version, (*lab_packages(version), *packages), max_bytes=max_bytes, tell=self._tell
            )
        except CannotInstall as error:
            return Run(version, reason=str(error))
        result = self._started(version, environment)
        reason = str(result.get("refused", ""))
        if result.get("users_fault"):
            self.refusals.append(reason)
        verdict = result.get("verdict", {})
        if verdict.get("status") == Status.INFRA_ERROR.value:
            # Nothing was found out about the kernel: this torch has no yardstick for these inputs, or no worker lived.
            reason = str(verdict["reason"])
        return Run(
            version,
            torch=str(result.get("torch", environment.torch)),
            here=environment.here,
            about={name: str(result[name]) for name in ("python", "numpy", "device") if name in result},
            reason=reason,
            verdict=verdict,
            witnesses=result.get("witnesses", {}),
            missing=result.get("missing", {}),
        )

    def load(self, digest: str, problem: Problem) -> npt.NDArray[Any]:
        """An output that one of the environments left."""
        data = (self._arrays / digest).read_bytes()
        return np.frombuffer(data, dtype_of(problem.dtype)).reshape(problem.q_shape)

    def _started(self, version: str, environment: TorchEnvironment) -> dict[str, Any]:
        """The runner's result; ``refused`` with the end of what it printed if it left none."""
        order, result, errors = (self._folder / f"{version}.{kind}" for kind in ("order", "result", "stderr"))
        order.write_text(json.dumps({**self._order, "result": str(result)}))
        command = [environment.python, "-I", "-c", _BOOT, str(order), str(self._folder / "lab"), *environment.path]
        self._tell(f"torch {environment.torch}: starting")
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
            try:
                assert process.stdout is not None
                for step, _ in enumerate(process.stdout, 1):
                    self._tell(f"torch {environment.torch}: step {step} of {self._steps}")
                process.wait()
            finally:
                process.kill()
                process.wait()
        try:
            outcome: dict[str, Any] = json.loads(result.read_text())
        except (OSError, ValueError):
            lines = errors.read_text(errors="replace").strip().splitlines()
            last = lines[-1] if lines else f"exit code {process.returncode}"
            return {"refused": f"the run in its environment failed: {last}"}
        return outcome
