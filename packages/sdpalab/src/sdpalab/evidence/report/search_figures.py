"""Drawings of a search's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from sdpalab.evidence.report.drawing import BAD, MUTED, RULE, SERIES, STYLE, to_svg
from sdpalab.search.log import Head
from sdpalab.search.outcome import Standing, Trial

__all__ = ["convergence", "knobs", "pareto"]

_COLUMNS = 3
_MARKS = {Standing.PASSED: ("o", SERIES[0]), Standing.SCREENED: ("|", RULE), Standing.DUPLICATE: ("|", RULE)}
"""Marks of configurations; a cross for a configuration that a gate rejected."""


def convergence(head: Head, trials: Sequence[Trial]) -> str:
    """Costs of the configurations in the order in which they were tried, and the best so far."""
    if not any(trial.costs_us for trial in trials):
        return ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.6 + 2.2 * len(head.gpus)), layout="constrained")
        panels = figure.subplots(len(head.gpus), 1, sharex=True, squeeze=False)[:, 0]
        for panel, gpu in zip(panels, head.gpus, strict=True):
            best, steps = float("inf"), []
            for trial in trials:
                best = min(best, trial.costs_us.get(gpu, best))
                steps.append(best)
            floor, top = min(steps), max(trial.costs_us.get(gpu, 0.0) for trial in trials)
            below = floor - 0.08 * (top - floor or floor)
            for trial in trials:
                marker, color = _MARKS.get(trial.standing, ("x", BAD))
                height = trial.costs_us.get(gpu, below)
                panel.plot(trial.number, height, marker=marker, color=color, markersize=4, linestyle="none")
            numbers = [trial.number for trial in trials]
            panel.step(numbers, steps, where="post", color=SERIES[1], linewidth=1.4)
            panel.set_ylabel("microseconds")
            panel.set_title(gpu)
            panel.grid(axis="y")
        panels[-1].set_xlabel("configuration, in the order in which it was tried")
        return to_svg(figure, "convergence", "Costs of the configurations, and the best so far")


def knobs(head: Head, effects: Mapping[str, Mapping[str, tuple[float, int]]]) -> str:
    """Median cost of the passed configurations by value, for each knob with several values."""
    shown = {name: values for name, values in effects.items() if len(values) > 1}
    if not shown:
        return ""
    with mpl.rc_context(STYLE):
        rows = -(-len(shown) // _COLUMNS)
        figure = Figure(figsize=(7.2, 0.4 + 1.7 * rows), layout="constrained")
        panels = figure.subplots(rows, _COLUMNS, sharey=True, squeeze=False).reshape(-1)
        for empty in panels[len(shown) :]:
            empty.set_visible(False)
        for panel, (name, values) in zip(panels, shown.items(), strict=False):
            panel.plot(range(len(values)), [cost for cost, _ in values.values()], marker="o", color=SERIES[0])
            panel.set_xticks(range(len(values)), list(values))
            panel.set_xlim(-0.5, len(values) - 0.5)
            panel.set_title(name)
            panel.grid(axis="y")
            for place, (cost, count) in enumerate(values.values()):
                panel.annotate(
                    str(count), (place, cost), xytext=(0, 5), textcoords="offset points", fontsize=7, color=MUTED
                )
        figure.supylabel(f"median microseconds on {head.gpus[0]}", fontsize=9)
        return to_svg(figure, "knobs", "Median cost by the value of each knob")


def pareto(head: Head, passed: Sequence[Trial], front: Sequence[Trial]) -> str:
    """Costs on the first two GPUs against each other, with the front; empty for one GPU."""
    if len(head.gpus) < 2 or not passed:
        return ""
    one, other = head.gpus[:2]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        panel = figure.subplots()
        costs = [(trial.costs_us[one], trial.costs_us[other]) for trial in passed]
        panel.scatter([x for x, _ in costs], [y for _, y in costs], s=16, color=RULE)
        line = sorted((trial.costs_us[one], trial.costs_us[other]) for trial in front)
        panel.plot([x for x, _ in line], [y for _, y in line], marker="o", color=SERIES[0])
        panel.set_xlabel(f"microseconds on {one}")
        panel.set_ylabel(f"microseconds on {other}")
        return to_svg(figure, "pareto", f"Costs on {one} and {other}, with the Pareto front")
