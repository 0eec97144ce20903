"""Write the tables of both READMEs and of docs/kernels from the records, between their markers.

    python scripts/readme_tables.py --write
    python scripts/readme_tables.py --check

The ladder's figures are those of the newest record in ``evidence/ladder`` (``python -m lab ladder`` makes one), its
verdicts those of ``evidence/campaigns/verdicts-*.json`` (``python -m lab verdicts``), of each kernel the newest;
measured times those of the records of ``sdpalab bench --json`` in ``evidence/<gpu>``: the GPU's own clock, the mission
shape, inputs in L2. Where there is none, the tables say so; they name the kernels that changed after their record.
``--check`` exits with 1 if a page is not what the records say; a test does the same.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ladder_tables import (
    Times,
    counted_table,
    figures,
    ideas_table,
    judge_figures,
    judged_table,
    ladder_table,
    measured_table,
)

from sdpalab.compile import build, resources
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.store.measured import MeasuredTime, read_times
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.measure import gpu_named
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.problem import MISSION

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from lab.verdicts import code_of  # noqa: E402

FOLDER = ROOT / "evidence" / "ladder"
CAMPAIGNS = ROOT / "evidence" / "campaigns"
PAGES = (
    "README.md",
    "packages/sdpalab/README.md",
    "packages/sdpalab/docs/kernels/index.md",
    *(f"packages/sdpalab/docs/kernels/{name}.md" for name in KERNELS),
)

PUBLISHED = (
    *("registers", "static_shared_bytes", "dynamic_shared_bytes", "spill_bytes", "stack_bytes"),
    *("blocks_per_sm", "warps_per_sm", "limiter", "tensor_share"),
)
"""Figures of a cubin in the tables. Instructions may differ: NVRTC compiles ``scalar`` to one of several PTX texts."""
SEVERAL_CODES = ("scalar",)

_MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


# ---- records ---------------------------------------------------------------------------------------------------------


def newest(folder: Path = FOLDER) -> tuple[str, dict[str, Any]]:
    """Name and content of the newest record of the ladder; raises UserError without one."""
    records = [(path.name, json.loads(path.read_text())) for path in sorted(folder.glob("ladder-*.json"))]
    if not records:
        raise UserError("there is no record of the ladder in evidence/ladder: run python -m lab ladder")
    return max(records, key=lambda record: str(record[1]["when"]))


def newest_campaign(name: str, folder: Path = CAMPAIGNS) -> dict[str, Any]:
    """The newest record of a campaign; raises UserError if there is none."""
    records: list[dict[str, Any]] = [json.loads(path.read_text()) for path in folder.glob(f"{name}-*.json")]
    if not records:
        raise UserError(f"there is no record of {name} in {folder}")
    return max(records, key=lambda record: str(record["when"]))


def verdicts(folder: Path = CAMPAIGNS) -> dict[str, dict[str, Any]]:
    """By kernel of the ladder: the entry of the newest campaign that judged it at level full, and its ``record``."""
    records = [(path.name, json.loads(path.read_text())) for path in folder.glob("verdicts-*.json")]
    by_kernel: dict[str, dict[str, Any]] = {}
    for name, record in sorted(records, key=lambda each: str(each[1]["when"])):
        by_kernel |= {each["kernel"]: {**each, "record": name} for each in record["verdicts"]}
    return {name: by_kernel[name] for name in KERNELS if name in by_kernel}


def mission_times(times: Iterable[MeasuredTime]) -> Times:
    """Times of the mission shape by the GPU's own clock with inputs in L2; for each GPU, subject and kind the newest.

    Subjects without a time on normal inputs are omitted.
    """
    by_gpu: Times = {}
    for time in sorted(times, key=lambda time: time.when):
        if (time.problem, time.clock, time.l2) == (MISSION, ClockKind.GPU.value, L2State.WARM.value):
            by_gpu.setdefault(time.gpu, {}).setdefault(time.subject, {})[time.inputs] = time
    return {
        gpu: {subject: kinds for subject, kinds in subjects.items() if "normal" in kinds}
        for gpu, subjects in by_gpu.items()
    }


def uses_other_resources(entry: Mapping[str, Any]) -> bool:
    """Whether the kernel of a ladder record uses other resources, or has another default configuration, today."""
    kernel = KERNELS.get(entry["kernel"])
    if kernel is None or needs(kernel.name) is not None:
        return False
    if entry["config"] != str(kernel.default_config):
        return True
    for gpu, on in entry["on"].items():
        launches = kernel.launch_plan(MISSION, sms=gpu_named(gpu).sms).launches
        recorded = [step["resources"] for step in on["steps"] if "resources" in step]
        used = [resources(build(each.module, on["arch"]), each).to_dict() for each in launches if each.module]
        if len(used) != len(recorded):
            return True
        if any(now[name] != then[name] for now, then in zip(used, recorded, strict=True) for name in PUBLISHED):
            return True
    return False


def has_other_code(judged: Mapping[str, Any]) -> bool:
    """Whether the code of a kernel is another than that of its recorded verdict."""
    kernel = KERNELS.get(judged["kernel"])
    if kernel is None or needs(kernel.name) is not None or kernel.name in SEVERAL_CODES:
        return False
    return bool(judged["code_sha256"] != code_of(kernel))


# ---- pages -----------------------------------------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """The text of each table, by the name in its marker."""
    name, record = newest()
    times = mission_times(read_times())
    judged = {kernel: {**each, "changed": has_other_code(each)} for kernel, each in verdicts().items()}
    changed = [entry["kernel"] for entry in record["kernels"] if uses_other_resources(entry)]
    source = f"\n\nRecord: `evidence/ladder/{name}`."
    source += f" Changed since: {', '.join(f'`{kernel}`' for kernel in changed)}." if changed else ""
    return {
        "ladder": ladder_table(record, times),
        "ideas": ideas_table(record),
        "judge": judge_figures(newest_campaign("self-test"), newest_campaign("calibration")),
        "measured": measured_table(times),
        "counted": counted_table(record) + source,
        "judged": judged_table(judged, [entry["kernel"] for entry in record["kernels"]]),
        **{
            f"figures-{entry['kernel']}": figures(entry, judged.get(entry["kernel"])) + source
            for entry in record["kernels"]
        },
    }


def filled(text: str, contents: Mapping[str, str]) -> str:
    """A page with its tables filled in; raises UserError for an unknown marker, or one without an end."""
    if text.count("<!-- table: ") != len(_MARKED.findall(text)):
        raise UserError("a marker <!-- table: NAME --> has no <!-- end of table --> after it")

    def fill(match: re.Match[str]) -> str:
        if match[2] not in contents:
            raise UserError(f"there is no table {match[2]!r}; there are {', '.join(contents)}")
        return f"{match[1]}\n{contents[match[2]]}\n\n{match[3]}"

    return _MARKED.sub(fill, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or list those that differ from the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true")
    what.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    try:
        contents = tables()
        pages = {name: filled((ROOT / name).read_text(), contents) for name in PAGES}
    except (UserError, MachineError) as error:
        print(f"readme_tables: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 3
    stale = [name for name, text in pages.items() if (ROOT / name).read_text() != text]
    for name in stale:
        if given.write:
            (ROOT / name).write_text(pages[name])
        print(f"wrote {name}" if given.write else f"{name} differs from the records: run it with --write")
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
