"""A wheel, made without the network: it carries the records of evidence/<gpu>, and finds them where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from warpsan.build.triton_compiler import TESTED

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "packages" / "sdpalab"

READ = "from sdpalab.evidence.store.folders import EVIDENCE; print(*sorted(p.name for p in EVIDENCE.glob('*/*')))"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what packaging sees, with a record of a GPU among the evidence."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tree / "packages/sdpalab").mkdir(parents=True, exist_ok=True)
        shutil.copy(LAB / name, tree / "packages/sdpalab")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(LAB / "src", tree / "packages/sdpalab/src", symlinks=True, ignore=skipped)
    for folder in ("h200", "ladder", "campaigns"):
        (tree / "evidence" / folder).mkdir(parents=True)
        (tree / "evidence" / folder / f"{folder}.json").write_text("{}")
    (tree / "evidence" / "h200" / "golden.jsonl").write_text("{}")
    return tree


def make(tree: Path, what: str, out: Path) -> Path:
    """The sdist or the wheel of ``tree``, by the build backend that pip would call."""
    code = f"import sys, setuptools.build_meta as backend; backend.build_{what}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(out)], cwd=tree, check=True, capture_output=True, timeout=300)
    (archive,) = out.iterdir()
    return archive


def test_the_bound_on_triton_is_what_is_tested_and_holds_the_pinned_one() -> None:
    (least, oldest), (most, newest) = TESTED
    bound = f'"triton>={least}.{oldest},<{most}.{newest + 1}"'
    texts = [path.read_text() for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
    assert [text.count(bound) for text in texts] == [2, 1]  # the lab's extra and its dev; the simulator's extra
    (pinned,) = re.findall(r"^triton==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert TESTED[0] <= tuple(map(int, pinned)) <= TESTED[1]


@pytest.mark.slow
def test_a_wheel_carries_the_records_of_gpus_and_no_others(tree: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(make(tree / "packages/sdpalab", "wheel", wheels)) as wheel:
        wheel.extractall(tmp_path / "installed")
        names = wheel.namelist()
    assert [name for name in names if "/shipped/" in name] == ["sdpalab/evidence/shipped/h200/h200.json"]
    assert {"sdpalab/evidence/report/report.html.j2", "sdpalab/kernels/flash.cu"} <= set(names)
    assert read(tmp_path / "installed") == "h200.json"


@pytest.mark.slow
def test_so_does_a_wheel_of_the_source_distribution(tree: Path, tmp_path: Path) -> None:
    for folder in ("sdist", "wheels"):
        (tmp_path / folder).mkdir()
    shutil.unpack_archive(make(tree / "packages/sdpalab", "sdist", tmp_path / "sdist"), tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(make(unpacked, "wheel", tmp_path / "wheels")) as wheel:
        assert [name for name in wheel.namelist() if "/shipped/" in name] == ["sdpalab/evidence/shipped/h200/h200.json"]
    assert read(unpacked / "src") == "h200.json"


def test_a_source_tree_has_its_own(tree: Path) -> None:
    assert read(tree / "packages/sdpalab/src") == "campaigns.json golden.jsonl h200.json ladder.json"


def read(path: Path) -> str:
    """The names of the records that a copy of the package finds."""
    command = [sys.executable, "-P", "-c", READ]
    done = subprocess.run(command, env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True)
    return done.stdout.strip()
