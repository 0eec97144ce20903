"""Markdown tables of the ladder's records: comparisons of the kernels, and the figures of one kernel.

``readme_tables.py`` reads the records and fills the pages. Tables fit the width of a page: a kernel's figures are
rows, with a column for each architecture or GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sdpalab.evidence.store.measured import MeasuredTime
from sdpalab.evidence.store.tuned import tuned_entries
from sdpalab.inputs import TIMED_KINDS
from sdpalab.kernels.registry import KERNELS
from sdpalab.problem import MISSION

NOT_RUN = "not yet run on hardware"
NOT_JUDGED = "not yet judged at this level"

Times = dict[str, dict[str, dict[str, MeasuredTime]]]
"""Times by GPU, subject, and kind of inputs."""

LIMITS = {
    "max_abs": "largest error",
    "rel_l2": "relative L2",
    "rms_row_rel_l2": "RMS row",
    "worst_row_rel_l2": "worst row",
    "lse": "log-sum-exp",
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns of figures, the first excepted, are aligned to the right."""
    rows = list(rows)
    figures = [all(re.match(r"[-\d]|none|not yet", row[place]) for row in rows) for place in range(len(heads))]
    rule = ["---:" if figure else "---" for figure in figures]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *rows))


# ---- kernels beside one another --------------------------------------------------------------------------------------


def ladder_table(record: Mapping[str, Any], times: Times) -> str:
    """One row per kernel, for the front page."""
    heads = ("kernel", "idea", *record["gpus"], "measured")
    rows = [
        (
            f"`{entry['kernel']}`",
            entry["idea"],
            *(_us(entry["on"].get(gpu)) + _tuned(entry["kernel"], gpu) for gpu in record["gpus"]),
            _measured(entry["kernel"], times),
        )
        for entry in record["kernels"]
    ]
    return "\n\n".join((table(heads, rows), *_elsewhere(record), *not_modelled(record)))


def _elsewhere(record: Mapping[str, Any]) -> list[str]:
    """A sentence for each kernel that runs on none of the table's GPUs."""
    return [
        f"`{entry['kernel']}` runs on a {gpu} only, modelled at {_us(on)}."
        for entry in record["kernels"]
        for gpu, on in entry["on"].items()
        if gpu not in record["gpus"]
    ]


def ideas_table(record: Mapping[str, Any]) -> str:
    """One row per kernel, with a link to its page."""
    return table(("kernel", "idea"), [(_link(entry["kernel"]), entry["idea"]) for entry in record["kernels"]])


def judge_figures(self_test: Mapping[str, Any], calibration: Mapping[str, Any]) -> str:
    """A sentence on planted bugs that the judge rejects and correct implementations that it accepts."""
    bugs, correct = self_test["totals"], calibration["totals"]
    return (
        f"The judge rejects {bugs['killed']} of {bugs['planted']} kernels with one planted bug each, and "
        f"{correct['false_alarms'] or 'none'} of {correct['implementations']} correct implementations in "
        f"{correct['runs']:,} runs."
    )


def counted_table(record: Mapping[str, Any]) -> str:
    """One row for each kernel: bank conflicts on its first GPU, and the modelled figures of each GPU."""
    gpus = record["gpus"]
    heads = ("kernel", "conflicts", *(f"{figure}, {gpu}" for gpu in gpus for figure in ("waves", "us", "limited by")))
    rows = []
    for entry in record["kernels"]:
        conflicts = _ratio(_sum(next(iter(entry["on"].values()))), "wavefronts")
        rows.append(
            (_link(entry["kernel"]), conflicts, *(cell for gpu in gpus for cell in _cells(entry["on"].get(gpu))))
        )
    return "\n\n".join((table(heads, rows), *_elsewhere(record), *not_modelled(record)))


