"""Write the tables of README.md and docs/ladder.md that are made of records, between their markers.

    python scripts/readme_tables.py --write
    python scripts/readme_tables.py --check

The ladder's figures are those of the newest record in ``evidence/ladder`` (``sdpalab campaign ladder`` makes one), its
verdicts those of ``evidence/campaigns/verdicts-*.json`` (``sdpalab campaign verdicts``), of each kernel the newest;
measured times those of the records of ``sdpalab bench --json`` in ``evidence/<gpu>``: the GPU's own clock, the mission
shape, inputs in L2. Where there is none, the tables say so. ``--check`` exits with 1 if a page is not what the records
say; a test does the same.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdpalab.errors import MachineError, UserError
from sdpalab.evidence.measured import MeasuredTime, read_times
from sdpalab.kernels.registry import KERNELS
from sdpalab.kernels.tuned import entries_of, shipped_entries
from sdpalab.measure.samples import ClockKind, L2State
from sdpalab.problem import MISSION

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "evidence" / "ladder"
CAMPAIGNS = ROOT / "evidence" / "campaigns"
PAGES = ("README.md", "docs/ladder.md")
NOT_RUN = "not yet run on hardware"

Times = dict[str, dict[str, MeasuredTime]]
"""By GPU and subject."""

_MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


# ---- records ---------------------------------------------------------------------------------------------------------


def newest(folder: Path = FOLDER) -> tuple[str, dict[str, Any]]:
    """Name and content of the newest record of the ladder; raises UserError if there is none."""
    records = [(path.name, json.loads(path.read_text())) for path in sorted(folder.glob("ladder-*.json"))]
    if not records:
        raise UserError("there is no record of the ladder in evidence/ladder: run sdpalab campaign ladder")
    return max(records, key=lambda record: str(record[1]["when"]))


def verdicts(folder: Path = CAMPAIGNS) -> dict[str, dict[str, Any]]:
    """The entry of the newest campaign that judged a kernel at level full, and its ``record``; by kernel."""
    records = [(path.name, json.loads(path.read_text())) for path in folder.glob("verdicts-*.json")]
    by_kernel: dict[str, dict[str, Any]] = {}
    for name, record in sorted(records, key=lambda each: str(each[1]["when"])):
        by_kernel |= {each["kernel"]: {**each, "record": name} for each in record["verdicts"]}
    return by_kernel


def mission_times(times: Iterable[MeasuredTime]) -> Times:
    """Those of the mission shape by the GPU's own clock with inputs in L2; of each subject and GPU the newest."""
    by_gpu: Times = {}
    for time in sorted(times, key=lambda time: time.when):
        if (time.problem, time.clock, time.l2) == (MISSION, ClockKind.GPU.value, L2State.WARM.value):
            by_gpu.setdefault(time.gpu, {})[time.subject] = time
    return by_gpu


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; every column but the first on the right if its cells are figures."""
    rows = list(rows)
    figures = [all(re.match(r"[-\d]|none|not yet", row[place]) for row in rows) for place in range(len(heads))]
    rule = ["---:" if figure else "---" for figure in figures]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *rows))


def ladder_table(record: Mapping[str, Any], times: Times) -> str:
    """One row a kernel, for the front page."""
    heads = ("kernel", "idea", "registers", "shared", "HMMA", "conflicts", "instructions", *record["gpus"], "measured")
    rows = []
    for entry in record["kernels"]:
        first = next(iter(entry["on"].values()))
        used = first["steps"][first["main"]]["resources"]
        total = _sum(first)
        rows.append(
            (
                f"`{entry['kernel']}`",
                entry["idea"],
                str(used["registers"]),
                f"{round(_shared(used) / 1024, 1):g} KiB",
                _share(used["tensor_share"]),
                _ratio(total, "wavefronts"),
                f"{total['warps'] / 1e6:.2f} M",
                *(_us(entry["on"].get(gpu)) + _tuned(entry["kernel"], gpu) for gpu in record["gpus"]),
                _measured(entry["kernel"], times),
            )
        )
    return "\n\n".join((table(heads, rows), *not_modelled(record)))


def compiled_table(record: Mapping[str, Any]) -> str:
    """One row for each launch and architecture, from its cubin."""
    heads = (
        *("kernel", "entry", "architecture", "registers", "shared bytes", "spilled", "stack"),
        *("blocks an SM", "warps an SM", "kept out by", "HMMA"),
    )
    rows = []
    for entry in record["kernels"]:
        for on in entry["on"].values():
            for step in on["steps"]:
                if "resources" in step:
                    used = step["resources"]
                    figures = ("registers", "", "spill_bytes", "stack_bytes", "blocks_per_sm", "warps_per_sm")
                    cells = [str(used[name] if name else _shared(used)) for name in figures]
                    names = (f"`{entry['kernel']}`", f"`{step['name']}`", on["arch"])
                    rows.append((*names, *cells, used["limiter"], _share(used["tensor_share"])))
    return table(heads, rows)


def counted_table(record: Mapping[str, Any]) -> str:
    """One row for each kernel and GPU: what was counted, and what is modelled from it."""
    heads = (
        *("kernel", "GPU", "steps", "instructions", "MFLOP", "exponentials", "conflicts", "sectors", "CTAs"),
        *("waves", "issue, PTX", "issue, SASS", "warm us", "cold us", "binds"),
    )
    rows = []
    for entry in record["kernels"]:
        for gpu, on in entry["on"].items():
            total, main = _sum(on), on["steps"][on["main"]]
            time = on["modelled"]
            step = time["steps"][on["main"]] if time else {"wave_efficiency": None, "issue_share": None}
            times = (time["microseconds"], on["modelled_cold_us"]) if time else ()
            rows.append(
                (
                    *(f"`{entry['kernel']}`", gpu, str(len(on["steps"])), f"{total['warps'] / 1e6:.2f} M"),
                    *(f"{total['tensor_flops'] / 1e6:.0f}", f"{total['exponentials'] / 1e6:.2f} M"),
                    *(_ratio(total, "wavefronts"), _ratio(total, "sectors"), str(main["counters"]["ctas"])),
                    *(_percent(step["wave_efficiency"]), _percent(step["issue_share"])),
                    _percent(main["loop_issue_share"]),
                    *([f"{us:.2f}" for us in times] or ("-", "-")),
                    time["binds"] if time else "-",
                )
            )
    return "\n\n".join((table(heads, rows), *not_modelled(record)))


def not_modelled(record: Mapping[str, Any]) -> list[str]:
    """A sentence for each kernel and GPU without a modelled time."""
    return [
        f"No time is modelled for `{entry['kernel']}` on the {gpu}: {on['not_modelled']}."
        for entry in record["kernels"]
        for gpu, on in entry["on"].items()
        if on.get("not_modelled")
    ]


def judged_table(judged: Mapping[str, Mapping[str, Any]], kernels: Sequence[str]) -> str:
    """One row a kernel: its verdict at level full, and the share of each limit that it came to at most."""
    heads = (
        *("kernel", "on", "cases passed", "largest error", "relative L2", "RMS row", "worst row", "LSE"),
        *("exact elements", "original contract", "record"),
    )
    limits = ("max_abs", "rel_l2", "rms_row_rel_l2", "worst_row_rel_l2", "lse")
    rows = []
    for name in kernels:
        each = judged.get(name)
        if each is None:
            rows.append((f"`{name}`", "not yet judged at this level", *("-" for _ in heads[2:])))
            continue
        rows.append(
            (
                *(f"`{name}`", each["device"].removeprefix("simulator ")),
                f"{each['statuses'].get('PASSED', 0)} of {each['cases']}",
                *(f"{each['nearest'][limit]['share']:.0%}" if limit in each["nearest"] else "-" for limit in limits),
                f"{each['exact'] - each['exact_wrong']:,} of {each['exact']:,}" if each["exact"] else "none",
                f"{each['original_contract']} of {each['cases']}",
                f"`evidence/campaigns/{each['record']}`",
            )
        )
    return table(heads, rows)


def measured_table(times: Times) -> str:
    """Every subject on every GPU that there are records of, the fastest first."""
    if not times:
        return f"Kernels and peers: {NOT_RUN}. `sdpalab bench` measures them where there is a GPU."
    rows = [
        (time.gpu, f"`{time.subject}`", f"{time.summary.median_us:.2f}", f"`evidence/{time.record}`")
        for subjects in times.values()
        for time in sorted(subjects.values(), key=lambda time: time.summary.median_us)
    ]
    return table(("GPU", "subject", "median us", "record"), rows)


def _sum(on: Mapping[str, Any]) -> dict[str, int]:
    """The counts of all launches together; the FLOPs also of library products."""
    names = ("warps", "tensor_flops", "exponentials", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts")
    total = dict.fromkeys(names, 0)
    for step in on["steps"]:
        for name in names:
            total[name] += step["counters"][name] if "counters" in step else 0
        if "product" in step:
            total["tensor_flops"] += step["product"]["flops"]
    return total


def _shared(used: Mapping[str, Any]) -> int:
    return int(used["static_shared_bytes"] + used["dynamic_shared_bytes"])


def _share(share: float | None) -> str:
    return f"{share:.1%}" if share else "none"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _ratio(total: Mapping[str, int], name: str) -> str:
    """Passes, or sectors, over the fewest possible."""
    return f"{total[name] / total[f'ideal_{name}']:.2f}x" if total[f"ideal_{name}"] else "none"


def _us(on: Mapping[str, Any] | None) -> str:
    return f"{on['modelled']['microseconds']:.1f} us" if on and on["modelled"] else "-"


def _tuned(kernel: str, gpu: str) -> str:
    """The modelled time of the kernel's shipped tuned default for the mission shape, if it has one there."""
    wanted = [
        entry
        for entry in shipped_entries()
        if (entry.kernel, entry.gpu, entry.searched, entry.clock) == (kernel, gpu, MISSION, "modelled")
    ]
    current = entries_of(KERNELS[kernel], wanted) if wanted else ()
    return "".join(f", tuned {entry.tuned_us:.1f} us" for entry in current)


def _measured(kernel: str, times: Times) -> str:
    of_kernel = [subjects[kernel] for subjects in times.values() if kernel in subjects]
    cells = [f"{time.gpu}: {time.summary.median_us:.2f} us" for time in of_kernel]
    return ", ".join(cells) or NOT_RUN.removesuffix(" on hardware")


# ---- pages -----------------------------------------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """The text of each table, by the name in its marker."""
    name, record = newest()
    times = mission_times(read_times())
    source = f"\n\nRecord: `evidence/ladder/{name}`."
    return {
        "ladder": ladder_table(record, times),
        "measured": measured_table(times),
        "compiled": compiled_table(record) + source,
        "counted": counted_table(record) + source,
        "judged": judged_table(verdicts(), [entry["kernel"] for entry in record["kernels"]]),
    }


def filled(text: str, contents: Mapping[str, str]) -> str:
    """A page with its tables filled in; raises UserError for a marker that names none, or has no end."""
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
