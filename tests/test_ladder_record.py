"""The record of the ladder, on a small problem."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 64, 64)


@pytest.fixture
def script(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_script("ladder_record")
    monkeypatch.setattr(module, "MISSION", PROBLEM)
    return module


def test_a_record_has_what_each_kernel_uses_counts_and_could_cost(script: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "ladder.json"
    assert script.main(["wmma", "cublas", "--out", str(out)]) == 0
    text = out.read_text()
    record = json.loads(text)
    assert str(script.ROOT) not in text
    assert (record["campaign"], record["gpus"], record["problem"]) == ("ladder", ["L4", "H200"], PROBLEM.to_dict())
    wmma, cublas = record["rungs"]
    assert [on["arch"] for on in wmma["on"].values()] == ["sm_89", "sm_90"]
    (step,) = wmma["on"]["L4"]["steps"]
    assert step["counters"]["tensor_flops"] == PROBLEM.flops
    assert sum(step["counters"]["mix"].values()) == step["counters"]["warps"]
    assert step["resources"]["registers"] > 0
    assert step["compiler"].startswith("NVRTC 13.")
    assert wmma["on"]["L4"]["modelled"]["kind"] == "modelled"
    products = [each["product"] for each in cublas["on"]["L4"]["steps"] if "product" in each]
    assert sum(product["flops"] for product in products) == PROBLEM.flops
    assert "counters" in cublas["on"]["L4"]["steps"][cublas["on"]["L4"]["main"]]
    assert len(cublas["on"]["L4"]["modelled"]["steps"]) == len(cublas["on"]["L4"]["steps"])


def test_a_record_of_some_kernels_does_not_take_the_ladders_place(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["wmma"]) == 2
    assert "say where it goes with --out FILE" in capsys.readouterr().err
    assert script.main(["wnma", "--out", "x.json"]) == 2
    assert "did you mean 'wmma'" in capsys.readouterr().err
