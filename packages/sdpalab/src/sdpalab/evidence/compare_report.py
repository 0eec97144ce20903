"""HTML page that compares two bundles, in the style of the report."""

from __future__ import annotations

from sdpalab.evidence.report import render_page
from sdpalab.evidence.side_by_side import USED, BundleComparison

__all__ = ["render_comparison"]


def render_comparison(comparison: BundleComparison) -> str:
    """The comparison as one HTML page without scripts or external references."""
    return render_page("compare.html.j2", comparison=comparison, used=USED)
