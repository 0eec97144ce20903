"""Self-contained HTML pages from templates: the report of a bundle, and the comparison of two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdpalab.evidence.records import FigureKind
from sdpalab.evidence.report.data import RULES, ReportData
from sdpalab.evidence.side_by_side import USED, BundleComparison
from sdpalab.judge.verdict import Status

if TYPE_CHECKING:
    from sdpalab.evidence.report.view import KernelView

__all__ = ["render_comparison", "render_page", "render_report"]

_MOST_HAZARDS = 4
"""Hazards of a kernel that are shown at first; the others unfold."""


def render_report(data: ReportData) -> str:
    """The report as one HTML page without scripts or external references; the same data gives the same bytes."""
    from markupsafe import Markup

    from sdpalab.evidence.report import figures
    from sdpalab.evidence.report.view import kernel_views

    views = kernel_views(data)
    devices = {view.attempt.verdict.device for view in views if view.attempt.verdict}
    drawings = {
        "limits": figures.limit_shares(views),
        "rows": figures.row_strips(views),
        "sass": figures.instruction_mix(views),
        "light": figures.speed_of_light(data.floors),
    }
    maps = {
        view.number: Markup(figures.error_map(view.picture, f"map{view.number}"))
        for view in views
        if view.picture is not None and view.picture.case.status in (Status.INCORRECT, Status.NOT_FINITE)
    }
    bad = [view for view in views if not view.good]
    return render_page(
        "report.html.j2",
        data=data,
        views=views,
        judged=[view for view in views if view.attempt.verdict is not None],
        good=[view for view in views if view.attempt.passed],
        bad=bad,
        worst=max((view for view in views if view.worst), key=_worst_share, default=None),
        hazards=sum(len(view.summary.hazards) for view in views),
        case_count=sum(len(view.cases) for view in views),
        most_hazards=_MOST_HAZARDS,
        listed=[view for view in views if view.sources],
        simulated=sorted(device for device in devices if device.startswith("simulator")),
        gpus=sorted(device for device in devices if not device.startswith(("simulator", "cpu"))),
        hardware=any(f.kind is FigureKind.MEASURED for attempt in data.attempts for f in attempt.figures),
        builds=[(view, label) for view in views for label in view.builds],
        case_rows=[(name, [(view, view.case(name)) for view in views]) for name in data.case_names()],
        rules=RULES,
        drawings={name: Markup(svg) for name, svg in drawings.items()},
        maps=maps,
    )


def render_comparison(comparison: BundleComparison) -> str:
    """The comparison as one HTML page without scripts or external references."""
    return render_page("compare.html.j2", comparison=comparison, used=USED)


def _worst_share(view: KernelView) -> float:
    return view.worst.share if view.worst else 0.0


def render_page(template: str, **values: Any) -> str:
    """The page of a template; the templates share their style and macros."""
    from jinja2 import Environment as Templates
    from jinja2 import FileSystemLoader, StrictUndefined

    templates = Templates(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["short"] = _short
    templates.filters["fraction"] = _fraction
    return templates.get_template(template).render(**values)


def _short(value: float) -> str:
    """A number in three significant figures."""
    if value == 0:
        return "0"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"


def _fraction(value: float) -> str:
    """An error as a fraction of its limit: two decimals, or a factor for errors far above it."""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}x"
