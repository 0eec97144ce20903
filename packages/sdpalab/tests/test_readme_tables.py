"""Tables that are made of records: what they show, and what is no table or no record."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sdpalab.errors import UserError
from sdpalab.evidence.store.measured import MeasuredTime
from sdpalab.measure.statistics import summarise
from sdpalab.problem import MISSION


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("readme_tables")


def time(subject: str, us: float, *, day: int = 1, gpu: str = "NVIDIA L4", **other: Any) -> MeasuredTime:
    """A time of the mission shape by the GPU's own clock with inputs in L2, but for ``other``."""
    fields: dict[str, Any] = {"problem": MISSION, "clock": "gpu", "l2": "warm", **other}
    when = datetime(2026, 12, day, tzinfo=timezone.utc)
    return MeasuredTime(subject, gpu=gpu, when=when, summary=summarise([us]), record=f"l4/{day}.json", **fields)


def test_times_are_those_of_the_mission_shape_by_the_gpus_own_clock_from_l2(script: ModuleType) -> None:
    times = script.mission_times(
        [
            time("flash", 6.5, day=2),
            time("flash", 7.5, day=1),
            time("torch", 24.5),
            time("flash", 20.0, day=3, clock="eager"),
            time("flash", 9.0, day=3, l2="cold"),
            time("flash", 4.0, day=3, problem=MISSION.with_(causal=True)),
            time("flash", 3.0, gpu="NVIDIA H200"),
            time("flash", 8.0, day=2, inputs="ramp"),
            time("flash", 9.5, day=1, inputs="negative"),
            time("torch", 24.6, inputs="ramp"),
        ]
    )
    table = script.measured_table(times).splitlines()
    assert table[2:] == [
        "| NVIDIA L4 | `flash` | 6.50 | 9.50 (negative) | `evidence/l4/2.json` |",
        "| NVIDIA L4 | `torch` | 24.50 | - | `evidence/l4/1.json` |",
        "| NVIDIA H200 | `flash` | 3.00 | - | `evidence/l4/1.json` |",
    ]


def test_without_a_record_it_says_so(script: ModuleType) -> None:
    assert "not yet run on hardware" in script.measured_table({})


TURN = {"instructions": 50, "tensor": 200.0, "issue": 50.0, "units": {"special": 20.0}}
LOOP = {"label": "1x1x64x64", "turn": TURN, "registers": 90, "spill_bytes": 0}


def ladder(when: str, **kernels: float) -> dict[str, Any]:
    """A record of kernels that run on an H200 only, in two steps of which one is a library's product."""
    used = {"registers": 90, "static_shared_bytes": 1024, "dynamic_shared_bytes": 512, "tensor_share": 0.125}
    used |= {"spill_bytes": 0, "stack_bytes": 0, "blocks_per_sm": 2, "warps_per_sm": 8, "limiter": "registers"}
    counters = {"warps": 2_000_000, "tensor_flops": 4, "exponentials": 5, "sectors": 6, "ideal_sectors": 4}
    counters |= {"wavefronts": 3, "ideal_wavefronts": 2}
    counters |= {"ctas": 64}
    steps = [
        {"product": {"flops": 7}},
        {"name": "step", "resources": used, "counters": counters, "machine_instructions": 1e6, "turn": TURN},
    ]
    return {
        "when": when,
        "gpus": ["L4", "H200"],
        "kernels": [
            {
                "kernel": name,
                "idea": "an idea",
                "config": "BLOCK_M=64",
                "loops": [LOOP, {**LOOP, "turn": None}],
                "on": {
                    "H200": {
                        "arch": "sm_90",
                        "steps": steps,
                        "main": 1,
                        "modelled": {"microseconds": us, "binds": "issue", "steps": [{}, {"issue_share": 0.5}]},
                        "modelled_cold_us": 2 * us,
                    }
                },
            }
            for name, us in kernels.items()
        ],
    }


