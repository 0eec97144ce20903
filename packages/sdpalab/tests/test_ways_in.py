"""The pages "Any kernel" and "From Python" of warpsan: their examples print what they show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warpsan
from sdpalab.compile import build
from sdpalab.kernels.plan import Module
from warpsan.cli import main

DOCS = Path(__file__).resolve().parents[2] / "warpsan" / "docs"
PAGE = (DOCS / "any-kernel.md").read_text()
PYTHON = (DOCS / "from-python.md").read_text()
ROWSUM = PAGE.partition("```\n")[2].partition("```")[0]


def fenced(page: str, language: str, number: int = 0) -> str:
    """A code of a page in a language, the first by default."""
    return str(re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)[number])


def printed(page: str, command: str) -> str:
    """Output of a command as a page shows it, without line breaks and indentation."""
    lines = page.partition(f"    $ {command}\n")[2].splitlines()
    end = next(number for number, line in enumerate(lines) if line and not line.startswith("    "))
    return " ".join(" ".join(lines[:end]).split())


def test_ptx_and_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rowsum.ptx").write_bytes(build(Module("rowsum.cu", ROWSUM, "rowsum"), "sm_80").ptx)
    monkeypatch.chdir(tmp_path)
    exec(compile(fenced(PYTHON, "python"), "rowsum.py", "exec"), {})
    wanted, got = printed(PYTHON, "python rowsum.py"), " ".join(capsys.readouterr().out.split())
    changes = re.compile(r"PTX line \d+")  # with the compiler
    assert changes.sub("", got) == changes.sub("", wanted)


def test_a_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines are those of the source, although the simulator runs PTX."""
    (tmp_path / "rowsum.cu").write_text(ROWSUM)
    (tmp_path / "rowsum.json").write_text(fenced(PAGE, "json"))
    monkeypatch.chdir(tmp_path)
    assert main(["sanitize", "rowsum.cu"]) == 1
    mine = " ".join(capsys.readouterr().out.split())
    assert mine.rpartition(" in ")[0] == printed(PAGE, "warpsan sanitize rowsum.cu").rpartition(" in ")[0]
    (tmp_path / "rowsum.cu").write_text(ROWSUM.replace("if (half < 128) ", ""))
    assert main(["sanitize", "rowsum.cu"]) == 0
    assert "clean: no hazard in 4 runs" in capsys.readouterr().out


def test_a_source_file_with_host_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scale.cu").write_text(fenced(PAGE, "cuda"))
    (tmp_path / "scale.json").write_text(fenced(PAGE, "json", 1))
    monkeypatch.chdir(tmp_path)
    assert main(["sanitize", "scale.cu"]) == 0
    mine = " ".join(capsys.readouterr().out.split())
    assert mine.rpartition(" in ")[0] == printed(PAGE, "warpsan sanitize scale.cu").rpartition(" in ")[0]


@pytest.mark.slow
def test_a_triton_file(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "scale.py").write_text(fenced(PYTHON, "python", 1))
    done = subprocess.run([sys.executable, "scale.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert " ".join(done.stdout.split()) == printed(PYTHON, "python scale.py")


def test_a_launch_in_one_call() -> None:
    """The sentence of the page about a launch without a device."""
    ptx = build(Module("rowsum.cu", ROWSUM.replace("if (half < 128) ", ""), "rowsum"), "sm_80").ptx
    x, out = np.ones((4, 256), np.float32), np.zeros(4, np.float32)
    assert warpsan.launch(ptx, "rowsum", 4, 256, [x, out]).hazards == []
    assert out.tolist() == [256] * 4
