"""``sdpalab new``: what it writes passes, is short, and is what the examples are."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.commands.new import KINDS

ROOT = Path(__file__).resolve().parents[3]
Runner = Callable[..., "subprocess.CompletedProcess[str]"]
MOST_LINES = 120


def judged(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> int:
    if kind == "triton":
        pytest.importorskip("triton")
    assert main(["new", kind, "my_attention", "--dir", str(tmp_path)]) == 0
    written = {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    source = {"my_attention.cu"} if kind == "cuda" else set()
    assert written.keys() == {"my_attention.py", "test_my_attention.py"} | source
    assert sum(written.values()) <= MOST_LINES + 20 if kind == "cuda" else max(written.values()) <= MOST_LINES
    assert str(tmp_path / "my_attention.py") in capsys.readouterr().out
    return main(["judge", str(tmp_path / "my_attention.py"), "--shape", "1,1,40,32", "--causal", "--only", "seed"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_kernel_passes(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(kind, tmp_path, capsys) == 0, capsys.readouterr().out


@pytest.mark.parametrize("kind", ["cuda", "triton"])
def test_a_new_backward_kernel_passes(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "triton":
        pytest.importorskip("triton")
    assert main(["new", kind, "my_gradients", "--task", "backward", "--dir", str(tmp_path)]) == 0
    assert "--task backward" in capsys.readouterr().out
    words = [str(tmp_path / "my_gradients.py"), "--task", "backward", "--shape", "1,2,40,32", "--only", "seed"]
    assert main(["judge", *words]) == 0, capsys.readouterr().out
    assert main(["judge", words[0], "--shape", "1,2,40,32"]) == 2
    assert "computes gradients" in capsys.readouterr().err
    assert main(["sanitize", words[0], "--task", "backward", "--shape", "1,2,40,32"]) == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "layout"), [("cuda", "varlen"), ("cuda", "paged"), ("triton", "paged")])
def test_a_new_kernel_of_a_layout_passes(
    kind: str, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "triton":
        pytest.importorskip("triton")
    assert main(["new", kind, "mine", "--layout", layout, "--dir", str(tmp_path)]) == 0
    assert all(len(path.read_text().splitlines()) <= MOST_LINES for path in tmp_path.iterdir())
    name = {"varlen": "varlen", "paged": "paged:16"}[layout]
    assert f"--layout {name}" in capsys.readouterr().out
    words = [str(tmp_path / "mine.py"), "--shape", "2,2,20,32", "--causal", "--bottom-right", "--seq-kv", "33"]
    assert main(["judge", *words, "--layout", name, "--only", "seed"]) == 0, capsys.readouterr().out
    assert main(["judge", *words]) == 2
    assert f"add --layout {name}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_test_passes_and_its_whole_judgement(cli: Runner, kind: str, tmp_path: Path) -> None:
    import sys

    if kind == "triton":
        pytest.importorskip("triton")
    assert main(["new", kind, "mine_too", "--dir", str(tmp_path)]) == 0
    command = [sys.executable, "-m", "pytest", "-q", str(tmp_path / "test_mine_too.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    done = cli("judge", tmp_path / "mine_too.py")
    assert done.returncode == 0, done.stdout


def test_the_cuda_example_is_the_template() -> None:
    template = ROOT / "packages" / "sdpalab" / "src" / "sdpalab" / "commands" / "templates" / "cuda"
    example = (ROOT / "examples" / "my_kernel.cu").read_text()
    text = (template / "kernel.cu.tmpl").read_text()
    assert text.partition("//\n")[2].replace("$name", "one_thread_a_row") == example.partition("//\n")[2]


def test_nothing_is_overwritten_and_nothing_is_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_own_kernel.py").write_text("own_kernel")
    for words, expected in (
        (("cuda", "own_kernel"), "test_own_kernel.py exists"),
        (("rust", "own_kernel"), "cuda, triton or torch"),
        (("torch", "Mine"), "lower-case"),
        (("torch", "lambda"), "lower-case"),
        (("torch", "numpy"), "there is a Python module numpy"),
        (("torch", "own_kernel", "--task", "backward"), "no template of torch for --task backward: there are cuda, "),
        (("torch", "own_kernel", "--layout", "paged"), "no template of torch for --layout paged: there are cuda, "),
        (("cuda", "own_kernel", "--layout", "pages"), "--layout is dense, varlen or paged, not 'pages'"),
        (("cuda", "own_kernel", "--task", "sideways"), "forward or backward"),
    ):
        assert main(["new", *words, "--dir", str(tmp_path)]) == 2
        assert expected in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_own_kernel.py"]


def test_device_code_alone_is_answered_with_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("judge", "repro"):  # build, sanitize and profile take device code, with a launch file
        assert main([command, "fa2.cu"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "fa2.cu is source without a launch" in line
        assert "sdpalab new cuda NAME" in line
