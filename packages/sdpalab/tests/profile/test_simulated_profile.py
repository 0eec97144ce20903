"""``sdpalab profile --device sim``: figures that were derived by hand, and a shipped kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from strided_kernel import LOAD, RESULT, STORE, STRIDED

from sdpalab.cli import main
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.kernels.registry import get
from sdpalab.model.counted import count
from sdpalab.problem import Problem
from sdpalab.profile.remarks import remarks
from sdpalab.profile.simulated_profile import SimulatedProfile, simulated_profile
from sdpalab.profile.source_lines import LineFigures, lines_of_file
from warpsan.gpus import gpu_named
from warpsan.profile.counters import wavefronts
from warpsan.profile.pictures import AccessPicture, access_pictures, bank_passes
from warpsan.profile.recording import AccessRecorder, RecordedAccess

L4 = gpu_named("L4")
SMALL = Problem(1, 1, 64, 64)


@pytest.fixture(scope="module")
def recorders() -> dict[int, AccessRecorder]:
    return {line: AccessRecorder(f"strided.cu:{line}") for line in (LOAD, STORE, RESULT)}


@pytest.fixture(scope="module")
def strided(recorders: dict[int, AccessRecorder]) -> SimulatedProfile:
    watchers = tuple(recorders.values())
    return simulated_profile(count(STRIDED, SMALL, "sm_89", sms=L4.sms, watchers=watchers), L4, "sm_89")


@pytest.fixture(scope="module")
def flash() -> SimulatedProfile:
    return simulated_profile(count(get("flash"), SMALL, "sm_89", sms=L4.sms), L4, "sm_89")


def lines(profile: SimulatedProfile) -> dict[int, LineFigures]:
    return dict(lines_of_file(profile.launches[0].lines, "strided.cu"))


def pictures(recorder: AccessRecorder, profile: SimulatedProfile) -> dict[str, AccessPicture]:
    """By memory; the profile is an argument so that its launch has run."""
    return {picture.access.space: picture for picture in access_pictures(recorder.records)}


def test_a_load_128_bytes_apart_takes_a_sector_a_lane(strided: SimulatedProfile) -> None:
    line = lines(strided)[LOAD]
    assert (line.sectors, line.ideal_sectors) == (32, 2)  # 32 lanes of 2 bytes: 64 bytes in all
    assert (line.wavefronts, line.ideal_wavefronts) == (0, 0)
    assert line.by_pipe["global"] == 1
    assert line.sass["LDG"] == 1


def test_a_store_8_words_apart_conflicts_eight_times(strided: SimulatedProfile) -> None:
    line = lines(strided)[STORE]
    assert (line.wavefronts, line.ideal_wavefronts, line.conflicts) == (8, 1, 7)
    assert line.sass["STS"] == 1
    assert line.divergence == 0


def test_a_branch_of_eight_lanes_switches_off_three_quarters(strided: SimulatedProfile) -> None:
    line = lines(strided)[RESULT]
    assert line.divergence == 0.75
    assert (line.sectors, line.ideal_sectors) == (1, 1)  # 8 lanes of 2 bytes
    assert (line.wavefronts, line.ideal_wavefronts) == (2, 1)  # banks 0, 8, 16, 24, two words each


def test_the_lines_add_up_to_the_launch(strided: SimulatedProfile, flash: SimulatedProfile) -> None:
    for launch in (*strided.launches, *flash.launches):
        for name in ("warps", "lanes", "sectors", "wavefronts", "ideal_sectors", "ideal_wavefronts"):
            assert sum(getattr(line, name) for line in launch.lines) == launch.counters.total(name), name
        assert sum(line.issued or 0 for line in launch.lines) == pytest.approx(1)
        assert {pipe for line in launch.lines for pipe in line.by_pipe} <= launch.counters.mix().keys()


def test_the_remarks_name_the_lines(strided: SimulatedProfile) -> None:
    sentences = {remark.sentence: remark.kind for remark in remarks(strided.launches[0])}
    simulated = [sentence for sentence, kind in sentences.items() if kind == "simulated"]
    assert simulated[:2] == [
        "strided.cu:6: 8.0x the wavefronts it needs, 70% of all are its bank conflicts",  # 7 of 8 + 2
        "strided.cu:9: 2.0x the wavefronts it needs, 10% of all are its bank conflicts",
    ]
    assert f"strided.cu:{LOAD}: 16.0x the sectors it needs, 91% of all" in simulated[2]  # 30 of 32 + 1
    assert any(f"strided.cu:{RESULT}: 75% of the lanes" in sentence for sentence in simulated)
    assert next(iter(remarks(strided.launches[0]))).binds


def test_the_banks_of_the_store(strided: SimulatedProfile, recorders: dict[int, AccessRecorder]) -> None:
    picture = pictures(recorders[STORE], strided)["shared"]
    assert picture.access.cost == len(picture.passes) == 8
    assert picture.least_passes == 1
    for number, banks in enumerate(picture.passes):
        served = {bank: lanes for bank, lanes in enumerate(banks) if lanes}
        assert served == {8 * bank: (4 * number + bank,) for bank in range(4)}


def test_the_tile_of_the_load(strided: SimulatedProfile, recorders: dict[int, AccessRecorder]) -> None:
    picture = pictures(recorders[LOAD], strided)["global"]
    assert picture.access.cost == 32
    assert picture.tile is not None
    assert (picture.tile.region, picture.tile.elements, picture.tile.unit) == ("q[0, 0, 0:32, 0]", 32, 1)
    assert [(row.index, row.cells) for row in picture.tile.rows] == [((0, 0, i), ((i,),)) for i in range(32)]


def test_a_line_has_a_picture_for_each_memory(strided: SimulatedProfile, recorders: dict[int, AccessRecorder]) -> None:
    both = pictures(recorders[RESULT], strided)
    assert both.keys() == {"shared", "global"}
    assert both["global"].tile is not None
    assert both["global"].tile.region == "o[0, 0, 0, 0:8]"


@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("apart", [0, 16, 32, 128, 144])
def test_there_are_as_many_passes_as_the_counters_count(width: int, apart: int) -> None:
    lanes = np.arange(32)
    access = RecordedAccess(
        "k", 0, "ld.shared", (), "shared", (0, 0, 0), 0, lanes, lanes * apart, width, 0, None, lanes
    )
    passes = bank_passes(access)
    assert len(passes) == wavefronts(np.zeros_like(lanes), lanes, lanes * apart, width)
    served = [lane for banks in passes for lanes_of_bank in banks for lane in lanes_of_bank]
    assert sorted(served) == sorted(lanes.tolist() * max(1, width // 4))  # each word of each lane once


def test_flash_counts_for_the_lines_of_its_author(flash: SimulatedProfile) -> None:
    (launch,) = flash.launches
    by_place = {line.place: line for line in launch.lines}
    # Wrappers of one instruction; line 0 is the compiler's own.
    assert not any(place.startswith("sm80.cuh") and not place.endswith(":0") for place in by_place)
    products = [line for line in launch.lines if line.sass.get("HMMA")]
    assert [flash.sources.line(line.place).strip() for line in products] == ["ptx::mma_m16n8k16_f16(acc, a, b0, b1);"]
    assert sum(line.by_pipe.get("tensor", 0) for line in products) == launch.counters.mix()["tensor"]
    assert all(line.conflicts == 0 for line in launch.lines)
    assert launch.issue is not None
    assert 0 < launch.issue.busy["tensor"] < 1


def test_the_command_writes_a_document_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "p.json"
    source = (INCLUDE_DIR / "tile" / "warp_products.cuh").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "ptx::ldmatrix_x4_trans_at<" in text)
    words = [
        "profile",
        "flash",
        "--device",
        "sim",
        "--shape",
        "1,1,64,64",
        "--line",
        f"warp_products.cuh:{line}",
        "--out",
        str(tmp_path),
    ]
    assert main([*words, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    assert "Nothing here was measured" in out
    assert out.splitlines()[-1].endswith("us, on normal inputs (1.00x normal); not measured")
    document = json.loads(target.read_text())
    assert (document["measured"], document["gpu"], document["status"]) == (False, "L4", "PASSED")
    assert {remark["kind"] for launch in document["launches"] for remark in launch["remarks"]} <= set(document["kinds"])
    assert document["pictures"][0]["space"] == "shared"
    page = Path(document["page"]).read_text()
    assert "not measured" in page
    assert "ldmatrix.sync" in page
    assert not re.search(r"<script|https?://|<link", page)


def test_a_users_file_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    mine = tmp_path / "mine.py"
    mine.write_text((Path(__file__).parent / "strided_kernel.py").read_text())
    chosen = ["--line", str(STORE), "--line", str(LOAD), "--line", "3"]
    assert main(["profile", str(mine), "--device", "sim", "--shape", "1,1,64,64", "--source", *chosen]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if re.search(r" {4}|^strided.cu:\d|^ +\S+ \S", line)]
    assert len(rows) > 30
    assert max(map(len, rows)) <= 80
    assert "shared memory: 8 wavefronts, at least 1; 8.0x: bank conflicts" in out
    assert "q[0, 0, 0:32, 0]: 32 elements by the block; 32 sectors by this access" in out
    assert f"it does in line {LOAD}, {STORE}, {RESULT}" in out
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["flash"], "'sdpalab profile flash --device sim' profiles it without one"),
        (["flash", "--device", "cpu"], "--device takes gpu or sim"),
        (["flash", "--source"], "--gpu, --line and --source are for --device sim"),
        (["flash", "--device", "sim", "--line", "nine"], "--line takes a line's number or FILE:LINE"),
        (["flash", "--device", "sim", "--verdicts", "."], "--verdicts is for --device gpu"),
        (["hopper", "--device", "sim", "--gpu", "L4"], "hopper does not run on L4"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_what_cannot_be_profiled_is_refused(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *words]) == 2
    assert reason in capsys.readouterr().err
