"""Drawings of the report: matplotlib to inline SVG in the page's colours, light and dark."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from sdpalab.compile.sass import TENSOR_CLASSES
from sdpalab.evidence.records import FloorRecord
from sdpalab.evidence.report.build_labels import BuildLabel
from sdpalab.evidence.report.data import RULES, CaseArrays
from sdpalab.evidence.report.drawing import BAD, MUTED, RULE, SERIES, STYLE, to_svg
from sdpalab.evidence.report.view import KernelView
from sdpalab.judge.rule.limits import row_errors

__all__ = ["error_map", "instruction_mix", "limit_shares", "row_strips", "speed_of_light"]

_MARKERS = {"max_abs": "o", "rel_l2": "s", "rms_row_rel_l2": "D", "worst_row_rel_l2": "^", "lse": "x"}
_MOST_SHARE = 1e3
"""Largest share that is drawn; larger shares are drawn at this value."""
_MOST_BINS = 128
"""Columns of a strip; with more rows, each column shows the worst of several."""
_WIDTH = 7.2
_LABEL_WIDTH = 40
"""Characters per line of a label; a variant may have a dozen macros."""

_SHARES = LogNorm(1 / 20, 20)
_HEAT = LinearSegmentedColormap.from_list(
    "shares", [(0.0, "#f4f1e8"), (0.4999, "#e6c68f"), (0.5, "#d9694a"), (1.0, "#4a1d3f")]
).with_extremes(bad="#4a1d3f")
"""Colours for shares of a limit: pale up to the limit, red to black above; black if not finite."""


def limit_shares(views: Sequence[KernelView]) -> str:
    """Distance of each kernel from its limits: every error of every case as a share of its limit, one band per
    kernel."""
    shown = [view for view in views if view.worst is not None]
    if not shown:
        return ""
    values = [share for view in shown for case in view.cases for share in case.shares.values() if share > 0]
    low, high = max(0.01, min([0.1, *values]) / 1.3), min(_MOST_SHARE, max([1.5, *values]) * 1.3)
    rules = [rule for rule in RULES if any(rule in case.shares for view in shown for case in view.cases)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 1.0 + 0.42 * len(shown)), layout="constrained")
        panel = figure.subplots()
        for number, rule in enumerate(rules):
            lane = (number - (len(rules) - 1) / 2) * 0.8 / len(rules)
            points = [
                (case.shares[rule], row + lane)
                for row, view in enumerate(shown)
                for case in view.cases
                if rule in case.shares
            ]
            panel.scatter(
                [min(max(share, low), high) for share, _ in points],
                [y for _, y in points],
                s=9,
                marker=_MARKERS[rule],
                color=SERIES[number],
                label=RULES[rule],
                alpha=0.7,
                linewidth=0.8,
                zorder=3,
                clip_on=False,
            )
        panel.hlines(np.arange(1, len(shown)) - 0.5, low, high, color=RULE, linewidth=0.6)
        panel.axvline(1.0, color=BAD, linewidth=1.2)
        panel.set_xscale("log")
        panel.set_xlim(low, high)
        panel.set_yticks(range(len(shown)), [view.title for view in shown])
        panel.set_ylim(len(shown) - 0.5, -0.5)
        panel.tick_params(axis="y", length=0)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("error / limit")
        figure.legend(loc="outside upper center", ncols=len(rules), fontsize=8, handletextpad=0.1, columnspacing=1.2)
        return to_svg(figure, "limits", "Errors of every case as shares of their limits, by kernel")


def row_strips(views: Sequence[KernelView]) -> str:
    """Error by row, one strip per kernel: the worst row error from the first row to the last."""
    shown = [(view, view.picture) for view in views if view.picture is not None]
    if not shown:
        return ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 1.0 + 0.3 * len(shown)), layout="constrained")
        panel = figure.subplots()
        image = None
        for row, (_, picture) in enumerate(shown):
            image = panel.imshow(
                _strip(picture),
                aspect="auto",
                cmap=_HEAT,
                norm=_SHARES,
                interpolation="nearest",
                extent=(0.0, 1.0, row + 0.4, row - 0.4),
            )
        panel.set_yticks(range(len(shown)), [view.title for view, _ in shown])
        names = [picture.case.name for _, picture in shown]
        beside = panel.secondary_yaxis("right")
        beside.set_yticks(range(len(shown)), names, fontsize=7.5)
        for axis in (panel, beside):
            axis.tick_params(axis="y", length=0)
            for spine in axis.spines.values():
                spine.set_visible(False)
        panel.set_xlim(0.0, 1.0)
        panel.set_ylim(len(shown) - 0.5, -0.5)
        panel.set_xticks([0.0, 0.5, 1.0], ["first", "query row i", "last"])
        assert image is not None
        bar = figure.colorbar(image, ax=panel, location="top", fraction=0.06, aspect=45, pad=0.02, extend="both")
        bar.set_label("row error / worst-row limit")
        bar.set_ticks([0.1, 1, 10], labels=["0.1", "limit", "10x"])
        bar.outline.set_edgecolor(MUTED)
        return to_svg(figure, "rows", "Worst relative error of the query rows of one case, by kernel")


def _strip(picture: CaseArrays) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The worst row error of each bin of rows over all heads, as a share of the limit, [1, bins]; NaN if not finite."""
    assert picture.case.limits is not None
    rows = row_errors(picture.out, picture.reference, picture.case.problem.dtype)
    rows = np.where(np.isnan(picture.reference[..., 0]), 0.0, rows).reshape(-1, rows.shape[-1]).max(axis=0)
    size = -(-rows.shape[0] // _MOST_BINS)
    worst = np.maximum.reduceat(rows, np.arange(0, rows.shape[0], size)) / picture.case.limits.worst_row_rel_l2
    return np.maximum(worst, 1e-4)[None, :].astype(np.float64)


def error_map(picture: CaseArrays, name: str) -> str:
    """Map of a wrong output: each element of the worst head as a share of the limit on the largest error."""
    case = picture.case
    assert case.limits is not None
    assert case.errors is not None
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 2.3), layout="constrained")
        panel = figure.subplots()
        b, h, i, d = case.errors.max_abs_index
        with np.errstate(invalid="ignore"):
            part = np.abs(picture.out[b, h].astype(np.float64) - picture.reference[b, h]).T / case.limits.max_abs
        shares = np.maximum(part, 1e-4)
        image = panel.imshow(shares, aspect="auto", cmap=_HEAT, norm=_SHARES, interpolation="nearest")
        for color, width in (("#ffffff", 2.5), ("#000000", 1.0)):
            panel.plot(i, d, "o", markersize=9, markerfacecolor="none", color=color, mew=width, clip_on=False)
        panel.set_title(f"{case.name}, batch {b}, head {h}")
        panel.set_ylabel("d")
        panel.set_xlabel("query row i")
        bar = figure.colorbar(image, ax=panel, fraction=0.03, pad=0.01, extend="both")
        bar.set_label("|error| / limit")
        bar.set_ticks([0.1, 1, 10], labels=["0.1", "limit", "10x"])
        bar.outline.set_edgecolor(MUTED)
        return to_svg(figure, name, "Map of the absolute error over the worst head")


