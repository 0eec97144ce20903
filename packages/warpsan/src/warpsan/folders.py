"""Where compiled parts of the simulator are kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["NATIVE", "SHARED_CACHE", "cache_root", "shared_root"]

NATIVE = "sim-native"
"""The folder of a cache that holds them."""
SHARED_CACHE = "SDPALAB_SHARED_CACHE_DIR"
"""Environment variable: a second cache, which is only read."""


def cache_root() -> Path:
    """``sim-native`` in ``WARPSAN_CACHE_DIR``, or in the user's cache (platformdirs)."""
    chosen = os.environ.get("WARPSAN_CACHE_DIR")
    if not chosen:
        import platformdirs

        chosen = str(platformdirs.user_cache_path("warpsan"))
    return Path(chosen).expanduser().absolute() / NATIVE


def shared_root() -> Path | None:
    """The same folder of the second cache, if there is one."""
    chosen = os.environ.get(SHARED_CACHE)
    return Path(chosen) / NATIVE if chosen else None
