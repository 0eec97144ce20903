"""What the suite makes of what it finds: kernels for a GPU, records to commit, golden vectors, a few archives."""

from __future__ import annotations

import io
import json
import os
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sdpalab.evidence.proven import read_proofs
from sdpalab.evidence.records import AttemptRecord
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.kernels.registry import KERNELS, needs
from sdpalab.problem import Problem

GPU = "NVIDIA H200"


@pytest.fixture
def records(load_script: Callable[[str], ModuleType], root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(root / "scripts")
    monkeypatch.delitem(sys.modules, "gpu_records", raising=False)
    return load_script("gpu_records")


@pytest.fixture
def archive(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("gpu_archive")


@pytest.fixture
def work(records: ModuleType, tmp_path: Path) -> Any:
    return records.Workspace(tmp_path, GPU)


def bundle(path: Path, *attempts: str) -> None:
    """A tarball with records as a bundle has them, and with a file that is none."""
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as opened:
        for number, text in enumerate((*attempts, '{"floors": []}')):
            content = text.encode()
            member = tarfile.TarInfo(f"bundle/records/{number:02d}.json")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))


def attempt(kernel: str, device: str) -> str:
    """A kernel that crashed on its only case."""
    case = Case("1", Problem(1, 1, 8, 32), "normal", 0, Status.CRASHED, "a test")
    verdict = Verdict(kernel, "", device, "quick", 0, (case,))
    return AttemptRecord(kernel=kernel, config="", idea="", builds=(), verdict=verdict).model_dump_json()


def test_folders_are_named_after_gpus(records: ModuleType) -> None:
    assert records.folder_of("NVIDIA H200") == "h200"
    assert records.folder_of("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"


def test_verdicts_of_a_gpu_are_collected_and_no_others(records: ModuleType, work: Any) -> None:
    bundle(work.path / "verdicts" / "flash" / "b.tar.gz", attempt("flash", GPU))
    bundle(work.path / "verdicts" / "wmma" / "b.tar.gz", attempt("wmma", "simulator sm_89"))
    bundle(work.path / "verdicts" / "cut" / "b.tar.gz", attempt("scalar", GPU))
    cut = work.path / "verdicts" / "cut" / "b.tar.gz"
    cut.write_bytes(cut.read_bytes()[:100])
    (written,) = records.collect(work)
    assert written == work.path / "evidence" / "h200" / "flash.json"
    assert AttemptRecord.model_validate_json(written.read_text()).kernel == "flash"
    assert read_proofs(work.path / "evidence") == ()  # it crashed
    assert records.green(work) == []
    assert records.why_not_green(work, "flash") == "CRASHED: a test"
    assert records.why_not_green(work, "wmma") == "it has no verdict (it was not judged)"


def test_a_gpu_runs_what_is_compiled_for_it(records: ModuleType) -> None:
    (ada, no_ada), (hopper, no_hopper) = records.candidates("sm_89"), records.candidates("sm_90a")
    assert {"scalar", "flash"} <= set(ada) & set(hopper)
    assert ada == [name for name in hopper if name in ada] + [name for name in ada if name not in hopper]
    assert any("hopper" in why and "sm_90a" in why for why in no_ada)
    assert not any("only sm_90a" in why for why in no_hopper)
    for name in KERNELS:
        if needs(name) is not None:
            assert needs(name) in no_hopper


def test_a_kernel_that_leaves_products_to_a_library_needs_that(
    records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "gemm_problem", lambda: "no cuBLAS here")
    names, refused = records.candidates("sm_90a")
    assert "cublas" not in names
    assert "kernel cublas: no cuBLAS here" in refused
    monkeypatch.setattr(records, "gemm_problem", lambda: "")
    assert "cublas" in records.candidates("sm_90a")[0]


def golden(folder: Path, header: str, *digests: str, cut: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"gpu": header}), *(json.dumps({"digest": digest}) for digest in digests)]
    (folder / "golden.jsonl").write_text("\n".join(lines) + ('\n{"dig' if cut else "\n"))


