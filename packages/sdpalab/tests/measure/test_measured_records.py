"""Records of times: what ``bench --json`` writes is read back, and accepted only if its samples agree."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from simulated_clock import Behaviour, SimulatedClock, Work

from sdpalab.commands.bench import show_worst
from sdpalab.errors import MachineError
from sdpalab.evidence.store.measured import BenchRecord, bench_record, read_times, session_result, worst_times
from sdpalab.measure.samples import ClockKind
from sdpalab.measure.session import MeasuredSession, measure
from sdpalab.measure.statistics import summarise
from sdpalab.measure.stopping import StoppingRule
from sdpalab.problem import MISSION


def a_session() -> MeasuredSession:
    clock = SimulatedClock(Behaviour(), 0)
    subjects = [
        Work("torch", 40.9).subject(),
        Work("flash", 12.0).subject(),
        Work("wrong", 1.0, lambda out, _: out.fill(0.0)).subject(),
    ]
    return measure(subjects, clock, StoppingRule(least=20, most=20, seconds=1e9), now=clock.now)


def record(folder: Path, change: Any = None) -> Path:
    result = session_result(MISSION, ClockKind.GPU, "normal", a_session(), {})
    data = bench_record("a GPU", [], [result]).to_dict()
    if change:
        change(data)
    path = folder / "a-gpu" / "mission.json"
    path.parent.mkdir()
    path.write_text(json.dumps(data))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    record(tmp_path)
    times = {time.subject: time for time in read_times(tmp_path)}
    assert set(times) == {"torch", "flash"}  # what has no time is in the record, and has none here
    session = a_session()
    for name, time in times.items():
        assert time.summary == session.of(name).summary
        assert (time.problem, time.gpu, time.clock, time.record) == (MISSION, "a GPU", "gpu", "a-gpu/mission.json")


def test_a_record_names_its_environment_and_no_host(tmp_path: Path) -> None:
    data = json.loads(record(tmp_path).read_text())
    assert data["environment"]["python"]
    assert data["kind"] == "measured"
    assert str(Path.home()) not in json.dumps(data)


def faster(data: Any) -> None:
    data["results"][0]["measurements"][1]["summary"]["median_us"] = 2.0


def fewer(data: Any) -> None:
    data["results"][0]["measurements"][0]["samples"]["times_us"].pop()


def more(data: Any) -> None:
    data["opinion"] = "fast"


@pytest.mark.parametrize(
    ("change", "reason"), [(faster, "not that of its samples"), (fewer, "not that of its samples"), (more, "opinion")]
)
def test_a_record_that_was_changed_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    record(tmp_path, change)
    with pytest.raises(MachineError, match=reason):
        read_times(tmp_path)


def of_format_1(data: Any) -> None:
    for name in ("format", "sms", "complete", "worst"):
        del data[name]
    for comparison in data["results"][0]["comparisons"]:
        del comparison["rounds"]


def test_a_record_of_the_first_format_is_read(tmp_path: Path) -> None:
    record(tmp_path, of_format_1)
    assert {time.subject for time in read_times(tmp_path)} == {"torch", "flash"}


def of_format_4(data: Any) -> None:
    data["format"] = 4


def test_a_record_of_a_later_format_is_refused(tmp_path: Path) -> None:
    record(tmp_path, of_format_4)
    with pytest.raises(MachineError, match="format"):
        read_times(tmp_path)


def test_other_records_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "fuzz.json").write_text('{"campaign": "fuzz"}')
    assert read_times(tmp_path) == ()


def test_what_is_committed_is_legal() -> None:
    assert isinstance(read_times(), tuple)


def with_kinds(data: Any) -> None:
    """The session again on other inputs, on which flash takes twice as long."""
    (result,) = data["results"]
    slower = json.loads(json.dumps({**result, "inputs": "ramp"}))
    for each in slower["measurements"]:
        if each["name"] == "flash":
            each["samples"]["times_us"] = [2 * us for us in each["samples"]["times_us"]]
            each["summary"] = summarise(each["samples"]["times_us"]).to_dict()
    data["results"].append(slower)
    data["worst"] = [each.to_dict() for each in worst_times(data["results"])]


def test_the_worst_time_stands_beside_the_normal_one(tmp_path: Path) -> None:
    record(tmp_path, with_kinds)
    times = {(time.subject, time.inputs): time.summary.median_us for time in read_times(tmp_path)}
    assert set(times) == {("torch", "normal"), ("torch", "ramp"), ("flash", "normal"), ("flash", "ramp")}
    (data,) = (json.loads(path.read_text()) for path in tmp_path.rglob("*.json"))
    worst = {row.subject: row for row in BenchRecord.from_dict(data).worst}
    assert (worst["flash"].inputs, worst["flash"].worst_us) == ("ramp", times["flash", "ramp"])
    assert worst["flash"].ratio == pytest.approx(2.0)
    assert worst["torch"].ratio == 1.0
    assert (worst["wrong"].worst_us, worst["wrong"].ratio) == (None, None)
    out = io.StringIO()
    show_worst(Console(file=out, width=140), BenchRecord.from_dict(data))
    row = next(line for line in out.getvalue().splitlines() if " flash " in line)
    assert row.split()[-3:] == [f"{times['flash', 'ramp']:.2f}", "(ramp)", "2.00"]


def test_a_worst_time_that_is_not_of_the_sessions_is_refused(tmp_path: Path) -> None:
    def better(data: Any) -> None:
        with_kinds(data)
        data["worst"][1]["ratio"] = 1.0

    record(tmp_path, better)
    with pytest.raises(MachineError, match="the worst times are not those of the sessions"):
        read_times(tmp_path)
