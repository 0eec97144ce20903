"""Hazards as data, their groups by source line, suppressions, source text and SARIF."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpsan.ptx.source_lines import source_of as source_of
    from warpsan.report.groups import ENDINGS as ENDINGS
    from warpsan.report.groups import HazardGroup as HazardGroup
    from warpsan.report.groups import Party as Party
    from warpsan.report.groups import SanitizedHazard as SanitizedHazard
    from warpsan.report.groups import ending as ending
    from warpsan.report.groups import group as group
    from warpsan.report.groups import merge as merge
    from warpsan.report.hazards import Hazard as Hazard
    from warpsan.report.sarif import to_sarif as to_sarif
    from warpsan.report.source_text import Sources as Sources
    from warpsan.report.source_text import split_place as split_place
    from warpsan.report.suppressions import Suppression as Suppression
    from warpsan.report.suppressions import read_suppressions as read_suppressions
else:
    from warpsan.exports import exports

    __getattr__, __all__ = exports(
        {
            "warpsan.ptx.source_lines": ["source_of"],
            "warpsan.report.groups": ["ENDINGS", "HazardGroup", "Party", "SanitizedHazard", "ending", "group", "merge"],
            "warpsan.report.hazards": ["Hazard"],
            "warpsan.report.sarif": ["to_sarif"],
            "warpsan.report.source_text": ["Sources", "split_place"],
            "warpsan.report.suppressions": ["Suppression", "read_suppressions"],
        }
    )
