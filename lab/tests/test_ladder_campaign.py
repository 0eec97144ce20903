"""The record of the ladder, on a small problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import ROOT, ladder
from lab.__main__ import main
from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 64, 64)


@pytest.fixture(autouse=True)
def small_mission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "MISSION", PROBLEM)


def test_a_record_has_what_each_kernel_uses_counts_and_could_cost(tmp_path: Path) -> None:
    out = tmp_path / "ladder.json"
    assert main(["ladder", "wmma", "cublas", "--out", str(out)]) == 0
    text = out.read_text()
    record = json.loads(text)
    assert str(ROOT) not in text
    assert (record["campaign"], record["gpus"], record["problem"]) == ("ladder", ["L4", "H200"], PROBLEM.to_dict())
    wmma, cublas = record["kernels"]
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


def test_a_record_of_some_kernels_does_not_take_the_ladders_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "wmma"]) == 2
    assert "say where it goes with --out FILE" in capsys.readouterr().err
    assert main(["ladder", "wnma", "--out", "x.json"]) == 2
    assert "did you mean 'wmma'" in capsys.readouterr().err
