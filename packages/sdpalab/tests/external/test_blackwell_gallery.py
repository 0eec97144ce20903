"""The gallery's Blackwell kernels: right against float64, and with the hazards that they have.

``SDPALAB_BLACKWELL`` names the folder of their PTX (``blackwell_gallery.py DIR --compile PYTHON`` fills it).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import blackwell_gallery
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kernel", blackwell_gallery.KERNELS, ids=lambda kernel: kernel["name"])
def test_a_blackwell_kernel_of_the_gallery(kernel: dict[str, Any]) -> None:
    folder = Path(os.environ.get("SDPALAB_BLACKWELL", "nowhere")).absolute()
    if reason := blackwell_gallery.why_not(kernel, folder):
        pytest.skip(reason)
    for launch, (error, hazards) in blackwell_gallery.outcomes(kernel, folder):
        assert error < blackwell_gallery.TOLERANCE, launch
        assert sorted(hazards) == kernel.get("hazards", []), launch


def test_every_hazard_of_a_blackwell_kernel_has_a_reason() -> None:
    for kernel in blackwell_gallery.KERNELS:
        assert ("hazards" in kernel) == ("why" in kernel), kernel["name"]
