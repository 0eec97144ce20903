"""The records of ``gpu_suite.sh``: python scripts/gpu_records.py COMMAND [FOLDER]

    probe               the GPU, what to build for, and the kernels that it runs, as JSON; exit code 3 without a GPU
    environment FOLDER  FOLDER/environment.json: versions, commit, and how the judge's processes are confined

``WORK/evidence/<gpu>`` is what is to be committed as ``evidence/<gpu>``: verdicts, times, comparisons, golden vectors.
"""

from __future__ import annotations

import json
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.folders import folder_of
from sdpalab.evidence.proven import read_proofs
from sdpalab.evidence.records import AttemptRecord
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.problem import MISSION
from sdpalab.run.gpu_gemm import gemm_problem

USAGE = "usage: scripts/gpu_records.py probe | environment FOLDER"


@dataclass(frozen=True)
class Workspace:
    """The folder in which the suite works on one GPU.

    Attributes
    ----------
    path : Path
    gpu : str
        The GPU's name, as its driver gives it.
    """

    path: Path
    gpu: str

    @property
    def evidence(self) -> Path:
        """The records to commit, in a folder named after the GPU."""
        return self.path / "evidence" / folder_of(self.gpu)

    def replay(self, shard: int) -> Path:
        """Where a share of the simulator's tests keeps its golden vectors."""
        return self.path / "replay" / str(shard)

    def log(self, part: str) -> Path:
        """What a part printed."""
        return self.path / "logs" / f"{part}.log"

    def state(self, part: str) -> dict[str, Any]:
        """How a part ended; empty if it was never begun, or its record was cut off."""
        try:
            record = json.loads((self.path / "parts" / f"{part}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def keep(self, part: str, state: dict[str, Any]) -> None:
        """Record how a part ended."""
        write_text(self.path / "parts" / f"{part}.json", json.dumps(state, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file in one step, so that an interrupt leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.replace(path)


def candidates(arch: str) -> tuple[list[str], list[str]]:
    """The shipped kernels that are built for ``arch`` and run the mission shape, in order; why the others are not."""
    names, refused = [], []
    for name in KERNELS:
        why = needs(name)
        if why is None:
            why = KERNELS[name].arch_reason(arch) or KERNELS[name].reject_reason(MISSION) or _no_library(KERNELS[name])
        if why is None:
            names.append(name)
        else:
            refused.append(why)
    return names, refused


def _no_library(kernel: Kernel) -> str | None:
    """Why the matrix products of a kernel that leaves them to cuBLAS cannot be computed here; None if they can."""
    plan = kernel.launch_plan(MISSION)
    problem = gemm_problem() if plan.launches != plan.steps else ""
    return f"kernel {kernel.name}: {problem}" if problem else None


def probe() -> dict[str, Any]:
    """The GPU and what it runs; raises MachineError where there is none."""
    from sdpalab.run import GpuExecutor

    executor = GpuExecutor()
    names, refused = candidates(executor.arch)
    return {"gpu": executor.device, "arch": executor.arch, "kernels": names, "refused": refused}


def collect(work: Workspace) -> list[Path]:
    """Copy each bundle's attempts that a GPU judged, and what ``prove`` kept, to the evidence; return where they are
    now.

    A bundle that cannot be read, because its writer was ended, is left where it is.
    """
    written = []
    for bundle in sorted((work.path / "verdicts").glob("*/*.tar.gz")):
        try:
            attempts = _attempts(bundle)
        except (OSError, EOFError, tarfile.TarError, ValueError) as error:
            print(f"{bundle.name}: not a bundle: {error}", file=sys.stderr)
            continue
        for attempt in attempts:
            if attempt.verdict is None or attempt.verdict.device.startswith(("simulator", "cpu")):
                continue
            target = work.evidence / f"{attempt.kernel}.json"
            write_text(target, attempt.model_dump_json(indent=1) + "\n")
            written.append(target)
    for proof in sorted((work.path / "data" / "proofs").glob("*/*.json")):
        target = work.evidence / proof.name
        write_text(target, proof.read_text())
        written.append(target)
    return written


def _attempts(bundle: Path) -> list[AttemptRecord]:
    attempts = []
    with tarfile.open(bundle) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if "/records/" in f"/{member.name}" else None
            if file is None:
                continue
            data = json.loads(file.read())
            if {"kernel", "verdict"} <= data.keys():
                attempts.append(AttemptRecord.model_validate(data))
    return attempts


def green(work: Workspace) -> list[str]:
    """The kernels that the collected records prove, in the ladder's order."""
    read_proofs.cache_clear()  # records were added since the last call
    proven = {proof.kernel for proof in read_proofs(work.evidence.parent)}
    return [name for name in KERNELS if name in proven]


def why_not_green(work: Workspace, kernel: str) -> str:
    """Why a kernel is not timed: its verdict's status and reason, or how the part that was to judge it ended."""
    try:
        verdict = AttemptRecord.model_validate_json((work.evidence / f"{kernel}.json").read_bytes()).verdict
    except (OSError, ValueError):
        verdict = None
    if verdict is not None:
        bad = next((case for case in verdict.cases if case.status.value != "PASSED"), None)
        return f"{bad.status.value}: {bad.reason}" if bad else "the verdict holds, but not the static gate"
    state = work.state(f"verdict_{kernel}")
    return f"it has no verdict ({state.get('reason') or state.get('state') or 'it was not judged'})"


def has_times(file: Path) -> bool:
    """Whether a record of ``sdpalab bench`` holds at least one time."""
    try:
        results = json.loads(file.read_bytes())["results"]
        return any(measurement["summary"] for result in results for measurement in result["measurements"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def merge_golden(work: Workspace) -> None:
    """Put the golden vectors of all shards into ``evidence/<gpu>/golden.jsonl``: each launch once."""
    target = work.evidence / "golden.jsonl"
    header, launches = "", {}
    for path in (target, *sorted((work.path / "replay").glob("*/golden.jsonl"))):
        lines = path.read_text().splitlines() if path.exists() else []
        for number, line in enumerate(lines):
            try:
                record = json.loads(line)
            except ValueError:
                break  # the last line of a run that was cut off
            if number == 0:
                header = header or line
                if line != header:
                    print(f"{path.parent.name}: recorded on another GPU or driver, and left out", file=sys.stderr)
                    break
            else:
                launches[record["digest"]] = line
    if launches:
        write_text(target, "\n".join((header, *launches.values())) + "\n")


def share_golden(work: Workspace, shard: int) -> None:
    """Give a shard that has no file of its own the launches that an earlier call has recorded."""
    known, file = work.evidence / "golden.jsonl", work.replay(shard) / "golden.jsonl"
    if known.exists() and not file.exists():
        write_text(file, known.read_text())


def environment(folder: Path) -> str:
    """Write ``environment.json``; returns the sentence on the confinement of the judge's processes."""
    from sdpalab.evidence.environment import current_environment, harness_diff

    confinement, sentence = _confinement()
    record = {**current_environment(harness_diff()).model_dump(mode="json"), "confinement": confinement}
    write_text(folder / "environment.json", json.dumps(record, indent=1) + "\n")
    return f"confinement: {sentence}"


def _confinement() -> tuple[str, str]:
    """The confinement of a process with a candidate's code here: ``namespaces`` or ``processes``, and a sentence about
    it."""
    from sdpalab.judge.sandbox.guarded import GuardedProcess, Quota, describe

    process = GuardedProcess("sdpalab.judge.sandbox.worker", Quota(cpu_seconds=60), untrusted=True)
    try:
        process.await_ready()
        return process.confinement, describe(process.confinement, process.confined_by)
    finally:
        process.close()


def main(arguments: list[str]) -> int:
    """Run the command; exit code 2 for wrong usage, 3 without a GPU."""
    try:
        if arguments == ["probe"]:
            print(json.dumps(probe()))
        elif len(arguments) == 2 and arguments[0] == "environment":
            print(environment(Path(arguments[1])))
        else:
            print(USAGE, file=sys.stderr)
            return 2
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except MachineError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
