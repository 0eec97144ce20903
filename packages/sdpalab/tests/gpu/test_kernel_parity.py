"""Every kernel on the GPU against the simulator: the same plan, the same PTX, the same inputs (:mod:`parity`).

They agree bit for bit, or to the distance that hardware explains (:mod:`parity_tolerance`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from parity import ParityCase, cases_of, compare, kernel_names, kernel_of

from sdpalab.run import GpuExecutor

pytestmark = pytest.mark.gpu


def _cases() -> Iterator[object]:
    for name in kernel_names():
        for case in cases_of(kernel_of(name)):
            yield pytest.param(case, id=case.label)


@pytest.mark.parametrize("case", list(_cases()))
def test_gpu_and_simulator_agree(
    gpu: GpuExecutor, record_property: Callable[[str, object], None], case: ParityCase
) -> None:
    if reason := case.kernel.why_not_on(gpu.arch):
        pytest.skip(reason)
    comparison = compare(gpu, case)
    for name, value in comparison.items():
        record_property(name, value)
    if "skipped" in comparison:
        pytest.skip(comparison["skipped"])
    assert comparison["agrees"], comparison["error"]