def test_golden_vectors_of_all_shards_are_one_file_each_launch_once(
    records: ModuleType, work: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    golden(work.replay(0), GPU, "a", "b", cut=True)
    golden(work.replay(1), GPU, "b", "c")
    golden(work.replay(2), "another", "d")
    for _ in range(2):
        records.merge_golden(work)
        lines = [json.loads(line) for line in (work.evidence / "golden.jsonl").read_text().splitlines()]
        assert lines == [{"gpu": GPU}, {"digest": "a"}, {"digest": "b"}, {"digest": "c"}]
    assert "2: recorded on another GPU" in capsys.readouterr().err
    records.share_golden(work, 5)
    assert (work.replay(5) / "golden.jsonl").read_text() == (work.evidence / "golden.jsonl").read_text()
    before = (work.replay(1) / "golden.jsonl").read_text()
    records.share_golden(work, 1)
    assert (work.replay(1) / "golden.jsonl").read_text() == before


def test_times_are_what_makes_a_bench_an_end(records: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "mission.json"
    assert not records.has_times(file)
    for results, times in (
        ([], False),
        ([{"measurements": [{"summary": None}]}], False),
        ([{"measurements": [{"summary": None}, {"summary": {"median_us": 1.0}}]}], True),
    ):
        file.write_text(json.dumps({"results": results}))
        assert records.has_times(file) is times
    file.write_text('{"results": [')
    assert not records.has_times(file)


def test_the_environment_says_how_processes_are_confined(records: ModuleType, tmp_path: Path) -> None:
    sentence = records.environment(tmp_path)
    record = json.loads((tmp_path / "environment.json").read_text())
    assert record["confinement"] in ("namespaces", "processes")
    assert sentence.startswith(f"confinement: {record['confinement']}")
    assert record["harness"]["package_sha256"]


def test_wrong_usage(records: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["green"], ["environment"], ["red", "out"]):
        assert records.main(arguments) == 2
        assert "usage: scripts/gpu_records.py" in capsys.readouterr().err


# --- archives ---------------------------------------------------------------------------------------------------------


def fill(path: Path, size: int, seed: int = 0) -> None:
    """A file that no compression makes smaller."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(seed).randbytes(size))


def test_what_is_packed_comes_back_as_it_was(archive: ModuleType, tmp_path: Path) -> None:
    work, out, again = tmp_path / "work", tmp_path / "out", tmp_path / "again"
    out.mkdir()
    fill(work / "evidence" / "h200" / "flash.json", 100)
    fill(work / "logs" / "mission.log", 200)
    fill(work / "verdicts" / "flash" / "bundle.tar.gz", 300)
    fill(work / "verdicts" / "flash" / "report.html", 300)
    fill(work / "parts" / ".mission.json.draft", 10)
    packed = archive.pack(work, out)
    assert [path.name for path in packed.archives] == ["records.tar.gz", "logs.tar.gz"]
    assert packed.left_out == []
    fill(again / "logs" / "mission.log", 5, seed=1)  # what is there is newer
    assert archive.unpack(out, again) == ["logs.tar.gz", "records.tar.gz"]
    assert (again / "evidence/h200/flash.json").read_bytes() == (work / "evidence/h200/flash.json").read_bytes()
    assert (again / "logs/mission.log").stat().st_size == 5
    assert sorted(path.name for path in again.rglob("*") if path.is_file()) == [
        "bundle.tar.gz",
        "flash.json",
        "mission.log",
    ]


def names(path: Path) -> list[str]:
    with tarfile.open(path) as opened:
        return opened.getnames()


def test_no_archive_is_larger_than_allowed_and_there_are_no_more_than_allowed(
    archive: ModuleType, tmp_path: Path
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    out.mkdir()
    (out / "records.9.tar.gz").touch()
    for number in range(9):
        fill(work / "evidence" / "h200" / f"{number}.json", 40_000, number)
    fill(work / "evidence" / "h200" / "large.json", 110_000)
    for number in range(9):
        fill(work / "logs" / f"{number}.log", 40_000, number)
    packed = archive.pack(work, out, most_bytes=100_000, most_files=8)
    assert sorted(path.name for path in out.iterdir()) == [
        "logs.tar.gz",
        "records.2.tar.gz",
        "records.3.tar.gz",
        "records.4.tar.gz",
        "records.5.tar.gz",
        "records.tar.gz",
    ]
    assert all(path.stat().st_size <= 100_000 for path in out.iterdir())
    archived = [name for path in packed.archives for name in names(path)]
    assert sum(name.startswith("evidence") for name in archived) == 9
    assert len(packed.left_out) == 1 + 7
    assert "evidence/h200/large.json is left out: " in packed.left_out[0]
    assert packed.left_out[-1] == "logs/8.log is left out: the archives are full"


def test_an_archive_that_was_cut_off_is_skipped(archive: ModuleType, tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    out.mkdir()
    fill(work / "logs" / "mission.log", 50_000)
    archive.pack(work, out)
    os.truncate(out / "logs.tar.gz", 20_000)
    assert archive.unpack(out, tmp_path / "again") == []


def test_an_archive_names_no_person(archive: ModuleType, tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    out.mkdir()
    fill(work / "logs" / "mission.log", 10)
    archive.pack(work, out)
    with tarfile.open(out / "logs.tar.gz") as opened:
        (member,) = opened.getmembers()
    assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
