"""The report of a search, and the command line's refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planted import Landscape, campaign
from planted_executors import InlineExecutor

from sdpalab.evidence.report.search_page import knob_effects, search_report
from sdpalab.search import Standing


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A search of the planted landscape for two GPUs."""
    path = tmp_path / "log.jsonl"
    campaign(InlineExecutor(Landscape().run), path, budget=80, gpus=("L4", "H200"))
    return path


def test_the_report_shows_what_the_log_has_and_needs_nothing_else(log: Path) -> None:
    page = search_report(log)
    assert page == search_report(log), "the same bytes for the same log"
    for title in ("Finalists", "Convergence", "Knobs", "Pareto front", "Best configurations", "Rejected by a gate"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("<svg") == 3
    assert "modelled" in page
    assert "not yet run on hardware" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "skipped tile" in page, "a rejected configuration has its reason"


def test_knob_effects_are_of_what_passed_alone() -> None:
    result = campaign(InlineExecutor(Landscape().run), strategy="exhaustive", budget=10_000)
    passed = [trial for trial in result.trials if trial.standing is Standing.PASSED]
    effects = knob_effects(result.head, passed)
    assert sum(count for _, count in effects["TILE"].values()) == len(passed)


@pytest.mark.slow
def test_the_command_makes_it(cli: Any, log: Path) -> None:
    done = cli("report", log, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == str(log.with_suffix(".html"))
    log.write_text("shopping\n")
    done = cli("report", log)
    assert done.returncode == 2
    assert "no log of a search" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("flash", "--strategy", "annealing"), "no strategy 'annealing'"),
        (("flash", "--budget", "0"), "a budget of 0 leaves nothing to try"),
        (("flash", "--budget", "soon"), "number of configurations or a time"),
        (("flash", "--gpu", "here"), "no GPU here"),
        (("flash", "--shape", "1,8,512,77"), "supports rejects 972 of 972"),
        (("hopper", "--gpu", "L4"), "arch rejects"),
        (("flash", "--executor", "ray", "--address", "127.0.0.1:1"), "ay"),
        (("examples/my_callable.py",), "no knobs"),
        (("flush",), "did you mean 'flash'"),
    ],
)
@pytest.mark.sample(1)
def test_bad_input_is_one_sentence_and_exit_code_2(
    cli: Any, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    log = tmp_path / "log.jsonl"
    done = cli("tune", *arguments, "--log", log)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("sdpalab: ")
    assert done.stderr.count("\n") == 1
    assert not log.exists()
