"""The report: one HTML file that needs nothing else, made from the records and arrays of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sdpalab.evidence.records import AttemptRecord, FigureKind
from sdpalab.evidence.report_data import RULES, ReportData
from sdpalab.judge.verdict import Case

if TYPE_CHECKING:
    from jinja2 import Environment as Templates

__all__ = ["page_templates", "render_report"]


def render_report(data: ReportData) -> str:
    """The report as one HTML page: no script, no reference to anything outside it, the same bytes for the same data."""
    from markupsafe import Markup

    from sdpalab.evidence import figures

    pictured = data.pictured()
    devices = {attempt.verdict.device for attempt in data.attempts if attempt.verdict}
    drawings = {
        "limits": figures.error_fractions(data.attempts),
        "rows": figures.row_profiles(pictured),
        "maps": figures.error_maps(pictured),
        "sass": figures.instruction_mix(data.attempts),
        "light": figures.speed_of_light(data.floors),
    }
    templates = page_templates()
    return templates.get_template("report.html.j2").render(
        data=data,
        judged=[attempt for attempt in data.attempts if attempt.verdict is not None],
        good=[attempt for attempt in data.attempts if attempt.passed],
        simulated=sorted(device for device in devices if device.startswith("simulator")),
        gpus=sorted(device for device in devices if not device.startswith(("simulator", "cpu"))),
        hardware=any(f.kind is FigureKind.MEASURED for attempt in data.attempts for f in attempt.figures),
        builds=[(attempt, build) for attempt in data.attempts for build in attempt.builds],
        case_rows=[(name, [_case(attempt, name) for attempt in data.attempts]) for name in data.case_names()],
        rules=RULES,
        drawings={name: Markup(svg) for name, svg in drawings.items()},
    )


def page_templates() -> Templates:
    """The templates of pages, which share their style."""
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
    templates.filters["dictvalues"] = lambda mapping: list(mapping.values())
    return templates


def _case(attempt: AttemptRecord, name: str) -> Case | None:
    cases = attempt.verdict.cases if attempt.verdict else ()
    return next((case for case in cases if case.name == name), None)


def _short(value: float) -> str:
    """A number in three significant figures."""
    if value == 0:
        return "0"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"


def _fraction(value: float) -> str:
    """An error as a fraction of its limit: two decimals, and for what is far over it a factor."""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}x"
