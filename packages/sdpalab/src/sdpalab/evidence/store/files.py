"""Store of raw arrays: one file per distinct content, named by its digest."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ArrayStore", "write_atomically"]


def write_atomically(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Write ``content`` beside ``path``, sync it and rename it into place: ``path`` exists complete or not at all.

    With ``lasting=False`` the file is not synced; use it for files that are useless after a crash of the machine.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class ArrayStore:
    """Content-addressed raw arrays in one folder: little-endian, C order, no header.

    Shape and dtype are not stored: the problem of the record with the digest determines both. The folder is part of an
    unfinished bundle, and is lost if the machine crashes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, array: npt.NDArray[Any]) -> str:
        """Store ``array`` once, and return the sha256 of its bytes in hex."""
        data = np.ascontiguousarray(array).tobytes()
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / f"{digest}.raw"
        if not path.exists():
            write_atomically(path, data, lasting=False)
        return digest
