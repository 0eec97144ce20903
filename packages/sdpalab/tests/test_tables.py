"""Tables on terminals of 80, 120 and 200 columns and in a pipe, read back from the screen of a terminal emulator."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sdpalab.cli import main
from sdpalab.commands.judge import _print_cases
from sdpalab.judge.verdict import Case, Errors, Limits, Status, Verdict
from sdpalab.problem import Problem
from warpsan.terminal.console import OUTPUT, conclude, console_for
from warpsan.terminal.tables import FittedTable, show_table, table

NAMES = ("1x2x180x64 seed 0", "1x2x180x64/kv2x128 large_logits", "1x1x257x64 edge of 256")
PROSE = "one scalar multiply-add at a time, and then another, until all of them have been made"


def verdict() -> Verdict:
    """Cases whose every figure takes as many characters as figures take."""
    errors = Errors(1.5e-4, (0, 0, 0, 0), 2.5e-4, 1e-4, 3e-4, (0, 0, 0), 0, exact=23040, exact_wrong=23040)
    limits = Limits(1e-8, 2e-4, 2e-4, 2e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4)
    problem = Problem(1, 2, 180, 64)
    cases = (Case(name, problem, "normal", 0, Status.NONDETERMINISTIC, "it differs", errors, limits) for name in NAMES)
    return Verdict("my_kernel", "BLOCK_M=64", "simulator sm_89", "quick", 0, tuple(cases))


def screen(width: int, shown: FittedTable | None = None) -> list[str]:
    """The lines of a terminal of that width after a table: of what it shows, not of what was sent."""
    pyte = pytest.importorskip("pyte")
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, markup=False, highlight=False)
    if shown is None:
        _print_cases(console, verdict())
    else:
        show_table(console, shown)
    display = pyte.Screen(width, 60)
    pyte.Stream(display).feed(file.getvalue().replace("\n", "\r\n"))
    return [line.rstrip() for line in display.display if line.strip()]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_cases_of_a_verdict_have_a_line_each(width: int) -> None:
    lines = screen(width)
    rows = [line for line in lines if line.strip().startswith("1x") and "differs" not in line]
    assert [next(name for name in NAMES if name in row) for row in rows] == list(NAMES)
    head = next(line for line in lines if "case" in line)
    for row in rows:
        assert "NONDETERMINISTIC" in row
        assert "15,000x" in row
        assert "125%" in row
    note = [line for line in lines if line.startswith("no room for:")]
    assert bool(note) is (width < 200)
    for name in ("LSE/limit", "rms/limit", "rel L2", "max error"):
        assert (name in head) is not any(name in line for line in note)
    assert "max/limit" in head
    assert ("row/limit" in head) is (width > 80)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_prose_wraps_and_nothing_else_does(width: int) -> None:
    shown = table("Kernels", ("kernel", "idea", "registers"), numeric=("registers",), prose=("idea",))
    shown.add_row("a_kernel_with_a_long_name_of_32_c", PROSE, "1,234,567")
    lines = screen(width, shown)
    (row,) = [line for line in lines if "a_kernel" in line]
    assert "a_kernel_with_a_long_name_of_32_c" in row
    assert row.endswith("1,234,567")
    words = " ".join(line[35:].replace("1,234,567", "") for line in lines[3:]).split()
    assert " ".join(words) == PROSE


def test_a_terminal_too_narrow_for_anything_still_shows_every_character() -> None:
    shown = table("", ("kernel", "figure"), spare=("figure",))
    shown.add_row("@" * 50, "1")
    lines = screen(20, shown)
    assert sum(line.count("@") for line in lines) == 50


def test_a_pipe_gets_every_column_and_a_line_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    _print_cases(console_for(), verdict())
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.strip().startswith("1x") and "differs" not in line]
    assert len(rows) == len(NAMES)
    assert all("0/23040" in row for row in rows)
    assert "no room" not in printed
    wide = table("", ("name", "more"), spare=("more",))
    wide.add_row("x" * 150, "y" * 90)
    show_table(console_for(), wide)
    assert f"{'x' * 150}   {'y' * 90}" in capsys.readouterr().out


def test_quiet_prints_the_outcome_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-q"]) == 0
    assert capsys.readouterr().out == "ready\n"
    assert main(["kernels", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["build", "flahs", "-q"]) == 2
    assert "flash" in capsys.readouterr().err
    conclude(console_for("-"), "done")  # no longer quiet, and JSON has stdout
    assert capsys.readouterr() == ("", "done\n")


def test_no_color_sends_no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    sent = {}
    for plain in (False, True):
        monkeypatch.setattr(OUTPUT, "no_color", plain)
        console = console_for()
        with console.capture() as caught:
            console.print("done", style="bold red")
        sent[plain] = caught.get()
    assert "\x1b[" in sent[False]
    assert sent[True] == "done\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [("sdpalab ju", "judge"), ("sdpalab judge hopper_", "hopper_fp8"), ("sdpalab judge --rerun", "--rerun-failed")],
)
def test_a_shell_completes(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SDPALAB_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert expected in capsys.readouterr().out.split()
