"""``sdpalab speed-of-light`` as a user meets it: the floors of the table, targets, JSON, one-line reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.measure import GPUS, feasibility, floors, gpu_named
from sdpalab.problem import Problem


def facts(path: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Output of the command for each GPU, by name."""
    assert main(["speed-of-light", *arguments, "--json", str(path)]) == 0
    return {entry["gpu"]: entry for entry in json.loads(path.read_text())["gpus"]}


def test_the_floors_of_the_published_table_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed-of-light"]) == 0
    rows = {line.split("  ")[0].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    assert set(GPUS) <= set(rows)
    assert rows["L4"][1:3] == ["4.43", "1.11"]
    assert "6.99" in rows["L4"]
    assert rows["H200"][1:3] == ["0.54", "0.54"]
    assert "0.44" in rows["H200"]


def test_fp8_leaves_out_what_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed-of-light", "--precision", "fp8"]) == 0
    out = capsys.readouterr().out
    assert "2.21" in out
    assert "0.27" in out
    assert "A100" not in out


def test_one_gpu_shows_its_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed-of-light", "--gpu", "l4"]) == 0
    out = capsys.readouterr().out
    assert "536.9 MFLOP at 121.2 TFLOPS fp16" in out
    assert "modelled, unverified" in out
    assert "from cold DRAM dram binds, from a warm L2 tensor" in out
    assert "published: torch SDPA takes 40.9 us (not measured here)" in out
    assert "source: NVIDIA L4 datasheet" in out


def test_a_target_is_judged_warm_and_cold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = facts(tmp_path / "a.json", "--gpu", "L4", "--target", "<5us")["L4"]["target"]
    assert isinstance(answer, dict)
    assert answer["warm"]["possible"]
    assert "89%" in answer["warm"]["sentence"]
    assert not answer["cold"]["possible"]
    assert "5 us on L4 is impossible from cold DRAM" in capsys.readouterr().out


def test_all_gpus_answer_in_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed-of-light", "--target", "5us"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith((" L4", " H200"))]
    assert [row.rstrip().split("   ")[-1].strip() for row in rows] == ["from a warm L2 only", "not ruled out"]


def test_a_ratio_is_taken_of_the_peer(tmp_path: Path) -> None:
    facts_by_gpu = facts(tmp_path / "b.json", "--target", "15x", "--peer", "25.9us")
    assert not facts_by_gpu["L4"]["target"]["warm"]["possible"]
    assert facts_by_gpu["H200"]["target"]["warm"]["possible"]
    assert json.loads((tmp_path / "b.json").read_text())["target_us"] == pytest.approx(25.9 / 15)


def test_the_shape_and_the_mask_count(tmp_path: Path) -> None:
    long = {"--shape": "1,8,4096,64", "--gpu": "H200"}
    options = [word for pair in long.items() for word in pair]
    plain = facts(tmp_path / "c.json", *options)["H200"]["floors"]
    masked = facts(tmp_path / "d.json", *options, "--causal")["H200"]["floors"]
    assert isinstance(plain, list)
    assert isinstance(masked, list)
    assert masked[0]["microseconds"] / plain[0]["microseconds"] == pytest.approx(0.5, rel=1e-3)


def test_a_warm_l2_holds_no_more_than_its_size() -> None:
    gpu = gpu_named("L4")
    huge = Problem(8, 32, 8192, 128)
    (dram,) = (floor for floor in floors(huge, gpu, cold=False) if floor.resource == "dram")
    assert dram.microseconds == pytest.approx((huge.least_bytes - 48 * 2**20) / 300e9 * 1e6)
    assert not any(floor.resource == "dram" for floor in floors(Problem(1, 8, 512, 64), gpu, cold=False))


def test_what_rests_on_an_unverified_figure_says_so() -> None:
    decode = Problem(1, 8, 1, 64, seq_kv=4096)
    assert "no second source confirms" in feasibility(0.1, decode, gpu_named("L4")).sentence
    assert "no second source confirms" not in feasibility(1.0, Problem(1, 8, 512, 64), gpu_named("L4")).sentence


def test_only_figures_can_be_unverified() -> None:
    with pytest.raises(ValueError, match="there are no figures weight"):
        replace(gpu_named("L4"), unverified=("weight",))


def test_a_word_of_the_name_is_enough() -> None:
    assert gpu_named("h100").name == "H100 SXM"
    assert gpu_named("4090").name == "RTX 4090"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--gpu", "SXM"], "unknown GPU 'SXM'; known are L4"),
        (["--gpu", "V100"], "unknown GPU 'V100'"),
        (["--shape", "1,8,512"], "--shape takes four integers"),
        (["--precision", "fp4"], "precision must be one of fp16, fp8"),
        (["--gpu", "A100", "--precision", "fp8"], "A100 SXM has no fp8 tensor unit"),
        (["--target", "5"], "--target takes a time such as 5us or a ratio such as 15x"),
        (["--target", "0us"], "--target takes a time"),
        (["--target", "-5us"], "--target takes a time"),
        (["--target", "fast"], "--target takes a time"),
        (["--target", "15x"], "needs its base, such as --peer 25.9us"),
        (["--target", "15x", "--peer", "2x"], "--peer takes a time such as 25.9us"),
        (["--target", "5us", "--peer", "9us"], "--peer is for a ratio"),
        (["--peer", "9us"], "there is no --target"),
        (["--dtype", "float32"], "rates of products in 16 and 8 bits alone, not in float32"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speed-of-light", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
