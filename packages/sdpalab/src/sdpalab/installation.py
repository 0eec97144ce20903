"""Install locations of the lab and the simulator, and the surrounding source tree, if any."""

from __future__ import annotations

from pathlib import Path

import warpsan

__all__ = ["IMPORT_FOLDERS", "source_tree"]

_PACKAGE = Path(__file__).resolve().parent

IMPORT_FOLDERS = (str(_PACKAGE.parent), str(Path(next(iter(warpsan.__path__))).resolve().parent))
"""Folders from which ``sdpalab`` and ``warpsan`` are imported, for ``PYTHONPATH`` of another process."""


def source_tree() -> Path | None:
    """Root of the repository with this package in ``packages/sdpalab/src/sdpalab``; None for an installed copy."""
    root = _PACKAGE.parents[3]
    in_tree = _PACKAGE.parts[-4:] == ("packages", "sdpalab", "src", "sdpalab") and (root / "constraints.txt").is_file()
    return root if in_tree else None
