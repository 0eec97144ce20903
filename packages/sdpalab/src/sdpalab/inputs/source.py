"""Reproducible random numbers: independent named streams from NumPy's Philox bit generator.

NumPy guarantees the raw stream, and does *not* guarantee the stream of ``Generator.normal``. Normals are therefore made
here by Box-Muller in float64 (Box and Muller, 1958). Math libraries may differ in the last bit of a float64 logarithm
or cosine; the rounding to 11 or 8 bits hides that except in about one element in 10**12. Every record carries the
digest of its inputs.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sdpalab.problem import Problem
from sdpalab.scoring import Scoring
from warpsan.dtypes import dtype_of

__all__ = ["F64", "Source", "dtype_of"]

F64 = npt.NDArray[np.float64]


@dataclass
class Source:
    """Independent streams of float64 numbers, one for each name, all fixed by (kind, problem, seed).

    Attributes
    ----------
    kind : str
    problem : Problem
    seed : int
    scoring : Scoring
        The score modifiers of the problem; its arrays are set once they are drawn.
    """

    kind: str
    problem: Problem
    seed: int
    scoring: Scoring = field(init=False)

    def __post_init__(self) -> None:
        self.scoring = self.problem.scoring
        self._label = json.dumps([self.kind, self.problem.to_dict(), self.seed], sort_keys=True)

    def uniform(self, name: str, shape: tuple[int, ...]) -> F64:
        """Uniform over (0, 1): the midpoints of 2**53 equal intervals, so neither end occurs."""
        digest = hashlib.sha256(f"{name}:{self._label}".encode()).digest()
        stream = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        raw: npt.NDArray[np.uint64] = stream.random_raw(math.prod(shape)).reshape(shape)
        unit: F64 = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return unit

    def normal(self, name: str, shape: tuple[int, ...]) -> F64:
        """Standard normal."""
        half = (math.prod(shape) + 1) // 2
        pair = self.uniform(name, (2, half))
        radius, angle = np.sqrt(-2.0 * np.log(pair[0])), 2.0 * math.pi * pair[1]
        return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[: math.prod(shape)].reshape(shape)

    def signs(self, name: str, shape: tuple[int, ...]) -> F64:
        """-1 or +1, equally likely."""
        return np.where(self.uniform(name, shape) < 0.5, -1.0, 1.0)

    def normal_qkv(self) -> tuple[F64, F64, F64]:
        """Q, K and V all standard normal."""
        problem = self.problem
        return (
            self.normal("q", problem.q_shape),
            self.normal("k", problem.kv_shape),
            self.normal("v", problem.v_shape),
        )
