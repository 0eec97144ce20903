"""Comparison with double precision, as the programs in CUDA print it (include/attention.h)."""

import sys

wrong = []


def compare(name, result, expected, limit):
    """Print the largest error of a tensor, and note it if it is beyond the limit or not a number.

    It is absolute; where the largest expected element is beyond 1, in units of that element.
    """
    unit = max(1.0, expected.detach().abs().max().item())
    error = (result.detach().double() - expected.detach()).abs().max().item() / unit
    right = error < limit
    print(f"{name}: largest error {error:.2e}, limit {limit:.0e}, {'right' if right else 'WRONG'}")
    wrong.extend([] if right else [name])


def finish():
    """End the program: with 1 if a tensor is wrong."""
    sys.exit(1 if wrong else 0)
