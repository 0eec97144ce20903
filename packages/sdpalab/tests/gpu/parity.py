"""A kernel on the GPU against the simulator, case by case: python tests/gpu/parity.py KERNEL RECORDS [--case-seconds S]

KERNEL is a shipped one, or a Python file with one. RECORDS (JSON Lines) gets a line when a case begins on the GPU and
one when it ended, at once: whatever happens to the process, what was done is kept, and a later call goes on behind it.
A case that began and never ended hung or died; it is recorded as that, and not tried again.

Exit code: 0 if all cases agree; 1 if one does not; 2 for wrong usage; 3 without a GPU; 4 if the process had to end
because a kernel hung or faulted, and a new one has the rest to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from parity_tolerance import narrow_sums, tolerance

from sdpalab import Config, Kernel, Problem
from sdpalab.compile import build
from sdpalab.errors import MachineError, UserError
from sdpalab.inputs import make_inputs
from sdpalab.kernels.registry import KERNELS, load_kernel, needs
from sdpalab.measure.prebuild import COMPARED
from sdpalab.run import GpuExecutor, KernelFault, SimulatedExecutor
from sdpalab.run.gpu_gemm import gemm_problem

__all__ = ["AGAIN", "ParityCase", "Records", "cases_of", "compare", "kernel_names"]

AGAIN = 4


@dataclass(frozen=True)
class ParityCase:
    """A kernel in one configuration on one problem with one kind of inputs."""

    kernel: Kernel
    problem: Problem
    config: Config
    inputs: str

    @property
    def label(self) -> str:
        """Its name in records and among the tests."""
        return "-".join(filter(None, (self.kernel.name, self.problem.label, str(self.config), self.inputs)))


def kernel_names() -> Iterator[str]:
    """Every kernel there is here."""
    yield from (name for name in KERNELS if needs(name) is None)


def kernel_of(name: str) -> Kernel:
    """The kernel of that name, or in that file."""
    kernel = load_kernel(name)
    if not isinstance(kernel, Kernel):
        raise UserError(f"{name} is no kernel that the lab builds, and nothing of it can be compared")
    return kernel


def cases_of(kernel: Kernel) -> Iterator[ParityCase]:
    """Every configuration on normal inputs, the default one first, and that also on inputs with outliers."""
    for place, config in enumerate(map(Config, kernel.configs)):
        for problem in COMPARED:
            if kernel.why_not(problem, config) is None:
                for kind in ("normal", "outlier") if place == 0 else ("normal",):
                    yield ParityCase(kernel, problem, config, kind)


class Records:
    """The file with one line for each begin and each end of a case."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _legal(path.read_text().splitlines()) if path.exists() else []
        self.ended = {line["case"]: line for line in lines if "agrees" in line}
        self._began = [line["began"] for line in lines if "began" in line]
        # A line that was cut off would spoil the next one.
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for label in dict.fromkeys(self._began):
            if label not in self.ended:
                self.end(label, agrees=False, error="the process died in this case, or hung beyond all limits")

    def begin(self, label: str) -> None:
        """A case is on the GPU from now on."""
        self._append({"began": label})

    def end(self, label: str, **fields: Any) -> None:
        """The outcome; ``agrees`` is part of it."""
        self.ended[label] = {"case": label, **fields}
        self._append(self.ended[label])

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _legal(lines: Sequence[str]) -> list[dict[str, Any]]:
    configs = []
    for line in lines:
        try:
            configs.append(json.loads(line))
        except ValueError:
            break
    return configs


