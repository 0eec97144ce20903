"""The simulator's own sources: a digest of them, and whether they are still those that this process has imported.

What is kept between processes under the digest must have been made from the sources that it names. A process whose
sources were edited after its start has the old ones in memory and finds the new ones on the disk.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

__all__ = ["changed_since_import", "sources_digest"]

_ROOT = Path(__file__).parent
_IMPORTED = time.time()
"""When this process began to import the simulator: its package imports this module first. Seconds since the epoch."""


def sources_digest(root: Path = _ROOT) -> str:
    """A digest of the names and the content of all Python files of a folder, hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def changed_since_import(root: Path = _ROOT, imported: float = _IMPORTED) -> bool:
    """Whether a Python file of a folder was written after this process began to import it."""
    return any(path.stat().st_mtime > imported for path in root.rglob("*.py"))
