"""Fixtures of the tests on a GPU; those tests are marked ``gpu`` and skip themselves, visibly, where there is none."""

from __future__ import annotations

import pytest

from sdpalab.run import GpuExecutor


@pytest.fixture(scope="session")
def gpu() -> GpuExecutor:
    """The executor on GPU 0."""
    return GpuExecutor()