def compare(gpu: GpuExecutor, case: ParityCase, records: Records | None = None, seconds: float = 0.0) -> dict[str, Any]:
    """Run a case on the simulator, then on the GPU, and hold the difference against what hardware explains.

    Parameters
    ----------
    gpu : GpuExecutor
    case : ParityCase
    records : Records, optional
        Gets the begin; and the end, if the GPU does not end within ``seconds``: the process then ends with code 4.
    seconds : float
        For the GPU's share; 0 for no limit.

    Raises
    ------
    UserError, MachineError, KernelFault
        As the executors do.
    """
    problem, numerics = case.problem, case.kernel.numerics_of(case.config)
    drawn = make_inputs(problem, case.inputs)
    inputs, plan = (
        {"q": drawn.q, "k": drawn.k, "v": drawn.v},
        case.kernel.launch_plan(problem, case.config, sms=gpu.sms),
    )
    if plan.launches != plan.steps and gemm_problem():
        return {"agrees": True, "skipped": gemm_problem()}
    builds = [build(step.module, gpu.arch) for step in plan.launches if step.module is not None]
    simulated = SimulatedExecutor(gpu.arch).run(plan, inputs, builds=builds)
    if records is not None:
        records.begin(case.label)
    watch = threading.Timer(seconds, _give_up, (case, records, seconds)) if seconds and records else None
    try:
        if watch:
            watch.daemon = True
            watch.start()
        measured = gpu.run(plan, inputs, builds=builds)
    finally:
        if watch:
            watch.cancel()
    one, other = (np.asarray(result.outputs["o"]).astype(np.float64) for result in (measured, simulated))
    allowed = tolerance(problem, drawn, numerics, narrow_sums([each.ptx for each in builds], gpu.arch))
    distance = float(np.linalg.norm(one - other) / np.linalg.norm(other))
    wrong = [
        *(f"the GPU: {each}" for each in measured.hazards),
        *(f"the simulator: {each}" for each in simulated.hazards),
        *(f"input {each} was changed" for each in measured.changed_inputs),
    ]
    if measured.ptx_sha256 != simulated.ptx_sha256:
        wrong.append("the two ran different PTX")
    if not distance <= allowed.total:  # NaN is on neither side
        wrong.append(f"relative L2 distance {distance:.2e}, and {allowed.total:.2e} are explained")
    return {
        "agrees": not wrong,
        "error": "; ".join(wrong) or None,
        "relative_l2": distance if np.isfinite(distance) else None,
        "tolerance": allowed.total,
        "explained": {name: getattr(allowed, name) for name in ("output", "weights", "inputs", "sums")},
        "different_elements": int((one != other).sum()),
        "elements": int(one.size),
        "gpu": gpu.device,
        "ptx_sha256": list(measured.ptx_sha256),
    }


def _give_up(case: ParityCase, records: Records, seconds: float) -> None:
    """From another thread: the driver waits for a kernel that does not end, and nothing can interrupt it."""
    records.end(case.label, agrees=False, error=f"no end within {seconds:g} s on the GPU")
    print(f"{case.label}: no end within {seconds:g} s on the GPU", flush=True)
    os._exit(AGAIN)


def run(name: str, path: Path, seconds: float) -> int:
    """Compare what of a kernel is not in the records yet."""
    kernel, gpu, records = kernel_of(name), GpuExecutor(), Records(path)
    reason = kernel.why_not_on(gpu.arch)
    if reason is not None:
        raise UserError(reason)
    for case in cases_of(kernel):
        if case.label in records.ended:
            continue
        try:
            comparison = compare(gpu, case, records, seconds)
        except KernelFault as fault:
            records.end(case.label, agrees=False, error=f"FAULT: {fault}")
            print(f"{case.label}: FAULT: {fault}", flush=True)
            return AGAIN
        except UserError as error:
            comparison = {"agrees": False, "error": str(error)}
        records.end(case.label, **comparison)
        says = (
            comparison["error"]
            if comparison.get("error")
            else comparison.get("skipped") or f"{comparison['relative_l2']:.2e}"
        )
        print(f"{case.label}: {says}", flush=True)
    good = sum(each["agrees"] for each in records.ended.values())
    print(f"{kernel.name}: {good} of {len(records.ended)} cases agree with the simulator")
    return 0 if good == len(records.ended) else 1


def main(words: Sequence[str]) -> int:
    """Do what the usage says."""
    parser = argparse.ArgumentParser(prog="tests/gpu/parity.py")
    parser.add_argument("kernel")
    parser.add_argument("records", type=Path)
    parser.add_argument("--case-seconds", type=float, default=10.0)
    asked = parser.parse_args(words)
    try:
        return run(asked.kernel, asked.records, asked.case_seconds)
    except (UserError, MachineError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UserError) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
