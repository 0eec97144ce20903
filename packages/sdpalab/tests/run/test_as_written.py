"""Files as people write them run right, with no edit: by a launch file each, and one through the judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpalab.cli import main
from warpsan.sanitize.case import read_case
from warpsan.sanitize.sanitizer import Modes, sanitize_case

FOLDER = Path(__file__).parents[3] / "warpsan" / "tests" / "build" / "as_written"
CASES = sorted(path for path in FOLDER.rglob("*.cu") if path.with_suffix(".json").is_file())
LOCKSTEP = Modes(schedules=("lockstep",), async_modes=("late",))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 10


SLOW = {"block_reduce", "grid_sync", "guarded", "layernorm", "tensor_map"}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else ()) for path in CASES],
    ids=lambda path: path.stem,
)
def test_a_file_with_its_launch_computes_what_is_expected(path: Path) -> None:
    case = read_case(path, path.with_suffix(".json"))
    assert case.launches.expect
    outcome = sanitize_case(case, LOCKSTEP, folders=[path.parent])
    assert [group.message for group in outcome.groups] == []
    assert outcome.set_aside.functions


def test_a_kernel_that_accumulates_into_filled_buffers_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "verdict.json"
    shape = ("--shape", "1,1,64,32", "--dtype", "float32", "--only", "1x1x64x32 float32 seed 0")
    assert main(["judge", str(FOLDER / "flash_homework.py"), *shape, "--json", str(written)]) == 0
    line = "set aside: 1 host function (attend), 1 host header (torch/types.h)"
    assert line in " ".join(capsys.readouterr().out.split())
    assert {case["run"]["set_aside"] for case in json.loads(written.read_text())["cases"]} == {line}


def test_a_hazard_names_the_users_line(tmp_path: Path) -> None:
    source = (FOLDER / "gemm_main.cu").read_text()
    barrier = (
        "    for (int i = 0; i < TILE; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];\n    __syncthreads();\n"
    )
    assert barrier in source
    (tmp_path / "gemm_main.cu").write_text(source.replace(barrier, barrier.replace("    __syncthreads();\n", "\n")))
    (tmp_path / "gemm_main.json").write_text((FOLDER / "gemm_main.json").read_text())
    case = read_case(tmp_path / "gemm_main.cu", tmp_path / "gemm_main.json")
    outcome = sanitize_case(case, Modes(schedules=("forward",), async_modes=("late",)), folders=[tmp_path])
    race = next(group for group in outcome.groups if group.kind == "race")
    lines = (tmp_path / "gemm_main.cu").read_text().splitlines()
    for party in filter(None, (race.here, race.other)):
        file, line = party.place.rsplit(":", 1)
        assert file.endswith("gemm_main.cu")
        assert "As[" in lines[int(line) - 1] or "Bs[" in lines[int(line) - 1]
