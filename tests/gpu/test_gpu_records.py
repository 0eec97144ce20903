"""What the suite makes of verdicts: which kernels a GPU can run, and which records are to be committed."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sdpalab.evidence.proven import read_proofs
from sdpalab.evidence.records import AttemptRecord
from sdpalab.judge.verdict import Case, Status, Verdict
from sdpalab.problem import Problem


@pytest.fixture
def records(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("gpu_records")


def bundle(path: Path, *attempts: str) -> None:
    """A tarball with records as a bundle has them, and with a file that is none."""
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        for number, text in enumerate((*attempts, '{"floors": []}')):
            content = text.encode()
            member = tarfile.TarInfo(f"bundle/records/{number:02d}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def attempt(kernel: str, device: str) -> str:
    """A kernel that crashed on its only case."""
    case = Case("1", Problem(1, 1, 8, 32), "normal", 0, Status.CRASHED, "a test")
    verdict = Verdict(kernel, "", device, "quick", 0, (case,))
    return AttemptRecord(kernel=kernel, config="", idea="", builds=(), verdict=verdict).model_dump_json()


def test_folders_are_named_after_gpus(records: ModuleType) -> None:
    assert records.folder_of("NVIDIA H200") == "h200"
    assert records.folder_of("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"


def test_verdicts_of_a_gpu_are_collected_and_no_others(records: ModuleType, tmp_path: Path) -> None:
    bundle(tmp_path / "verdicts" / "flash" / "b.tar.gz", attempt("flash", "NVIDIA H200"))
    bundle(tmp_path / "verdicts" / "wmma" / "b.tar.gz", attempt("wmma", "simulator sm_89"))
    (written,) = records.collect(tmp_path)
    assert written == tmp_path / "evidence" / "h200" / "flash.json"
    assert AttemptRecord.model_validate_json(written.read_text()).kernel == "flash"
    assert read_proofs(tmp_path / "evidence") == ()  # it crashed
    assert records.green(tmp_path) == []


def test_a_gpu_runs_what_is_compiled_for_it(records: ModuleType) -> None:
    ada, hopper = records.candidates((8, 9)), records.candidates((9, 0))
    assert {"scalar", "flash"} <= set(ada) & set(hopper)
    assert ada == [name for name in hopper if name in ada] + [name for name in ada if name not in hopper]


def test_wrong_usage(records: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["green"], ["red", "out"]):
        assert records.main(arguments) == 2
        assert "usage: scripts/gpu_records.py" in capsys.readouterr().err
