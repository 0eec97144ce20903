"""Digest of the simulator's own sources, and a test whether they are still those that this process has imported.

Files kept between processes under the digest must have been made from exactly these sources. A process whose sources
were edited after its start has the old ones in memory and finds the new ones on the disk.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

__all__ = ["changed_since_import", "sources_digest"]

_PACKAGE = Path(__file__).parents[1]
_ROOMS = ("analysis", "checks", "engine", "host", "numerics", "profile", "ptx", "semantics", "weak")
"""Folders of the package whose code affects the results and reports of a launch."""
_IMPORTED = time.time()
"""Time at which this process began to import the simulator, seconds since the epoch: the package imports this module
first."""


def sources_digest(package: Path = _PACKAGE) -> str:
    """A digest of the names and the content of the simulator's Python files in a package's folder, hexadecimal."""
    digest = hashlib.sha256()
    for path in _files(package):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def changed_since_import(package: Path = _PACKAGE, imported: float = _IMPORTED) -> bool:
    """Whether one of these files was written after this process began to import it."""
    return any(path.stat().st_mtime > imported for path in _files(package))


def _files(package: Path) -> list[Path]:
    return sorted(path for room in _ROOMS for path in (package / room).rglob("*.py"))
