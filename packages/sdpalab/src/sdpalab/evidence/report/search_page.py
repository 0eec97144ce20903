"""The report of a search, from its log alone: convergence, effect of each knob, Pareto front and finalists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from sdpalab.search.finals import front_of
from sdpalab.search.log import Head, read_log
from sdpalab.search.outcome import MODELLED, Finalist, Standing, Trial

__all__ = ["knob_effects", "render_search_report", "search_report"]


def search_report(path: Path) -> str:
    """The report of a log as one HTML page without scripts or external references.

    Warns
    -----
    LogWarning
        If the log is damaged; its valid part is reported.

    Raises
    ------
    UserError
        If the file is not the log of a search.
    """
    head, records = read_log(path)
    numbered = {record.number: record for record in records if isinstance(record, Trial)}
    finalists = {record.number: record for record in records if isinstance(record, Finalist)}
    trials = [numbered[number] for number in sorted(numbered)]
    return render_search_report(head, trials, list(finalists.values()))


def render_search_report(head: Head, trials: Sequence[Trial], finalists: Sequence[Finalist]) -> str:
    """The page for these records; the same bytes for the same records."""
    from markupsafe import Markup

    from sdpalab.evidence.report import search_figures as figures
    from sdpalab.evidence.report.page import render_page

    passed = [trial for trial in trials if trial.standing is Standing.PASSED]
    front = front_of(passed) if passed else []
    drawings = {
        "convergence": figures.convergence(head, trials),
        "knobs": figures.knobs(head, knob_effects(head, passed)),
        "pareto": figures.pareto(head, passed, front),
    }
    return render_page(
        "search.html.j2",
        head=head,
        kind="modelled" if head.clock == MODELLED else f"measured, {head.clock} clock",
        modelled=head.clock == MODELLED,
        trials=trials,
        best=sorted(passed, key=lambda trial: (sum(trial.costs_us.values()), trial.number))[:20],
        front=front,
        finalists=finalists,
        standings=Counter(trial.standing.value for trial in trials).most_common(),
        rejected=[trial for trial in trials if trial.standing in _REJECTED],
        drawings={name: Markup(svg) for name, svg in drawings.items()},
    )


_REJECTED = (
    Standing.BUILD_FAILED,
    Standing.STATIC_LIMITS,
    Standing.HAZARD,
    Standing.INCORRECT,
    Standing.TIMED_OUT,
    Standing.NO_COST,
    Standing.LOST,
)


def knob_effects(head: Head, passed: Sequence[Trial]) -> dict[str, dict[str, tuple[float, int]]]:
    """Median cost on the first GPU, in microseconds, and number of configurations, for each knob and value.

    Only passed configurations count. The strategy chose them, so the medians are descriptive.
    """
    gpu = head.gpus[0]
    effects: dict[str, dict[str, tuple[float, int]]] = {}
    for name, values in head.knobs.items():
        costs = {
            value: [trial.costs_us[gpu] for trial in passed if trial.config.get(name) == value] for value in values
        }
        effects[name] = {str(value): (median(each), len(each)) for value, each in costs.items() if each}
    return effects
