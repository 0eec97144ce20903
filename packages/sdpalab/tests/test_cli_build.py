"""``sdpalab build`` for a kernel with an architecture of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpalab.cli import main

LARGE = """
from sdpalab import CudaKernel, Launch, StaticLimits

kernel = CudaKernel(
    name="large",
    source="extern \\"C\\" __global__ void large(void *q, void *k, void *v, void *o) {}",
    entry="large",
    plan=lambda problem, config: Launch((1, 1, 1), (32, 1, 1), ("q", "k", "v", "o"), dynamic_smem=70 * 1024)
)  # limits
"""


def test_a_kernel_is_built_for_its_own_architecture_without_an_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["build", "hopper", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["arch"] == "sm_90a"
    assert [step["arch"] for step in result["builds"]] == ["sm_90a"]
    assert main(["build", "flash", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["arch"] == "sm_89"


def test_an_architecture_that_it_cannot_be_built_for_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "hopper", "--arch", "sm_89"]) == 2
    assert "only sm_90a" in capsys.readouterr().err


def test_limits_that_the_author_did_not_declare_are_shown_and_do_not_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """70 KiB of shared memory: beyond the mission's limit, and the kernel declares none."""
    path = tmp_path / "large.py"
    path.write_text(LARGE)
    assert main(["build", str(path), "--json", str(tmp_path / "o.json")]) == 0
    printed = capsys.readouterr().out
    assert "beyond, not declared" in printed
    assert (
        "not declared by the kernel, so no reason to fail: shared_bytes is 71680; the mission's limit is 65536"
        in printed
    )
    assert "gate passed" in printed
    assert json.loads((tmp_path / "o.json").read_text())["ok"] is True
    path.write_text(LARGE.replace(")  # limits", ", limits=StaticLimits(shared_bytes=1024, reason='this test'))"))
    assert main(["build", str(path)]) == 1
    assert "gate failed: shared_bytes is 71680, and must be at most 1024" in capsys.readouterr().out


def test_the_instructions_of_the_tensor_cores_have_their_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "hopper"]) == 0
    printed = capsys.readouterr().out
    assert "HGMMA is " in printed
    assert "HMMA is " not in printed.replace("HGMMA", "")


AS_WRITTEN = """
#include <iostream>
__global__ void twice(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2.0f; }
int main() { float *x; cudaMalloc(&x, 1024); twice<<<2, 128>>>(x); std::cout << "done"; }
"""


def test_a_file_as_people_write_it_is_built_by_its_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "twice.cu", tmp_path / "out.json"
    path.write_text(AS_WRITTEN)
    (tmp_path / "twice.json").write_text('{"args": [{"dtype": "float32", "shape": 256, "init": "ones"}]}')
    assert main(["build", str(path), "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "twice for sm_89, grid (2, 1, 1), block (128, 1, 1)" in printed
    assert "why these limits: twice.cu declares none" in printed
    result = json.loads(out.read_text())
    assert (result["kernel"], result["problem"], result["ok"]) == ("twice.cu", None, True)
    assert result["set_aside"]
    assert result["builds"][0]["resources"]["threads_per_block"] == 128
    assert main(["build", str(path), "--arch", "sm_80"]) == 2
    assert "a file has its --launch" in capsys.readouterr().err
    assert main(["build", "flash", "--launch", str(tmp_path / "twice.json")]) == 2
    assert "a kernel has its own plan" in capsys.readouterr().err
