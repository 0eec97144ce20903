"""Transfer of new builds from a confined process, which may not write to the cache, to the process that stores them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.judge.sandbox.messages import NewBuild
from sdpalab.judge.sandbox.wire import WireError
from warpsan.build import Cache, ForwardedCache

__all__ = ["MOST_BUILDS", "keep_builds", "send_builds"]

Array = npt.NDArray[Any]

MOST_BUILDS = 1 << 28
"""Most bytes of the builds of one answer."""


def send_builds(cache: ForwardedCache) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Entries that were made since the last call: their header fields and their files."""
    built, cache.new_builds = cache.new_builds, []
    entries = [{"name": name, "key": key, "files": list(files)} for name, key, files in built]
    arrays = {
        f"{number}/{name}": np.frombuffer(content, np.uint8)
        for number, (*_, files) in enumerate(built)
        for name, content in files.items()
    }
    return entries, arrays


def keep_builds(cache: Cache, entries: Sequence[NewBuild], arrays: dict[str, Array]) -> None:
    """Store entries in ``cache``, and remove their files from ``arrays``; raises WireError if a file is missing.

    Without free space they are not stored, as in :meth:`Cache.get_or_make`.
    """
    for number, entry in enumerate(entries):
        try:
            files = {name: arrays.pop(f"{number}/{name}").tobytes() for name in entry.files}
        except KeyError:
            raise WireError("build without its files") from None
        cache.get_or_make(entry.name, entry.key, partial(dict, files))
