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
    return "\n\n".join((table(heads, rows), *not_modelled(record)))


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


def compiled_table(record: Mapping[str, Any]) -> str:
    """One row for each kernel and architecture: the main launch, from its cubin."""
    heads = ("kernel", "for", "registers", "shared", "blocks an SM", "tensor share")
    rows = []
    for entry in record["kernels"]:
        for on in entry["on"].values():
            used = on["steps"][on["main"]]["resources"]
            figures = (str(used["registers"]), _kib(used), str(used["blocks_per_sm"]), _share(used["tensor_share"]))
            rows.append((_link(entry["kernel"]), on["arch"], *figures))
    return table(heads, rows)


def counted_table(record: Mapping[str, Any]) -> str:
    """One row for each kernel and GPU: the counts, and the time modelled from them."""
    heads = ("kernel", "GPU", "instructions", "conflicts", "waves", "time, us", "limited by")
    rows = []
    for entry in record["kernels"]:
        for gpu, on in entry["on"].items():
            total, time = _sum(on), on["modelled"]
            waves = time["steps"][on["main"]]["wave_efficiency"] if time else None
            figures = (f"{total['warps'] / 1e6:.2f} M", _ratio(total, "wavefronts"), _percent(waves))
            modelled = (f"{time['microseconds']:.2f}", time["binds"]) if time else ("-", "-")
            rows.append((_link(entry["kernel"]), gpu, *figures, *modelled))
    return "\n\n".join((table(heads, rows), *not_modelled(record)))


def judged_table(judged: Mapping[str, Mapping[str, Any]], kernels: Sequence[str]) -> str:
    """One row per kernel: its verdict at level full, and the limit with the smallest margin."""
    rows = []
    for name in kernels:
        each = judged.get(name)
        if each is None:
            rows.append((_link(name), NOT_JUDGED, "-", "-"))
            continue
        limits = [name for name in LIMITS if name in each["nearest"]]
        nearest = max(limits, key=lambda limit: each["nearest"][limit]["share"])
        share = f"{each['nearest'][nearest]['share']:.0%} ({LIMITS[nearest]})"
        rows.append((_link(name), _passed(each), share, _exact(each)))
    return table(("kernel", "cases passed", "nearest to a limit", "exact elements"), rows)


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
    """All figures of one kernel, kind by kind: compiled for each launch, simulated, modelled, judged."""
    gpus = list(entry["on"].items())
    parts = [f"Knobs: `{entry['config']}`, the default."]
    for place, step in enumerate(gpus[0][1]["steps"]):
        if "resources" in step:
            parts.append(_compiled(f"*compiled*: `{step['name']}`", [(on, on["steps"][place]) for _, on in gpus]))
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
        ("blocks; warps an SM", *(f"{each['blocks_per_sm']}; {each['warps_per_sm']}" for each in used)),
        ("occupancy limited by", *(each["limiter"] for each in used)),
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
        ("FLOPs of matrix products", *(f"{total['tensor_flops'] / 1e6:.0f} M" for total in totals)),
        ("exponentials", *(f"{total['exponentials'] / 1e6:.2f} M" for total in totals)),
        ("bank conflicts", *(_ratio(total, "wavefronts") for total in totals)),
        ("sectors", *(_ratio(total, "sectors") for total in totals)),
        ("launches; CTAs", *(f"{len(on['steps'])}; {on['steps'][on['main']]['counters']['ctas']}" for _, on in gpus)),
    ]
    modelled = [
        ("wave efficiency", *(_percent(step.get("wave_efficiency")) for step in steps)),
        ("issue over tensor time, PTX", *(_percent(step.get("issue_share")) for step in steps)),
        (
            "issue over tensor time, SASS",
            *(_percent(_by_machine_code(*each)) for each in zip(mains, steps, strict=True)),
        ),
        ("a turn of the main loop: issue", *(_percent(_turn_share(main, "issue")) for main in mains)),
        ("a turn: special function unit", *(_percent(_turn_share(main, "special")) for main in mains)),
        ("time, inputs in L2", *(f"{time['microseconds']:.2f} us" if time else "-" for time in times)),
        ("time, inputs in DRAM", *cold),
        *([("worst time, inputs in L2", *worst)] if any(on.get("by_inputs") for _, on in gpus) else []),
        ("limited by", *(time["binds"] if time else "-" for time in times)),
    ]
    names = [gpu for gpu, _ in gpus]
    return "\n\n".join((table(("*simulated*", *names), rows), table(("*modelled*", *names), modelled)))


def _worst_modelled(by_inputs: Mapping[str, Any] | None) -> str:
    """The longest modelled time and its inputs."""
    if by_inputs is None or by_inputs["worst_us"] is None:
        return "-"
    return f"{by_inputs['worst_us']:.2f} us ({by_inputs['inputs']})"


def _by_machine_code(main: Mapping[str, Any], step: Mapping[str, Any]) -> float | None:
    """Issue slots over tensor time by the machine code of a whole launch; None without a path or a product."""
    share, ran = step.get("issue_share"), main["machine_instructions"]
    return float(share * ran / main["counters"]["warps"]) if share and ran else None


def _turn_share(main: Mapping[str, Any], name: str) -> float | None:
    turn = main["turn"]
    return float((turn["issue"] if name == "issue" else turn["units"][name]) / turn["tensor"]) if turn else None


def _loops(loops: Sequence[Mapping[str, Any]]) -> str:
    """Clocks of an iteration of the main loop per 128 rows by 128 keys, on the long problems."""
    heads = ("*compiled*: a turn", "instructions", "tensor", "issue", "special", "registers; spilled")
    rows = []
    for loop in loops:
        turn = loop["turn"]
        clocks = (f"{turn['tensor']:.0f}", f"{turn['issue']:.0f}", f"{turn['units']['special']:.0f}") if turn else ()
        used = f"{loop['registers']}; {loop['spill_bytes']}"
        rows.append((loop["label"], str(turn["instructions"]) if turn else "-", *(clocks or ("-",) * 3), used))
    return "Clocks of an SM for each 128 rows by 128 keys:\n\n" + table(heads, rows)


def _judged(each: Mapping[str, Any]) -> str:
    nearest = each["nearest"]
    rows = [
        ("cases passed", _passed(each)),
        *(
            (f"nearest to the limit: {LIMITS[name]}", f"{nearest[name]['share']:.0%}")
            for name in LIMITS
            if name in nearest
        ),
        ("exact elements", _exact(each)),
        ("original contract met", f"{each['original_contract']} of {each['cases']}"),
    ]
    head = f"*simulated*: judged at level full, {each['device'].removeprefix('simulator ')}"
    return table((head, "result"), rows) + f"\n\nRecord of the verdict: `evidence/campaigns/{each['record']}`."


# ---- cells -----------------------------------------------------------------------------------------------------------


def _link(kernel: str) -> str:
    return f"[`{kernel}`]({kernel}.md)"


def _passed(each: Mapping[str, Any]) -> str:
    return f"{each['statuses'].get('PASSED', 0)} of {each['cases']}{', before a change' if each['changed'] else ''}"


def _exact(each: Mapping[str, Any]) -> str:
    return f"{each['exact'] - each['exact_wrong']:,} of {each['exact']:,}" if each["exact"] else "none"


def _sum(on: Mapping[str, Any]) -> dict[str, int]:
    """The counts of all launches together; FLOPs include those of library products."""
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


def _kib(used: Mapping[str, Any]) -> str:
    return f"{round(_shared(used) / 1024, 1):g} KiB"


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
