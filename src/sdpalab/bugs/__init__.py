"""The catalogue of planted bugs: right implementations with one bug each.

The judge must reject each for the right reason. A bug is planted in :class:`.tiled.TiledAttention` in Python, or in the
source of a shipped kernel. The judge's self-test (:mod:`sdpalab.campaigns.self_test`) judges them all.
"""

from __future__ import annotations

from sdpalab.bugs.bug import Bug, Mutant

__all__ = ["Bug", "Mutant"]
