"""Long runs that measure the two packages and their tests; ``python -m lab NAME`` runs one from the repository's root.

The modules import helpers of both packages' tests, whose folders this module appends to ``sys.path``. It limits NumPy
and torch to one thread each, unless the environment says otherwise: the processes of a campaign use every core.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["ROOT", "TRITON_KERNEL"]

ROOT = Path(__file__).resolve().parent.parent
"""The repository's root."""
TRITON_KERNEL = "packages/sdpalab/tests/sim/triton_attention.py"
"""File of the tests' Triton kernel, from the root."""

for _folder in ("warpsan/tests", "sdpalab/tests/judge"):
    if (_path := str(ROOT / "packages" / _folder)) not in sys.path:
        sys.path.append(_path)
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when NumPy and torch load
    os.environ.setdefault(_name, "1")
