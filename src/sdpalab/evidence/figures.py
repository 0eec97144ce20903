"""The report's drawings: matplotlib to inline SVG whose colours are the page's, so that it works in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sdpalab.compile.sass import TENSOR_CLASSES
from sdpalab.evidence.drawing import BAD, MUTED, RULE, SERIES, STYLE, to_svg
from sdpalab.evidence.records import AttemptRecord, FloorRecord
from sdpalab.evidence.report_data import RULES, CaseArrays
from sdpalab.evidence.verifier.rule import row_errors

__all__ = ["error_fractions", "error_maps", "instruction_mix", "row_profiles", "speed_of_light"]

_MARKERS = {"max_abs": "o", "rel_l2": "s", "rms_row_rel_l2": "D", "worst_row_rel_l2": "^", "lse": "x"}

_MOST_COLUMNS = 4
"""Panels beside each other: with more, nothing in them can be read."""

_HEAT = LinearSegmentedColormap.from_list("error", ["#f4f1e8", "#e9b872", "#c8553d", "#4a1d3f"])


def error_fractions(attempts: Sequence[AttemptRecord]) -> str:
    """Every error of every case as a fraction of its limit, one panel a kernel, on a log axis with the limit at 1."""
    shown = [a for a in attempts if a.verdict and any(case.shares for case in a.verdict.cases)]
    if not shown:
        return ""
    names = list(dict.fromkeys(c.name for a in shown if a.verdict for c in a.verdict.cases if c.shares))
    values = [f for a in shown if a.verdict for c in a.verdict.cases for f in c.shares.values() if f > 0]
    low, high = max(0.01, min([0.1, *values]) / 1.3), max([1.5, *values]) * 1.3
    with mpl.rc_context(STYLE):
        columns = min(len(shown), _MOST_COLUMNS)
        rows = -(-len(shown) // columns)
        figure = Figure(figsize=(2.2 + 2.3 * columns, rows * (1.1 + 0.2 * len(names))), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).reshape(-1)
        for empty in panels[len(shown) :]:
            empty.set_visible(False)
        for panel, attempt in zip(panels, shown, strict=False):
            assert attempt.verdict is not None
            for number, (rule, label) in enumerate(RULES.items()):
                judged = [case for case in attempt.verdict.cases if rule in case.shares]
                if not judged:
                    continue
                points = [(case.shares[rule], names.index(case.name)) for case in judged]
                panel.scatter(
                    [max(x, low) for x, _ in points],
                    [y for _, y in points],
                    s=16,
                    marker=_MARKERS[rule],
                    color=SERIES[number],
                    label=label,
                    zorder=3,
                    clip_on=False,
                )
            panel.axvline(1.0, color=BAD, linewidth=1.2)
            panel.set_title(attempt.kernel)
            panel.set_xscale("log")
            panel.set_xlim(low, high)
            panel.grid(axis="y")
            panel.tick_params(axis="y", length=0)
            panel.tick_params(axis="x", labelbottom=True)
            panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
        panels[0].set_yticks(range(len(names)), names)
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        figure.supxlabel("error / limit (1 = the limit; what is below the scale is at its edge)", fontsize=9)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=3)
        return to_svg(figure, "limits", "Errors of every case as fractions of their limits")


def row_profiles(cases: Sequence[CaseArrays]) -> str:
    """Relative L2 error of each query row, median and range over the heads, against the worst-row limit."""
    if not cases:
        return ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.5 + 1.45 * len(cases)), layout="constrained")
        panels = figure.subplots(len(cases), 1, sharey=True, squeeze=False)[:, 0]
        for panel, shown in zip(panels, cases, strict=True):
            rows = row_errors(shown.out, shown.exact, shown.case.problem.dtype)
            rows = rows.reshape(-1, rows.shape[-1])
            x = np.arange(rows.shape[-1])
            panel.fill_between(x, rows.min(0), rows.max(0), color=SERIES[0], alpha=0.35, linewidth=0, step="mid")
            panel.plot(x, np.median(rows, 0), color=SERIES[0], linewidth=1.0)
            if shown.case.limits is not None:
                panel.axhline(shown.case.limits.worst_row_rel_l2, color=BAD, linewidth=1.2)
            panel.set_yscale("log")
            panel.set_xlim(0, max(1, rows.shape[-1] - 1))
            panel.set_title(f"{shown.kernel}: {shown.case.name}")
            panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0e}"))
            panel.yaxis.set_minor_formatter(NullFormatter())
            panel.grid(axis="y")
        low, high = panels[0].get_ylim()
        steps = (1.0,) if high > 30 * low else (1.0, 2.0, 5.0)
        for panel in panels:
            panel.yaxis.set_major_locator(LogLocator(subs=steps))
        panels[-1].set_xlabel("query row i")
        figure.supylabel("relative L2 error of the row", fontsize=9)
        return to_svg(figure, "rows", "Relative error of each row of the output")


def error_maps(cases: Sequence[CaseArrays]) -> str:
    """Absolute error of every element of the head that holds the worst one, as a fraction of the limit."""
    shown = [case for case in cases if case.case.limits is not None and case.case.errors is not None]
    if not shown:
        return ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.8 + 1.25 * len(shown)), layout="constrained")
        panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        image: Any = None
        for panel, case in zip(panels, shown, strict=True):
            assert case.case.limits is not None
            assert case.case.errors is not None
            b, h, i, d = case.case.errors.max_abs_index
            part = np.abs(case.out[b, h] - case.exact[b, h]).T / case.case.limits.max_abs
            image = panel.imshow(
                np.maximum(part, 1e-4), aspect="auto", cmap=_HEAT, norm=LogNorm(1e-2, 1.0), interpolation="nearest"
            )
            for color, width in (("#ffffff", 2.5), ("#000000", 1.0)):
                panel.plot(i, d, "o", markersize=9, markerfacecolor="none", color=color, mew=width, clip_on=False)
            panel.set_title(f"{case.kernel}: {case.case.name}, batch {b}, head {h}")
            panel.set_ylabel("d")
        panels[-1].set_xlabel("query row i")
        bar = figure.colorbar(image, ax=list(panels), fraction=0.03, pad=0.01, extend="both")
        bar.set_label("|error| / limit")
        bar.outline.set_edgecolor(MUTED)
        return to_svg(figure, "maps", "Map of the absolute error over the worst head")


def instruction_mix(attempts: Sequence[AttemptRecord]) -> str:
    """Instructions by class, whole kernel and main loop, as stacked shares; the tensor cores' share written beside."""
    bars: list[tuple[str, dict[str, int]]] = []
    for attempt in attempts:
        for build in attempt.builds:
            if build.resources is None:
                continue
            title = attempt.kernel if len(attempt.builds) == 1 else f"{attempt.kernel} {build.module}"
            if build.resources.main_loop:
                share = build.resources.tensor_share
                note = f" ({share:.0%} tensor)" if share else ""
                bars.append((f"{title}, main loop{note}", dict(build.resources.main_loop)))
            bars.append((f"{title}, whole kernel", dict(build.resources.sass)))
    bars = [(title, counts) for title, counts in bars if sum(counts.values())]
    if not bars:
        return ""
    totals: dict[str, float] = {}
    for _, counts in bars:
        for group, count in counts.items():
            totals[group] = totals.get(group, 0.0) + count / sum(counts.values())
    # The tensor cores' own instructions come first however few they are: their share is what one looks for.
    order = sorted(totals, key=lambda group: (group not in TENSOR_CLASSES, -totals[group], group))
    head, tail = order[: len(SERIES) - 1], order[len(SERIES) - 1 :]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 1.2 + 0.3 * len(bars)), layout="constrained")
        panel = figure.subplots()
        for row, (_, counts) in enumerate(bars):
            whole, left = sum(counts.values()), 0.0
            parts = [(group, counts.get(group, 0)) for group in head]
            parts += [("other", sum(counts.get(group, 0) for group in tail))] if tail else []
            for number, (group, count) in enumerate(parts):
                width = count / whole
                color, label = SERIES[number], group if row == 0 else None
                panel.barh(row, width, left=left, height=0.72, color=color, label=label, edgecolor="none")
                left += width
        panel.set_yticks(range(len(bars)), [title for title, _ in bars])
        panel.set_ylim(len(bars) - 0.4, -0.6)
        panel.set_xlim(0, 1)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0%}"))
        panel.tick_params(axis="y", length=0)
        panel.set_xlabel("share of SASS instructions")
        figure.legend(loc="outside upper center", ncols=min(8, len(order)), fontsize=8, handlelength=1.0)
        return to_svg(figure, "sass", "SASS instructions by class")


