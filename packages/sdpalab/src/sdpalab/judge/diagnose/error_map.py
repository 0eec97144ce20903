"""Map of a wrong output's errors, in a few lines of text."""

from __future__ import annotations

import math

import numpy as np

from sdpalab.judge.diagnose.failure import Failure

__all__ = ["LEGEND", "MOST_COLUMNS", "MOST_ROWS", "SHADES", "error_map"]

SHADES = " .:-=+*#%@"
"""Shades of the map; each stands for twice the error of the one before. The limit lies between the fourth and the
fifth."""
MOST_ROWS, MOST_COLUMNS = 12, 48
_LIMIT = SHADES.index("=")

LEGEND = (
    "'-' up to the limit of the largest error, '=' up to twice, each further of '+*#%@' twice as much; '@' also NaN"
)


def error_map(failure: Failure) -> str:
    """The largest error in each block of O, for the worst head, as shades of its share of the limit.

    Returns
    -------
    str
        A line that names the head and the blocks, and at most MOST_ROWS lines of at most MOST_COLUMNS blocks. Rows that
        are not judged are blank.
    """
    problem, out, reference = failure.problem, failure.out, failure.reference
    wrong = ~np.isfinite(out) & ~np.isnan(reference)
    b, h, _ = failure.errors.worst_row if not wrong.any() else (int(n) for n in np.argwhere(wrong)[0][:3])
    error = np.nan_to_num(np.abs(out[b, h].astype(np.float64) - reference[b, h]))
    error[wrong[b, h]] = np.inf
    rows, columns = (math.ceil(n / most) for n, most in zip(error.shape, (MOST_ROWS, MOST_COLUMNS), strict=True))
    of_rows = np.maximum.reduceat(error, np.arange(0, error.shape[0], rows), axis=0)
    blocks = np.maximum.reduceat(of_rows, np.arange(0, error.shape[1], columns), axis=1)
    with np.errstate(divide="ignore"):
        shade = np.floor(np.log2(blocks / failure.limits.max_abs)) + _LIMIT
    shown = np.clip(shade, 0, len(SHADES) - 1).astype(int)
    width = len(str(problem.seq_q - 1))
    lines = [f"head (b={b}, h={h}), blocks of {rows} rows and {columns} columns; {LEGEND}"]
    lines += [f"i={n * rows:<{width}} |{''.join(SHADES[block] for block in line)}|" for n, line in enumerate(shown)]
    return "\n".join(lines)
