"""Tuned defaults: used only with a verdict behind them, for the class and the source that they are of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sdpalab import MISSION, Problem
from sdpalab.evidence.store import lookup
from sdpalab.evidence.store.lookup import forget, shipped_records
from sdpalab.evidence.store.record import RecordWarning, StoredRecord
from sdpalab.evidence.store.tuned import keep_tuned, shared_config, tuned, tuned_config, tuned_entries
from sdpalab.kernels.registry import get
from sdpalab.kernels.source import source_digest
from sdpalab.search.held_out import held_out
from sdpalab.search.tuned import ProblemClass, TunedEntry

FLASH = get("flash")
CONFIG = {**FLASH.default_config, "BLOCK_M": 32, "BLOCK_N": 32, "SCHEDULE": "stream_k", "NUM_CTAS": 58}
ENTRY = TunedEntry(
    kernel="flash",
    gpu="L4",
    problems=ProblemClass.of(MISSION),
    searched=MISSION,
    config=CONFIG,
    clock="modelled",
    default_us=5.0,
    tuned_us=4.6,
    level="full",
    cases=208,
    device="simulator sm_89",
    judge="0123456789abcdef",
    source=source_digest(FLASH),
    ptx_sha256=("0" * 64,),
    held_out={"1x6x512x64": 0.99},
)


L4, H200 = "NVIDIA L4", "NVIDIA H200"
TUNED = FLASH.default_config.but(**CONFIG)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder of the test's own, and nothing shipped."""
    monkeypatch.setenv("SDPALAB_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(lookup, "evidence_folder", lambda: tmp_path / "shipped")
    forget()
    yield tmp_path
    forget()


def test_without_an_entry_the_default_is_the_default() -> None:
    assert tuned(FLASH, MISSION, L4) is None
    assert tuned_config(FLASH, MISSION, L4) == FLASH.default_config
    assert tuned_entries(FLASH) == ()


def test_a_tuned_default_is_for_its_gpu_and_class_only(own_folder: Path) -> None:
    assert keep_tuned(ENTRY).parent == own_folder / "proofs" / "l4"
    assert tuned_config(FLASH, MISSION, L4) == TUNED
    for gpu, problem in (
        (H200, MISSION),
        ("a GPU of another kind", MISSION),
        (L4, MISSION.with_(causal=True)),
        (L4, Problem(1, 8, 2048, 64)),
    ):
        assert tuned_config(FLASH, problem, gpu) == FLASH.default_config
    assert tuned_entries(FLASH) == (ENTRY,)
    assert tuned_entries(FLASH, own=False) == ()


def test_the_newest_entry_counts(own_folder: Path) -> None:
    for stages in (3, 4, 3, 4):
        newest = keep_tuned(replace(ENTRY, config={**CONFIG, "NUM_STAGES": stages}))
    assert len(list(newest.parent.iterdir())) == 4
    assert tuned_config(FLASH, MISSION, L4)["NUM_STAGES"] == 4
    (entry,) = tuned_entries(FLASH)
    assert entry.config["NUM_STAGES"] == 4


def test_an_entry_of_another_source_is_not_used() -> None:
    keep_tuned(ENTRY)
    keep_tuned(replace(ENTRY, source="f" * 64, config={**CONFIG, "NUM_STAGES": 4}))
    assert tuned_config(FLASH, MISSION, L4) == TUNED


def test_an_entry_that_the_kernel_rejects_is_not_used() -> None:
    keep_tuned(replace(ENTRY, config={**CONFIG, "BLOCK_M": 48}))
    assert tuned_config(FLASH, MISSION, L4) == FLASH.default_config


def test_a_shipped_entry_counts_until_the_user_has_one(own_folder: Path) -> None:
    keep_tuned(ENTRY, own_folder / "shipped")
    assert tuned_entries(FLASH, own=False) == (ENTRY,)
    assert tuned_config(FLASH, MISSION, L4) == TUNED
    keep_tuned(replace(ENTRY, config={**CONFIG, "NUM_STAGES": 4}))
    assert tuned_config(FLASH, MISSION, L4)["NUM_STAGES"] == 4


def test_a_stored_entry_is_for_the_gpu_of_its_record(own_folder: Path) -> None:
    data = json.loads(keep_tuned(ENTRY).read_text())
    assert StoredRecord.from_dict(data).tuned == ENTRY
    with pytest.raises(ValueError, match="the tuned default is not for NVIDIA H200"):
        StoredRecord.from_dict({**data, "gpu": H200})


@pytest.mark.parametrize(
    "change",
    [{"level": "quick"}, {"cases": 0}, {"ptx_sha256": ()}, {"tuned_us": 5.1}, {"searched": Problem(1, 8, 64, 64)}],
)
def test_there_is_no_entry_without_a_full_verdict_or_that_is_slower(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="tuned default of flash"):
        replace(ENTRY, **change)


def test_a_damaged_file_is_not_used_with_a_warning() -> None:
    path = keep_tuned(ENTRY)
    path.write_text(path.read_text().replace("4.6", "4.5"))
    with pytest.warns(RecordWarning, match="sha256 is [0-9a-f]+, and its fields give"):
        assert tuned_config(FLASH, MISSION, L4) == FLASH.default_config


def test_problems_share_a_tuned_default_or_have_the_default() -> None:
    keep_tuned(ENTRY)
    long = Problem(1, 8, 4096, 64)
    assert shared_config(FLASH, [MISSION, MISSION.with_(seq_q=500, seq_kv=500)], L4) == TUNED
    assert shared_config(FLASH, [MISSION, long], L4) == FLASH.default_config
    assert shared_config(FLASH, [MISSION], "NVIDIA T4") == FLASH.default_config


@pytest.mark.parametrize("problem", [MISSION, Problem(2, 8, 500, 128, kv_heads=2), Problem(1, 1, 1, 64)])
def test_held_out_problems_are_others_of_the_same_class(problem: Problem) -> None:
    others = held_out(problem)
    assert problem not in others
    assert {ProblemClass.of(each) for each in others} <= {ProblemClass.of(problem)}
    assert len(others) >= (3 if problem == MISSION else 0)


def test_shipped_entries_are_of_the_present_source() -> None:
    for entry in shipped_records().tuned:
        assert entry.source == source_digest(get(entry.kernel)), f"tune {entry.kernel} again, or drop its entry"
