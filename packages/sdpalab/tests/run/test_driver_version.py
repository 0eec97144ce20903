"""The driver's version, from the kernel module or from the driver itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdpalab.run import driver_version as module
from sdpalab.run.driver_version import driver_version

TEXTS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 11.4.0": (
        "535.129.03"
    ),
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder@host)\n": "580.65.06",
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_kernel_module_gives_it(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(module, "_KERNEL_MODULE", tmp_path / "version")
    assert driver_version() == TEXTS[text]


@pytest.mark.parametrize("text", [None, "something else"])
def test_without_that_it_is_the_newest_cuda(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(answer: tuple[Any, ...], _: str) -> Any:
        return answer[1]

    if text is not None:
        (tmp_path / "version").write_text(text)
    monkeypatch.setattr(module, "_KERNEL_MODULE", tmp_path / "version")
    driver = SimpleNamespace(cuDriverGetVersion=lambda: (0, 12090))
    monkeypatch.setattr(module, "gpu_device", lambda: SimpleNamespace(driver=driver, check=check))
    assert driver_version() == "CUDA 12.9"
