"""Folders of builds and compiled operations."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["NATIVE", "SHARED_CACHE", "cache_folder", "cache_root", "shared_root"]

NATIVE = "sim-native"
"""Subfolder of a cache for compiled operations."""
SHARED_CACHE = "WARPSAN_SHARED_CACHE_DIR"
"""Environment variable of a second, read-only cache."""


def cache_folder() -> Path:
    """``WARPSAN_CACHE_DIR`` (or its older name ``SDPALAB_CACHE_DIR``), else ``warpsan`` in the user's cache folder."""
    chosen = os.environ.get("WARPSAN_CACHE_DIR") or os.environ.get("SDPALAB_CACHE_DIR")
    if not chosen:
        import platformdirs

        chosen = str(platformdirs.user_cache_path("warpsan"))
    return Path(chosen).expanduser().absolute()


def cache_root() -> Path:
    """Folder of compiled operations."""
    return cache_folder() / NATIVE


def shared_root() -> Path | None:
    """Folder of compiled operations in the second cache, if there is one."""
    chosen = os.environ.get(SHARED_CACHE)
    return Path(chosen) / NATIVE if chosen else None
