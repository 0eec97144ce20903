"""The folders in which builds and compiled operations are kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["NATIVE", "SHARED_CACHE", "cache_folder", "cache_root", "shared_root"]

NATIVE = "sim-native"
"""The folder of a cache that holds compiled operations."""
SHARED_CACHE = "WARPSAN_SHARED_CACHE_DIR"
"""Environment variable: a second cache, which is only read."""


def cache_folder() -> Path:
    """``WARPSAN_CACHE_DIR`` (or its older name ``SDPALAB_CACHE_DIR``), else ``warpsan`` in the user's cache folder."""
    chosen = os.environ.get("WARPSAN_CACHE_DIR") or os.environ.get("SDPALAB_CACHE_DIR")
    if not chosen:
        import platformdirs

        chosen = str(platformdirs.user_cache_path("warpsan"))
    return Path(chosen).expanduser().absolute()


def cache_root() -> Path:
    """The folder of compiled operations."""
    return cache_folder() / NATIVE


def shared_root() -> Path | None:
    """The same folder of the second cache, if there is one."""
    chosen = os.environ.get(SHARED_CACHE)
    return Path(chosen) / NATIVE if chosen else None
