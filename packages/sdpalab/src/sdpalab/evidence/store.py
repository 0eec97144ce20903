"""The store of raw arrays: one file for each different content, named after its digest."""

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

    ``lasting=False``: it is not synced, for a file that no one reads after a crash of the machine.
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

    Shape and dtype are not kept here: the problem of the record that names the digest fixes both. The folder is a
    bundle's while it is made, and is lost if the machine crashes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, array: npt.NDArray[Any]) -> str:
        """Keep ``array`` (once, however often it is put) and return the sha256 of its bytes, in hex."""
        data = np.ascontiguousarray(array).tobytes()
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / f"{digest}.raw"
        if not path.exists():
            write_atomically(path, data, lasting=False)
        return digest
