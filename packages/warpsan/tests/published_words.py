"""Published words of GPUs from public repositories, which are not part of the project.

The tests read them from ``../shared/words`` beside the repository, or from the folder in ``SDPALAB_WORDS``, and skip
without them. ``sample.json`` has eight sums of each GPU and format of MATLAB-tensor-core b12b5a7 (Khattak and Mikaitis,
BSD-2-Clause), ``ptx_math.json`` arguments and results of ptx-math 2c7dc92 (Carleton, MIT).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

__all__ = ["FOLDER", "needs_words", "published"]

FOLDER = Path(os.environ.get("SDPALAB_WORDS") or Path(__file__).resolve().parents[4] / "shared" / "words")


def published(name: str) -> Any:
    """Content of a file of words; None if the file is missing."""
    path = FOLDER / name
    return json.loads(path.read_text()) if path.is_file() else None


def needs_words(name: str) -> pytest.MarkDecorator:
    """Skip a test if a file of words is missing, with the folder in the reason."""
    reason = f"no published words: {name} is not in {FOLDER} (SDPALAB_WORDS names another folder)"
    return pytest.mark.skipif(not (FOLDER / name).is_file(), reason=reason)
