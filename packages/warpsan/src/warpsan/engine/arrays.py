"""Types of arrays, and the number of lanes of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["WARP", "Array", "Indices", "Mask"]

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

WARP = 32
