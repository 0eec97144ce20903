"""Which keys a row sees: under each mask that a problem has by its fields, one range of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdpalab.problem import Scoring

__all__ = ["key_range", "visible_keys"]

Ints = npt.NDArray[np.signedinteger[Any]]


def key_range(rows: npt.ArrayLike, seq_kv: int, **scoring: Unpack[Scoring]) -> tuple[Ints, Ints]:
    """The first and the last key that each row sees; where the last is below the first, it sees none.

    Parameters
    ----------
    rows : array_like of int
        Query rows.
    seq_kv : int
        Number of keys.
    **scoring
        :attr:`sdpalab.problem.Problem.scoring`, of which ``causal`` and ``window_size`` count: both are aligned to the
        top left.

    Returns
    -------
    first, last : ndarray of int, of the shape of ``rows``
    """
    row = np.asarray(rows)
    left, right = scoring.get("window_size", (-1, -1))
    if scoring["causal"]:
        right = 0
    first = np.zeros_like(row) if left < 0 else np.maximum(row - left, 0)
    last = np.full_like(row, seq_kv - 1) if right < 0 else np.minimum(row + right, seq_kv - 1)
    return first, last


def visible_keys(rows: npt.ArrayLike, seq_kv: int, **scoring: Unpack[Scoring]) -> npt.NDArray[np.bool_]:
    """Whether each row sees each key, [rows, Skv]; arguments as :func:`key_range`."""
    first, last = key_range(rows, seq_kv, **scoring)
    keys = np.arange(seq_kv)
    visible: npt.NDArray[np.bool_] = (keys >= first[:, None]) & (keys <= last[:, None])
    return visible
