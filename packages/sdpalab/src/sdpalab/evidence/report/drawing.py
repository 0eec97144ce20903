"""Common parts of all drawings of a report: matplotlib to inline SVG with the page's colours, in light and dark."""

from __future__ import annotations

import io
import re
from typing import Any

from matplotlib import rcParamsDefault
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["BAD", "INK", "MUTED", "RULE", "SERIES", "STYLE", "to_svg"]

INK, MUTED, RULE, BAD = "#010203", "#040506", "#070809", "#0a0b0c"
SERIES = ("#100001", "#100002", "#100003", "#100004", "#100005", "#100006", "#100007", "#100008")
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    BAD: "--bad",
    **{c: f"--c{n}" for n, c in enumerate(SERIES)},
}
"""Colours that stand for variables of the page's style sheet; drawings do not use them directly."""

_MACHINES_OWN = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
"""Machine-dependent parameters, which no drawing uses."""
STYLE: dict[Any, Any] = {
    **{name: value for name, value in rcParamsDefault.items() if name not in _MACHINES_OWN},
    "svg.fonttype": "none",
    "svg.hashsalt": "sdpalab",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "legend.frameon": False,
}
"""matplotlib's defaults with the changes of these pages; a user's matplotlibrc has no effect."""


def to_svg(figure: Figure, name: str, label: str) -> str:
    """The drawing as a reproducible ``<svg>`` element: colours as variables, ids made unique by ``name``."""
    FigureCanvasSVG(figure)
    figure.dpi = 72  # that of SVG
    if (engine := figure.get_layout_engine()) is not None:
        # savefig would draw everything a second time for the layout.
        engine.execute(figure)
        figure.set_layout_engine(None)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    width, height = (72 * inches for inches in figure.get_size_inches())
    head = f'<svg role="img" aria-label="{label}" viewBox="0 0 {width:g} {height:g}" style="--w:{width:g}px"'
    return re.sub(r"<svg[^>]*>", f'{head} xmlns:xlink="http://www.w3.org/1999/xlink">', text, count=1)