def _cells(on: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Wave efficiency, modelled microseconds and the limiting resource on one GPU."""
    if not on or not on["modelled"]:
        return "-", "-", "-"
    time = on["modelled"]
    waves = time["steps"][on["main"]]["wave_efficiency"]
    return _percent(waves), f"{time['microseconds']:.2f}", time["binds"]


def judged_table(judged: Mapping[str, Mapping[str, Any]], kernels: Sequence[str]) -> str:
    """One row per kernel: its verdict at level full, and the limit with the smallest margin."""
    rows = []
    for name in kernels:
        each = judged.get(name)
        if each is None:
            rows.append((_link(name), NOT_JUDGED, "-"))
            continue
        limits = [name for name in LIMITS if name in each["nearest"]]
        nearest = max(limits, key=lambda limit: each["nearest"][limit]["share"])
        share = f"{each['nearest'][nearest]['share']:.0%} ({LIMITS[nearest]})"
        rows.append((_link(name), _passed(each), share))
    return table(("kernel", "cases passed", "nearest to a limit"), rows)


def measured_table(times: Times) -> str:
    """All subjects on all GPUs with records, the fastest first."""
    if not times:
        return f"Kernels and peers: {NOT_RUN}. `sdpalab bench` measures them where there is a GPU."
    rows = []
    for subjects in times.values():
        for kinds in sorted(subjects.values(), key=lambda kinds: kinds["normal"].summary.median_us):
            time = kinds["normal"]
            median = f"{time.summary.median_us:.2f}"
            rows.append((time.gpu, f"`{time.subject}`", median, _worst(kinds), f"`evidence/{time.record}`"))
    return table(("GPU", "subject", "median us", "worst us", "record"), rows)


def _worst(kinds: Mapping[str, MeasuredTime]) -> str:
    """The longest median and its inputs; a dash if a kind of inputs has no time."""
    if any(kind not in kinds for kind in TIMED_KINDS):
        return "-"
    worst = max(kinds.values(), key=lambda time: time.summary.median_us)
    return f"{worst.summary.median_us:.2f} ({worst.inputs})"


def not_modelled(record: Mapping[str, Any]) -> list[str]:
    """A sentence for each kernel and GPU without a modelled time."""
    return [
        f"No time is modelled for `{entry['kernel']}` on the {gpu}: {on['not_modelled']}."
        for entry in record["kernels"]
        for gpu, on in entry["on"].items()
        if on.get("not_modelled")
    ]


# ---- one kernel ------------------------------------------------------------------------------------------------------


def figures(entry: Mapping[str, Any], judged: Mapping[str, Any] | None) -> str:
    """Figures of one kernel by kind: its main launch compiled, all launches simulated and modelled, and judged."""
    gpus = list(entry["on"].items())
    mains = [(on, on["steps"][on["main"]]) for _, on in gpus]
    parts = [f"Knobs: `{entry['config']}`, the default.", _compiled(f"*compiled*: `{mains[0][1]['name']}`", mains)]
    parts.append(_simulated_and_modelled(gpus))
    if entry.get("loops"):
        parts.append(_loops(entry["loops"]))
    parts += not_modelled({"kernels": [entry]})
    parts.append(_judged(judged) if judged else f"Judged: {NOT_JUDGED}.")
    return "\n\n".join(parts)


def _compiled(head: str, launches: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    used = [step["resources"] for _, step in launches]
    rows = [
        ("registers a thread", *(str(each["registers"]) for each in used)),
        ("shared memory a block", *(f"{_shared(each):,} bytes" for each in used)),
        ("spilled; stack", *(f"{each['spill_bytes']}; {each['stack_bytes']} bytes" for each in used)),
        (
            "blocks; warps an SM, limited by",
            *(f"{each['blocks_per_sm']}; {each['warps_per_sm']}, {each['limiter']}" for each in used),
        ),
        ("tensor share of the main loop", *(_share(each["tensor_share"]) for each in used)),
    ]
    return table((head, *(on["arch"] for on, _ in launches)), rows)


def _simulated_and_modelled(gpus: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    totals, mains = [_sum(on) for _, on in gpus], [on["steps"][on["main"]] for _, on in gpus]
    times = [on["modelled"] for _, on in gpus]
    steps = [time["steps"][on["main"]] if time else {} for time, (_, on) in zip(times, gpus, strict=True)]
    cold = [f"{on['modelled_cold_us']:.2f} us" if on["modelled"] else "-" for _, on in gpus]
    worst = [_worst_modelled(on.get("by_inputs")) for _, on in gpus]
    rows = [
        ("warp instructions", *(f"{total['warps'] / 1e6:.2f} M" for total in totals)),
        ("bank conflicts", *(_ratio(total, "wavefronts") for total in totals)),
        ("sectors", *(_ratio(total, "sectors") for total in totals)),
        ("launches; CTAs", *(f"{len(on['steps'])}; {on['steps'][on['main']]['counters']['ctas']}" for _, on in gpus)),
    ]
    modelled = [
        ("issue over tensor time", *(_percent(_by_machine_code(*each)) for each in zip(mains, steps, strict=True))),
        ("time, inputs in L2", *(f"{time['microseconds']:.2f} us" if time else "-" for time in times)),
        ("time, inputs in DRAM", *cold),
        *([("worst time, inputs in L2", *worst)] if any(on.get("by_inputs") for _, on in gpus) else []),
    ]
    names = [gpu for gpu, _ in gpus]
    return table(("*simulated*; issue and times *modelled*", *names), rows + modelled)


def _worst_modelled(by_inputs: Mapping[str, Any] | None) -> str:
    """The longest modelled time and its inputs."""
    if by_inputs is None or by_inputs["worst_us"] is None:
        return "-"
    return f"{by_inputs['worst_us']:.2f} us ({by_inputs['inputs']})"


def _by_machine_code(main: Mapping[str, Any], step: Mapping[str, Any]) -> float | None:
    """Issue slots over tensor time by the machine code of a whole launch; None without a path or a product."""
    share, ran = step.get("issue_share"), main["machine_instructions"]
    return float(share * ran / main["counters"]["warps"]) if share and ran else None


def _loops(loops: Sequence[Mapping[str, Any]]) -> str:
    """Clocks of an iteration of the main loop per 128 rows by 128 keys, on the long problems."""
    heads = ("*compiled*: an iteration", "instructions", "tensor", "issue", "special", "registers; spilled")
    rows = []
    for loop in loops:
        turn = loop["turn"]
        clocks = (f"{turn['tensor']:.0f}", f"{turn['issue']:.0f}", f"{turn['units']['special']:.0f}") if turn else ()
        used = f"{loop['registers']}; {loop['spill_bytes']}"
        rows.append((loop["label"], str(turn["instructions"]) if turn else "-", *(clocks or ("-",) * 3), used))
    return "Clocks of an SM for each 128 rows by 128 keys:\n\n" + table(heads, rows)


def _judged(each: Mapping[str, Any]) -> str:
    nearest = each["nearest"]
    shares = ", ".join(f"{LIMITS[name]} {nearest[name]['share']:.0%}" for name in LIMITS if name in nearest)
    return (
        f"Judged at level full on the {each['device']} (*simulated*): {_passed(each)} cases passed. "
        f"Share of each limit: {shares}. Record: `evidence/campaigns/{each['record']}`."
    )


# ---- cells -----------------------------------------------------------------------------------------------------------


def _link(kernel: str) -> str:
    return f"[`{kernel}`]({kernel}.md)"


def _passed(each: Mapping[str, Any]) -> str:
    return f"{each['statuses'].get('PASSED', 0)} of {each['cases']}{', before a change' if each['changed'] else ''}"


def _sum(on: Mapping[str, Any]) -> dict[str, int]:
    """The counts of all launches together."""
    names = ("warps", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts")
    total = dict.fromkeys(names, 0)
    for step in on["steps"]:
        for name in names:
            total[name] += step["counters"][name] if "counters" in step else 0
    return total


def _shared(used: Mapping[str, Any]) -> int:
    return int(used["static_shared_bytes"] + used["dynamic_shared_bytes"])


def _share(share: float | None) -> str:
    return f"{share:.1%}" if share else "none"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _ratio(total: Mapping[str, int], name: str) -> str:
    """Passes, or sectors, over the least possible number."""
    return f"{total[name] / total[f'ideal_{name}']:.2f}x" if total[f"ideal_{name}"] else "none"


def _us(on: Mapping[str, Any] | None) -> str:
    """The modelled time, with the worst one if other inputs take longer."""
    if not on or not on["modelled"]:
        return "-"
    by_inputs = on.get("by_inputs")
    slower = by_inputs and by_inputs["worst_us"] and by_inputs["ratio"] > 1.005
    worst = f", worst {by_inputs['worst_us']:.1f} ({by_inputs['inputs']})" if slower else ""
    return f"{on['modelled']['microseconds']:.1f} us{worst}"


def _tuned(kernel: str, gpu: str) -> str:
    """The modelled time of the kernel's shipped tuned default for the mission shape, if there is one."""
    entries = tuned_entries(KERNELS[kernel], own=False) if kernel in KERNELS else ()
    current = [each for each in entries if (each.gpu, each.searched, each.clock) == (gpu, MISSION, "modelled")]
    return "".join(f", tuned {entry.tuned_us:.1f} us" for entry in current)


def _measured(kernel: str, times: Times) -> str:
    of_kernel = [subjects[kernel] for subjects in times.values() if kernel in subjects]
    cells = [
        f"{kinds['normal'].gpu}: {kinds['normal'].summary.median_us:.2f} us, worst {_worst(kinds)}"
        for kinds in of_kernel
    ]
    return ", ".join(cells) or NOT_RUN.removesuffix(" on hardware")