def test_a_row_of_the_ladder(script: ModuleType) -> None:
    record = ladder("2026", first=2.25, second=1.0)
    kinds = [time("first", us, inputs=inputs) for us, inputs in ((3.5, "normal"), (4.5, "ramp"), (4.0, "negative"))]
    rows = script.ladder_table(record, script.mission_times(kinds)).splitlines()[2:]
    assert rows == [
        "| `first` | an idea | - | 2.2 us | NVIDIA L4: 3.50 us, worst 4.50 (ramp) |",
        "| `second` | an idea | - | 1.0 us | not yet run |",
    ]


def test_the_worst_modelled_time_stands_beside_the_normal_one(script: ModuleType) -> None:
    record = ladder("2026", first=2.25, second=1.0)
    worst = {"worst_us": 3.25, "inputs": "ramp", "ratio": 3.25 / 2.25}
    record["kernels"][0]["on"]["H200"]["by_inputs"] = worst
    record["kernels"][1]["on"]["H200"]["by_inputs"] = {"worst_us": 1.0, "inputs": "normal", "ratio": 1.0}
    first, second = script.ladder_table(record, {}).splitlines()[2:]
    assert "| 2.2 us, worst 3.2 (ramp) |" in first
    assert "| 1.0 us |" in second


def test_the_figures_of_a_kernel_are_narrow_tables(script: ModuleType) -> None:
    text = script.figures(ladder("2026", first=2.25)["kernels"][0], None)
    figures = text.partition("Clocks of an SM")[0]
    assert all(len(line.strip("|").split("|")) <= 3 for line in figures.splitlines())
    assert "| issue over tensor time | 25% |" in text  # half of the instructions of the PTX
    entry = ladder("2026", first=2.25)["kernels"][0]
    entry["on"]["H200"]["by_inputs"] = {"worst_us": 3.25, "inputs": "ramp"}
    assert "| worst time, inputs in L2 | 3.25 us (ramp) |" in script.figures(entry, None)
    assert "| 1x1x64x64 | 50 | 200 | 50 | 20 | 90; 0 |" in text
    assert "| 1x1x64x64 | - | - | - | - | 90; 0 |" in text
    assert "| *compiled*: `step` | sm_90 |" in text
    assert "| shared memory a block | 1,536 bytes |" in text
    assert "| bank conflicts | 1.50x |" in text
    assert "| time, inputs in L2 | 2.25 us |" in text
    assert text.endswith("Judged: not yet judged at this level.")


def test_the_newest_record_counts_whatever_its_name(tmp_path: Path, script: ModuleType) -> None:
    for name, when in (("ladder-f.json", "2026-11-20T00:00:00"), ("ladder-a.json", "2026-11-21T00:00:00")):
        (tmp_path / name).write_text(json.dumps(ladder(when)))
    assert script.newest(tmp_path)[0] == "ladder-a.json"
    with pytest.raises(UserError, match=r"run python -m lab ladder"):
        script.newest(tmp_path / "none")


def test_what_lies_between_markers_is_replaced_and_nothing_else(script: ModuleType) -> None:
    page = "before\n<!-- table: one -->\nold\n<!-- end of table -->\nafter\n"
    filled = script.filled(page, {"one": "| new |"})
    assert filled == "before\n<!-- table: one -->\n\n| new |\n\n<!-- end of table -->\nafter\n"
    assert script.filled(filled, {"one": "| new |"}) == filled
    with pytest.raises(UserError, match="no table 'one'; there are two"):
        script.filled(page, {"two": ""})
    with pytest.raises(UserError, match="has no <!-- end of table -->"):
        script.filled("<!-- table: one -->\n", {"one": ""})


def test_a_check_says_which_page_is_stale_and_writing_mends_it(
    tmp_path: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "PAGES", ("page.md",))
    monkeypatch.setattr(script, "tables", lambda: {"one": "new"})
    (tmp_path / "page.md").write_text("<!-- table: one -->\n<!-- end of table -->\n")
    assert script.main(["--check"]) == 1
    assert "page.md differs from the records" in capsys.readouterr().out
    assert script.main(["--write"]) == 0
    assert script.main(["--check"]) == 0
