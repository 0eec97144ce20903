"""The user's data folder: verdicts, times, logs of searches and tuned defaults."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_folder"]


def data_folder() -> Path:
    """``SDPALAB_DATA_DIR`` from the environment, otherwise the platform's folder (platformdirs)."""
    chosen = os.environ.get("SDPALAB_DATA_DIR")
    if not chosen:
        import platformdirs

        return platformdirs.user_data_path("sdpalab")
    return Path(chosen).expanduser().absolute()