def instruction_mix(views: Sequence[KernelView]) -> str:
    """Instruction mix of the main loop: shares of SASS instructions by class, for one build of each kernel.

    The build is the one that ran the largest problem. Without a main loop the whole kernel is shown.
    """
    bars: list[tuple[str, dict[str, int]]] = []
    for view in views:
        used = [(each, each.build.resources) for each in view.builds if each.build.resources is not None]
        most = max((_scores(label) for label, _ in used), default=0)
        largest = [(label, read) for label, read in used if _scores(label) == most and any(read.sass.values())]
        for label, read in largest:
            about = [label.variant] if len(largest) > 1 else []
            about += [label.problems[0].label] if label.problems else []
            about += [] if read.main_loop else ["whole kernel"]
            about += [f"{read.tensor_share:.0%} tensor"] if read.tensor_share else []
            title = textwrap.fill(", ".join([view.title, *about]), _LABEL_WIDTH)
            bars.append((title, dict(read.main_loop or read.sass)))
    if not bars:
        return ""
    totals: dict[str, float] = {}
    for _, counts in bars:
        for group, count in counts.items():
            totals[group] = totals.get(group, 0.0) + count / sum(counts.values())
    # Tensor-core instructions come first, even with a small share, because readers look for them.
    order = sorted(totals, key=lambda group: (group not in TENSOR_CLASSES, -totals[group], group))
    head, tail = order[: len(SERIES) - 1], order[len(SERIES) - 1 :]
    with mpl.rc_context(STYLE):
        lines = max(title.count("\n") for title, _ in bars) + 1
        figure = Figure(figsize=(_WIDTH, 1.2 + (0.15 + 0.15 * lines) * len(bars)), layout="constrained")
        panel = figure.subplots()
        for row, (_, counts) in enumerate(bars):
            whole_count, left = sum(counts.values()), 0.0
            parts = [(group, counts.get(group, 0)) for group in head]
            parts += [("other", sum(counts.get(group, 0) for group in tail))] if tail else []
            for number, (group, count) in enumerate(parts):
                width = count / whole_count
                color, legend = SERIES[number], group if row == 0 else None
                panel.barh(row, width, left=left, height=0.72, color=color, label=legend, edgecolor="none")
                left += width
        panel.set_yticks(range(len(bars)), [title for title, _ in bars])
        panel.set_ylim(len(bars) - 0.4, -0.6)
        panel.set_xlim(0, 1)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0%}"))
        panel.tick_params(axis="y", length=0)
        panel.set_xlabel("share of SASS instructions")
        figure.legend(loc="outside upper center", ncols=min(8, len(order)), fontsize=8, handlelength=1.0)
        return to_svg(figure, "sass", "SASS instructions by class")


def _scores(label: BuildLabel) -> int:
    """Scores of the largest problem that a build ran; 0 if none."""
    return label.problems[0].scores if label.problems else 0


def speed_of_light(records: Sequence[FloorRecord]) -> str:
    """Floors of the mission shape on each GPU with the target and the published times, microseconds on a log axis."""
    if not records:
        return ""
    names = {"tensor": "tensor cores", "exp": "exp unit", "l2": "L2", "dram": "DRAM, cold", "launch": "launch"}
    heights = [len(record.floors) + len(record.peers) for record in records]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 1.0 + 0.27 * sum(heights) + 0.45 * len(records)), layout="constrained")
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
