"""The user's data folder: where verdicts, times, logs of searches and tuned defaults are kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_folder"]


def data_folder() -> Path:
    """``SDPALAB_DATA_DIR`` from the environment, else the platform's (platformdirs)."""
    chosen = os.environ.get("SDPALAB_DATA_DIR")
    if not chosen:
        import platformdirs

        return platformdirs.user_data_path("sdpalab")
    return Path(chosen).expanduser().absolute()
