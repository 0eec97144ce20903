"""NumPy dtypes by name, with those of ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from warpsan.errors import UserError

__all__ = ["dtype_of", "filler"]


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name, from ml_dtypes what NumPy lacks; raises UserError if there is no such type."""
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise UserError(f"dtype {name!r} is neither a NumPy nor an ml_dtypes type") from None


def filler(value: float, dtype: np.dtype[Any], what: str) -> Any:
    """``value`` as an element of a type.

    Raises
    ------
    UserError
        If the type has no infinity, or, of integers, not this number.
    """
    with np.errstate(all="ignore"):
        element = np.asarray(value).astype(dtype)
        held = float(element.astype(np.float64))
    if np.isinf(value) != np.isinf(held) or (dtype.kind in "iub" and held != value):
        raise UserError(f"{what} cannot begin as {value:g}: {dtype} does not hold that")
    return element[()]
