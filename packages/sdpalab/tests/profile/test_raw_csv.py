"""The parser of ncu's raw page, on a page written by hand: no real one is committed yet."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from sdpalab.errors import UserError
from sdpalab.profile import METRICS, clean_csv, read_raw_csv

SYNTHETIC = (Path(__file__).parent / "synthetic_raw.csv").read_text()


def test_figures_are_in_their_units_and_what_ncu_lacks_is_absent() -> None:
    (launch,) = read_raw_csv(SYNTHETIC)
    assert launch.kernel.startswith("flash_attention(")
    assert (launch.grid, launch.block) == ("(8, 8, 1)", "(128, 1, 1)")
    assert launch.figures["time"] == pytest.approx(6.784)  # from ns
    assert launch.figures["tensor"] == 41.25  # by its second name: the first is not in the page
    assert launch.figures["dram_read"] == 1572864  # with thousands separated
    assert "dram" not in launch.figures  # n/a
    assert "dram_write" not in launch.figures  # no such column
    assert launch.figures["local"] == 0


def test_stalls_are_read_by_pattern_most_first() -> None:
    (launch,) = read_raw_csv(SYNTHETIC)
    assert list(launch.stalls.items()) == [("long_scoreboard", 2.5), ("wait", 1.5), ("barrier", 1.0), ("selected", 1.0)]


def test_every_launch_is_a_row() -> None:
    again = SYNTHETIC.splitlines()[-1].replace("flash_attention", "merge", 1)
    assert [launch.kernel.partition("(")[0] for launch in read_raw_csv(f"{SYNTHETIC}{again}\n")] == [
        "flash_attention",
        "merge",
    ]


@pytest.mark.parametrize(("unit", "factor"), [("us", 1.0), ("msecond", 1e3), ("nsecond", 1e-3)])
def test_times_are_converted(unit: str, factor: float) -> None:
    (launch,) = read_raw_csv(SYNTHETIC.replace('"ns"', f'"{unit}"'))
    assert launch.figures["time"] == pytest.approx(6784 * factor)


def test_a_clean_table_names_no_host_and_reads_the_same() -> None:
    cleaned = clean_csv(SYNTHETIC)
    assert "some-host" not in cleaned
    assert "4242" not in cleaned
    assert "python3" not in cleaned
    assert read_raw_csv(cleaned) == read_raw_csv(SYNTHETIC)
    assert len({len(row) for row in csv.reader(io.StringIO(cleaned))}) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("==ERROR== nothing\n", "no line that begins with"),
        ('"ID","Metric"\n"",""\n', "no column Kernel Name"),
        ('"ID","Kernel Name"\n"0","k"\n', "no row of their units"),
        (SYNTHETIC.replace('"(8, 8, 1)",', "", 1), "damaged: row 3 has"),
        (SYNTHETIC.replace('"41.25"', '"many"'), "is 'many', which is not a number"),
        (SYNTHETIC.replace('"ns"', '"fortnight"'), "a value in 'fortnight'"),
    ],
    ids=["no table", "no kernel", "no units", "columns", "number", "unit"],
)
def test_what_is_no_raw_page_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read_raw_csv(text)


def test_no_two_figures_share_a_key_or_a_metric() -> None:
    assert len({figure.key for figure in METRICS}) == len(METRICS)
    metrics = [name for figure in METRICS for name in figure.metrics]
    assert len(set(metrics)) == len(metrics)
