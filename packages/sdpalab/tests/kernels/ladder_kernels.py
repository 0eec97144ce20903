"""The shipped kernels as a test's parameter, in the order of the ladder."""

from __future__ import annotations

import pytest

from sdpalab.kernels.registry import KERNELS, get, needs

__all__ = ["EACH_KERNEL", "ladder_kernels"]


def ladder_kernels(*left_out: str) -> list[object]:
    """A parameter for each kernel but those; one that needs a package which is not installed skips itself."""
    unknown = set(left_out) - set(KERNELS)
    assert not unknown, f"not in the registry: {unknown}"
    return [_param(name) for name in KERNELS if name not in left_out]


def _param(name: str) -> object:
    missing = needs(name)
    if missing is None:
        return pytest.param(get(name), id=name)
    return pytest.param(None, id=name, marks=pytest.mark.skip(reason=missing))


EACH_KERNEL = pytest.mark.parametrize("kernel", ladder_kernels())
"""Gives a test the argument ``kernel``."""
