"""The campaign on published times: what it finds in a wheel, and what is none. The wheel itself is not in the tests."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sdpalab import cli
from sdpalab.campaigns import model
from sdpalab.compile import Cache, build
from sdpalab.kernels.plan import Module

KERNEL = "__global__ void one(float* x) { x[threadIdx.x] += 1.0f; }"


def test_cubins_are_found_in_a_library_as_they_are(tmp_path: Path) -> None:
    made = [build(Module("one.cu", KERNEL, "one"), arch, cache=Cache(tmp_path)).cubin for arch in ("sm_80", "sm_90")]
    host = b"\x7fELF\x02\x01" + bytes(12) + b"\x3e\x00" + bytes(60)  # x86-64
    assert list(model.cubins(b"ab" + host + made[0] + b"cd" + made[1])) == made


def test_each_published_time_has_a_kernel_and_the_work_of_the_table() -> None:
    cases = model._cases()
    assert len(cases) == 37
    tokens = {case.batch_heads * case.length * case.head_dim for case in cases if case.gpu.name == "H100 SXM"}
    assert tokens == {16384 * 2048}
    assert len({(case.arch, case.symbol) for case in cases}) == 7


@pytest.mark.parametrize("content", ["", "text"])
def test_what_is_no_wheel_is_refused(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "not.whl"
    if content:
        path.write_text(content)
    assert cli.main(["campaign", "model", str(path)]) == 2
    assert "is no wheel that can be read" in capsys.readouterr().err


def test_a_wheel_without_the_kernels_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("other.so", b"nothing")
    assert cli.main(["campaign", "model", str(path)]) == 2
    assert "take vllm-flash-attn 2.6.2" in capsys.readouterr().err