def speed_of_light(records: Sequence[FloorRecord]) -> str:
    """Floors of the mission shape on each GPU with the target and the published times, microseconds on a log axis."""
    if not records:
        return ""
    names = {"tensor": "tensor cores", "exp": "exp unit", "l2": "L2", "dram": "DRAM, cold", "launch": "launch"}
    heights = [len(record.floors) + len(record.peers) for record in records]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 1.0 + 0.27 * sum(heights) + 0.45 * len(records)), layout="constrained")
        panels = figure.subplots(len(records), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for panel, record in zip(panels, records, strict=True):
            items = [*record.floors, *record.peers]
            panel.hlines(range(len(items)), 0.1, [item.value for item in items], color=RULE, linewidth=1.0)
            for row, item in enumerate(items):
                color, marker = (SERIES[0], "o") if item in record.floors else (SERIES[1], "D")
                panel.plot(item.value, row, marker=marker, color=color, markersize=6, linestyle="none")
                value = f"{item.value:.2f}" if item.value < 10 else f"{item.value:.1f}"
                panel.text(1.01, row, value, transform=panel.get_yaxis_transform(), va="center", fontsize=9)
            panel.set_yticks(range(len(items)), [f"{names.get(i.name, i.name)} ({i.kind.value})" for i in items])
            panel.set_ylim(len(items) - 0.4, -0.6)
            panel.set_xscale("log")
            panel.set_xlim(0.1, 100)
            panel.tick_params(axis="y", length=0)
            panel.set_title(f"{record.gpu}, {record.problem.label}")
            if record.target_us is not None:
                panel.axvline(record.target_us, color=BAD, linewidth=1.2)
                panel.text(
                    record.target_us,
                    1.0,
                    f"target {record.target_us:g} us",
                    transform=panel.get_xaxis_transform(),
                    ha="center",
                    va="bottom",
                    fontsize=8,
                    color=BAD,
                )
            panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        panels[-1].set_xlabel("microseconds (log scale)")
        return to_svg(figure, "light", "Floors, targets and published times of the mission shape")
