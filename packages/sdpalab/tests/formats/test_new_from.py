"""``sdpalab new --from FILE.cu``: adapters of kernels in other people's styles, which pass without an edit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from strangers import STRANGERS

from sdpalab.cli import main


def adapted(name: str, folder: Path) -> tuple[Path, int]:
    source = folder / f"{name}.cu"
    source.write_text(STRANGERS[name].source)
    return source, main(["new", f"my_{name}", "--from", str(source), *STRANGERS[name].answers])


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", STRANGERS)
def test_a_kernel_passes_as_it_is(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, code = adapted(name, tmp_path)
    assert code == 0, capsys.readouterr()
    assert source.read_text() == STRANGERS[name].source
    words = ["judge", str(tmp_path / f"my_{name}.py"), *STRANGERS[name].judge, "--only", "seed"]
    assert main(words) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, each in STRANGERS.items() if each.asked])
def test_questions_come_in_one_message(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / f"{name}.cu"
    source.write_text(STRANGERS[name].source)
    assert main(["new", "--from", str(source)]) == 2
    message = capsys.readouterr().err
    assert [text for text in STRANGERS[name].asked if text not in message] == []
    assert not (tmp_path / f"{name}.py").exists()


def test_bad_answers_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "one_head.cu"
    source.write_text(STRANGERS["one_head"].source)
    for words, sentence in {
        ("--arg", "n"): "--arg is NAME=VALUE",
        ("--grid", "1 +"): "--grid is a Python expression on problem, not '1 +'",
        ("--entry", "other"): "has no kernel other: it has attention_row",
        ("--layout", "sideways"): "--layout is one of",
    }.items():
        assert main(["new", "--from", str(source), *words]) == 2
        assert sentence in capsys.readouterr().err
