"""NumPy dtypes by name, with those of ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from sdpalab.errors import UserError

__all__ = ["dtype_of"]


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name, from ml_dtypes what NumPy lacks; raises UserError if there is no such type."""
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise UserError(f"dtype {name!r} is neither a NumPy nor an ml_dtypes type") from None
