"""The catalogue of planted bugs: right implementations with one bug each, which the lab must detect.

A bug is planted in :class:`.tiled.TiledAttention` in Python, or by an edit of a shipped kernel's source.
:data:`.catalogue.BUGS` lists all of them. The judge's self-test (:mod:`sdpalab.campaigns.self_test`) must reject each
for the right reason, the diagnosis (:mod:`sdpalab.judge.diagnose`) should name its cause, and the tests run all
bugs whose cause is a hazard on the simulator.
"""

from __future__ import annotations

from sdpalab.bugs.bug import Bug, Family
from sdpalab.bugs.edit import SourceEdit, replace_once

__all__ = ["Bug", "Family", "SourceEdit", "replace_once"]
