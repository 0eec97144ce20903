"""Records that are kept: complete or not at all, under names of their own, with a sentence where they cannot be."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from certificate_sample import DRIVER, GPU, bench, stored_times
from sdpalab.errors import MachineError
from sdpalab.evidence.store import record as store
from sdpalab.evidence.store.folders import folder_of
from sdpalab.evidence.store.record import StoredRecord, check_writable, keep, read_records, sealed
from sdpalab.version import __version__


def test_folders_are_named_after_gpus() -> None:
    assert folder_of("NVIDIA H200") == "h200"
    assert folder_of("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert folder_of("NVIDIA") == "gpu"


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    record = stored_times([0.5] * 12)
    path = keep(record, "times", tmp_path)
    assert path.parent == tmp_path / "l4"
    assert list(read_records(path.parent, own=True)) == [(path, record)]
    assert (record.lab, record.driver) == (__version__, DRIVER)


def test_a_digest_covers_every_field() -> None:
    data = stored_times([0.5] * 12).to_dict()
    for name, value in {"gpu": "NVIDIA L40", "driver": "1.0", "lab": "0", "when": "2020-01-01T00:00:00Z"}.items():
        with pytest.raises(ValidationError):
            StoredRecord.from_dict({**data, name: value})
    assert StoredRecord.from_dict(data).sha256 == data["sha256"]


def test_a_record_holds_one_thing_of_one_gpu() -> None:
    with pytest.raises(ValidationError, match="one of the three"):
        sealed(gpu=GPU, driver=DRIVER)
    with pytest.raises(ValidationError, match="the times are not from NVIDIA H200"):
        sealed(gpu="NVIDIA H200", driver=DRIVER, bench=bench([0.5] * 12))


def test_many_keep_at_once(tmp_path: Path) -> None:
    record = stored_times([0.5] * 12)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: keep(record, "times", tmp_path), range(40)))
    assert len(set(paths)) == 40
    assert len(list(read_records(tmp_path / "l4", own=True))) == 40
    assert {path.suffix for path in (tmp_path / "l4").iterdir()} == {".json"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store, "write_atomically", refuse)
    for attempt in (lambda: check_writable(tmp_path), lambda: keep(stored_times([0.5] * 12), "times", tmp_path)):
        with pytest.raises(
            MachineError, match=f"records cannot be kept in .*: {os.strerror(number)}; SDPALAB_DATA_DIR"
        ):
            attempt()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="records cannot be kept in"):
        check_writable(tmp_path / "file" / "proofs")


def test_a_check_leaves_nothing(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "new") == tmp_path / "new"
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_is_not_there_has_no_records(tmp_path: Path) -> None:
    assert list(read_records(tmp_path / "l4", own=True)) == []
