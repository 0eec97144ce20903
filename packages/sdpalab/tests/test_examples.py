"""The examples are judged by the commands that their README shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpalab.bugs import replace_once
from sdpalab.errors import UserError
from sdpalab.judge.cases import CaseSpec
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.problem import Problem

Runner = Callable[..., "subprocess.CompletedProcess[str]"]

NEEDS_TRITON = "needs the extra: pip install 'sdpalab[triton]'"
SMALL = ("--shape", "1,1,40,32")


def commands(root: Path) -> list[str]:
    return re.findall(r"`(?:sdpalab judge|pytest|python) (\S+\.py)`", (root / "examples" / "README.md").read_text())


def test_the_readme_names_every_example(root: Path) -> None:
    examples = {f"examples/{path.name}" for path in (root / "examples").glob("*.py")}
    assert examples == set(commands(root))
    for example in examples:
        command = "pytest" if "/test_" in example else "python" if "/train_" in example else "sdpalab judge"
        assert f"{command} {example}" in (root / example).read_text()


@pytest.mark.sample(1)
@pytest.mark.parametrize("example", ["my_kernel.py", "my_callable.py"])
def test_an_example_passes(cli: Runner, tmp_path: Path, example: str) -> None:
    report = tmp_path / "verdict.json"
    done = cli("judge", f"examples/{example}", *SMALL, "--json", report)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(report.read_text())
    assert verdict["status"] == "PASSED"
    assert [case["problem"]["seq_q"] for case in verdict["cases"][:2]] == [40, 40]
    assert {
        case["run"]["claim"] for case in verdict["cases"] if case["problem"]["causal"] and "reaches" not in case["name"]
    } == {"causal"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--steps", "40"), ("--simulator", "--steps", "4")], ids=["cpu", "simulator"])
def test_a_transformer_trains_as_with_torch(root: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    picture, losses = tmp_path / "curves.svg", tmp_path / "losses.json"
    command = [sys.executable, root / "examples" / "train_transformer.py", *options]
    done = subprocess.run(
        [*command, "--picture", picture, "--json", losses], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    curves = json.loads(losses.read_text())
    assert len(curves["torch"]) == len(curves["sdpalab"]) == int(options[-1])
    assert picture.read_text().count("<svg") == 1
    if "--simulator" in options:
        assert "8 launches of flash, 8 launches of flash_backward" in done.stdout
    else:
        assert curves["sdpalab"][-1] < 0.95 * curves["sdpalab"][0]
        bounded = subprocess.run([*command, "--bound", "1e-12"], capture_output=True, text=True, timeout=600)
        assert bounded.returncode == 1


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "example", ["my_kernel.py:MY_KERNEL", "my_triton.py:MY_TRITON", "my_callable.py:blocked_attention"]
)
def test_an_example_passes_by_name_and_with_a_mask(cli: Runner, tmp_path: Path, example: str) -> None:
    if example.startswith("my_triton"):
        pytest.importorskip("triton", reason=NEEDS_TRITON)
    report = tmp_path / "verdict.json"
    done = cli("judge", f"examples/{example}", *SMALL, "--causal", "--no-claims", "--json", report)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(report.read_text())
    assert verdict["status"] == "PASSED"
    assert all(case["problem"]["causal"] for case in verdict["cases"])


@pytest.mark.slow
@pytest.mark.parametrize("example", ["my_kernel.py", "my_triton.py", "my_callable.py"])
def test_an_example_groups_heads_and_takes_any_lengths(root: Path, example: str) -> None:
    if example == "my_triton.py":
        pytest.importorskip("triton", reason=NEEDS_TRITON)
    problem = Problem(1, 4, 35, 64, kv_heads=2, seq_kv=50, causal=True)
    verdict = judge_candidate(str(root / "examples" / example), [CaseSpec("grouped", problem)], workers=1)
    assert verdict.status is Status.PASSED, verdict.reason


def test_a_triton_function_without_a_launch_is_answered_in_one_sentence(root: Path) -> None:
    pytest.importorskip("triton", reason=NEEDS_TRITON)
    specs = [CaseSpec("case", Problem(1, 1, 16, 16), seed=1)]
    with pytest.raises(
        UserError, match="attention_tile is a Triton function without a launch: define a TritonKernel"
    ) as caught:
        judge_candidate(f"{root}/examples/my_triton.py:attention_tile", specs, workers=1)
    assert str(caught.value).endswith("sdpalab new triton NAME writes an example")


@pytest.mark.slow
def test_the_example_with_cute_passes(root: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs the headers: pip install --no-deps nvidia-cutlass")
    problem = Problem(1, 4, 70, 64, kv_heads=2, seq_kv=90, causal=True)
    verdict = judge_candidate(f"{root}/examples/my_cute.py", [CaseSpec("grouped", problem)], workers=1, timeout=600)
    assert verdict.status is Status.PASSED, verdict.reason


@pytest.mark.slow
def test_an_example_says_what_it_does_not_support(cli: Runner) -> None:
    done = cli("judge", "examples/my_kernel.py", "--shape", "1,1,8,128")
    assert done.returncode == 2
    assert "head_dim is at most 64, not 128" in done.stderr


@pytest.mark.slow
def test_a_broken_copy_of_the_example_is_judged_wrong(cli: Runner, root: Path, tmp_path: Path) -> None:
    for name in ("my_kernel.cu", "my_kernel.py"):
        (tmp_path / name).write_text((root / "examples" / name).read_text())
    source = tmp_path / "my_kernel.cu"
    source.write_text(replace_once(source.read_text(), ("sum *= rescale;", "")))
    done = cli("judge", tmp_path / "my_kernel.py", *SMALL)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "INCORRECT" in done.stdout
