"""What ``gpu_suite.sh`` does with records: python scripts/gpu_records.py COMMAND OUT

    candidates OUT   names the kernels that this GPU can run on the mission shape
    collect OUT      copies the verdicts of OUT/verdicts/*/*.tar.gz to OUT/evidence/<gpu>/
    green OUT        names the kernels whose verdict there is PASSED, those that may be timed

``OUT/evidence/<gpu>`` is what is to be committed as ``evidence/<gpu>``: verdicts, and beside them the times that
``sdpalab bench --json`` writes. Names are printed on one line, with spaces between them.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from pathlib import Path

from sdpalab.errors import UserError
from sdpalab.evidence.proven import read_proofs
from sdpalab.evidence.records import AttemptRecord
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.problem import MISSION

USAGE = "usage: scripts/gpu_records.py candidates|collect|green OUT"


def folder_of(gpu: str) -> str:
    """The name of a GPU's folder: ``h200`` of ``NVIDIA H200``, ``a100-sxm4-80gb`` of ``NVIDIA A100-SXM4-80GB``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")


def candidates(capability: tuple[int, int]) -> list[str]:
    """The shipped kernels that a GPU of that compute capability runs on the mission shape, in the ladder's order."""
    from sdpalab.run.gpu_launch import arch_of

    arch = arch_of(capability)
    return [
        name
        for name in KERNELS
        if needs(name) is None
        and KERNELS[name].arch_reason(arch) is None
        and KERNELS[name].reject_reason(MISSION) is None
    ]


def collect(out: Path) -> list[Path]:
    """Copy each bundle's attempts that a GPU judged, and return where they are now."""
    written = []
    for bundle in sorted((out / "verdicts").glob("*/*.tar.gz")):
        with tarfile.open(bundle) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member) if "/records/" in f"/{member.name}" else None
                if file is None:
                    continue
                data = json.loads(file.read())
                if not {"kernel", "verdict"} <= data.keys():
                    continue
                attempt = AttemptRecord.model_validate(data)
                if attempt.verdict is None or attempt.verdict.device.startswith(("simulator", "cpu")):
                    continue
                target = out / "evidence" / folder_of(attempt.verdict.device) / f"{attempt.kernel}.json"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(attempt.model_dump_json(indent=1) + "\n")
                written.append(target)
    return written


def green(out: Path) -> list[str]:
    """The kernels that the records in ``OUT/evidence`` prove, in the ladder's order."""
    proven = {proof.kernel for proof in read_proofs(out / "evidence")}
    return [name for name in KERNELS if name in proven]


def main(arguments: list[str]) -> int:
    """Do what the command says; exit code 2 for wrong usage."""
    if len(arguments) != 2 or arguments[0] not in ("candidates", "collect", "green"):
        print(USAGE, file=sys.stderr)
        return 2
    command, out = arguments[0], Path(arguments[1])
    try:
        if command == "candidates":
            from sdpalab.measure.benchmark import cuda_device

            arch = cuda_device().arch
            print(*candidates((arch // 10, arch % 10)))
        elif command == "collect":
            for path in collect(out):
                print(path.relative_to(out))
        else:
            print(*green(out))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
