"""The log of a search: append-only, checked on reading, and refused where it is of another search or version."""

from __future__ import annotations

import multiprocessing
import warnings
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from planted import Landscape, campaign
from planted_executors import InlineExecutor

from sdpalab import MISSION, MachineError, UserError
from sdpalab.search.log import Head, LogWarning, SearchLog, read_log
from sdpalab.search.outcome import Finalist, Standing, Trial, TrialOutcome
from sdpalab.search.t4 import to_t4

HEAD = Head("toy", (MISSION,), ("L4",), "modelled", "elites", 0, {"TILE": (16, 32)}, 2, "judge", "0.1.0")


def _trial(number: int, standing: Standing = Standing.PASSED) -> Trial:
    passed = standing is Standing.PASSED
    return Trial(
        number=number,
        config={"TILE": 16 << number},
        standing=standing,
        reason="" if passed else "why",
        identity={"L4": f"{number:064x}"},
        times_us={"L4": {"1x8x512x64": 5.0 + number}} if passed else {},
        costs_us={"L4": 5.0 + number} if passed else {},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with five records."""
    log = SearchLog(tmp_path / "log.jsonl", HEAD)
    for number in range(5):
        log.keep(_trial(number))
    log.close()
    return tmp_path / "log.jsonl"


def test_what_was_kept_is_read_back(path: Path) -> None:
    head, records = read_log(path)
    assert head.differs_from(HEAD) == ""
    assert head.when
    assert records == tuple(map(_trial, range(5)))
    log = SearchLog(path, HEAD, resume=True)
    assert log.trials == records
    assert log.known({"L4": f"{3:064x}"}) == _trial(3)
    assert log.known({"L4": "f" * 64}) is None
    before = path.read_bytes()
    log.keep(_trial(2))
    assert path.read_bytes() == before, "a record that says nothing new is not written again"
    log.close()


@pytest.mark.slow
def test_a_log_cut_at_any_byte_keeps_what_is_whole(path: Path) -> None:
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    for cut in range(first, len(data) + 1, 7):
        path.write_bytes(data[:cut])
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a cut last line is no damage
            _, records = read_log(path)
        whole = data[:cut].count(b"\n") - 1 + (data[cut : cut + 1] == b"\n")
        assert len(records) == whole, cut
        log = SearchLog(path, HEAD, resume=True)
        for number in range(5):
            log.keep(_trial(number))
        log.close()
        assert path.read_bytes() == data, cut


def test_damage_in_the_middle_is_skipped_with_one_sentence(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    for line in (2, 4):
        lines[line] = lines[line].replace(b"PASSED", b"PA55ED")
    path.write_bytes(b"\n".join(lines))
    with pytest.warns(LogWarning, match=r"2 lines are damaged, the first is line 3; the 3 whole records count"):
        _, records = read_log(path)
    assert [record.number for record in records] == [0, 2, 4]
    log = SearchLog(path, HEAD, resume=True)
    assert [trial.number for trial in log.trials] == [0, 2, 4]
    assert len(log.notes) == 1
    log.close()


def test_every_flipped_byte_of_a_record_is_found(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    whole = lines[3]
    for place in range(0, len(whole), 5):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        if flipped[place] == ord("\n"):
            continue
        lines[3] = bytes(flipped)
        path.write_bytes(b"\n".join(lines))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _, records = read_log(path)
        assert _trial(2) in records or len(caught) == 1, place
        assert all(record in map(_trial, range(5)) for record in records), place


def test_a_damaged_head_or_a_foreign_file_is_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"modelled", b"m0delled", 1))
    with pytest.raises(UserError, match="no log of a search, or its head is damaged"):
        read_log(path)
    other = tmp_path / "notes.txt"
    other.write_text("shopping\n")
    with pytest.raises(UserError, match="no log of a search"):
        SearchLog(other, HEAD, resume=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lab": "0.0.9"}, "another version of the lab: 0.1.0, and this search has 0.0.9"),
        ({"judge": "other"}, "another version of the judge"),
        ({"kernel": "flash"}, "another kernel"),
        ({"gpus": ("H200",)}, "another gpus"),
        ({"clock": "gpu"}, "another clock"),
        ({"strategy": "tpe"}, "another strategy"),
        ({"seed": 1}, "another seed"),
        ({"knobs": {"TILE": (16,)}}, "another space"),
    ],
)
def test_a_log_of_another_search_is_refused(path: Path, change: dict[str, object], words: str) -> None:
    before = path.read_bytes()
    with pytest.raises(UserError, match=words):
        SearchLog(path, replace(HEAD, **change), resume=True)
    assert path.read_bytes() == before


def test_nothing_is_overwritten(path: Path) -> None:
    with pytest.raises(UserError, match="is there already: continue it with --resume"):
        SearchLog(path, HEAD)


def _hold(path: Path, held: Event, done: Event) -> None:
    log = SearchLog(path, HEAD, resume=True)
    held.set()
    done.wait(30)
    log.close()


def test_two_searches_do_not_share_a_log(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(path, held, done))
    process.start()
    assert held.wait(30)
    with pytest.raises(UserError, match="another search writes to"):
        SearchLog(path, HEAD, resume=True)
    done.set()
    process.join()
    SearchLog(path, HEAD, resume=True).close()


def test_a_log_that_cannot_be_written_is_the_machines_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        SearchLog(blocked / "log.jsonl", HEAD)


def test_illegal_records_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="a cost if PASSED"):
        replace(_trial(0), standing=Standing.SCREENED, reason="behind")
    with pytest.raises(ValueError, match="a cost if PASSED"):
        replace(_trial(0), costs_us={})
    with pytest.raises(ValueError, match="a reason if not PASSED"):
        replace(_trial(0), reason="why")
    with pytest.raises(ValueError, match="names the earlier one"):
        replace(_trial(1, Standing.INCORRECT), standing=Standing.DUPLICATE)
    with pytest.raises(ValueError, match="costs if PASSED"):
        TrialOutcome(Standing.INCORRECT, (1.0,))
    with pytest.raises(ValueError, match="full judge"):
        Finalist(0, {}, Standing.PASSED)


def test_t4_has_one_result_for_each_configuration_that_was_judged() -> None:
    result = campaign(InlineExecutor(Landscape().run), strategy="exhaustive", budget=10_000)
    exported = to_t4(result.head, result.trials)
    assert exported["schema_version"] == "1.0.0"
    skipped = (Standing.SCREENED, Standing.LOST, Standing.DUPLICATE)
    judged = [trial for trial in result.trials if trial.standing not in skipped]
    assert len(exported["results"]) == len(judged)
    kinds = {each["invalidity"] for each in exported["results"]}
    assert kinds == {"correct", "compile", "constraints", "correctness", "timeout"}
    for each, trial in zip(exported["results"], judged, strict=True):
        assert {"configuration", "times", "invalidity", "correctness"} <= each.keys()
        assert (each["correctness"] == 1) == (each["invalidity"] == "correct") == bool(each["measurements"])
        assert each["configuration"] == trial.config
    assert "modelled" in exported["results"][0]["objectives"][0]
