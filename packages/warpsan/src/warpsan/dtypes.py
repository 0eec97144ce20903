"""NumPy dtypes by name, including the types of ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from warpsan.errors import UserError

__all__ = ["dtype_of", "filler"]


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy dtype by name, from ml_dtypes if NumPy lacks it; raises UserError for an unknown name."""
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise UserError(f"dtype {name!r} is neither a NumPy nor an ml_dtypes type") from None


def filler(value: float, dtype: np.dtype[Any], what: str) -> Any:
    """Convert ``value`` to an element of a type.

    Raises
    ------
    UserError
        If the type has no infinity, or is an integer type without this number.
    """
    with np.errstate(all="ignore"):
        element = np.asarray(value).astype(dtype)
        held = float(element.astype(np.float64))
    if np.isinf(value) != np.isinf(held) or (dtype.kind in "iub" and held != value):
        raise UserError(f"{what} cannot begin as {value:g}: {dtype} does not hold that")
    return element[()]
