"""The command line of warpsan: what each command prints and writes for the same racy file, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from warpsan.cli import COMMANDS, main
from warpsan.report.hazards import KINDS
from warpsan.version import __version__

pytest_plugins = ("pytester",)

REVERSE = """\
extern "C" __global__ void reverse(const float *in, float *out) {
    __shared__ float tile[256];
    tile[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = tile[255 - threadIdx.x];
}
"""
LAUNCH = {
    "buffers": {
        "in": {"dtype": "float32", "shape": 256, "init": "arange"},
        "out": {"dtype": "float32", "shape": 256, "init": "poison"},
    },
    "entry": "reverse",
    "grid": 1,
    "block": 256,
    "args": ["in", "out"],
}


@pytest.fixture
def racy(tmp_path: Path) -> Path:
    """A file without the barrier between its write and its read, with its launch file."""
    (tmp_path / "reverse.json").write_text(json.dumps(LAUNCH))
    path = tmp_path / "reverse.cu"
    path.write_text(REVERSE)
    return path


@pytest.fixture
def right(racy: Path) -> Path:
    """The file with its barrier."""
    racy.write_text(REVERSE.replace("    out[", "    __syncthreads();\n    out["))
    return racy


def test_a_race_is_found_at_both_lines(racy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = racy.with_name("out.json")
    assert main(["sanitize", str(racy), "--json", str(document)]) == 1
    text = capsys.readouterr().out
    assert "race at reverse.cu:3 and reverse.cu:4" in text
    assert "usually a missing barrier between them" in text
    assert json.loads(document.read_text())["status"] == "FAILED"


def test_the_file_with_a_barrier_is_clean(right: Path) -> None:
    assert main(["sanitize", str(right)]) == 0


def test_a_launch_keeps_named_buffers(right: Path, tmp_path: Path) -> None:
    assert main(["launch", str(right), "--out", str(tmp_path / "out")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out/out.npy"), np.arange(256, dtype=np.float32)[::-1])


def test_a_launch_in_a_bad_order_shows_the_race(racy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", str(racy), "--schedule", "reverse"]) == 1
    assert "race" in capsys.readouterr().out


def test_counters_are_those_of_the_access_pattern(right: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = right.with_name("out.json")
    assert main(["counters", str(right), "--line", "3", "--json", str(document)]) == 0
    # Eight warps load and store 128 bytes each: four sectors; the tile is written and read without a conflict.
    assert "64 sectors, 64 if coalesced; shared memory: 16 wavefronts, 16 without" in " ".join(
        capsys.readouterr().out.split()
    )
    content = json.loads(document.read_text())
    assert [each["entry"] for each in content["launches"]] == ["reverse"]
    assert content["pictures"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_hazard_is_explained(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{kind}: ")
    assert len(lines) > 5


def test_the_list_of_kinds_has_the_tools_of_compute_sanitizer(tmp_path: Path) -> None:
    assert main(["explain", "--json", str(tmp_path / "kinds.json")]) == 0
    tools = {each["kind"]: each["tool"] for each in json.loads((tmp_path / "kinds.json").read_text())["kinds"]}
    assert (tools["race"], tools["out-of-bounds"], tools["uninitialised"]) == ("racecheck", "memcheck", "initcheck")


def test_instructions_of_an_opcode(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["instructions", "ldmatrix"]) == 0
    assert "ldmatrix" in capsys.readouterr().out
    assert main(["instructions", "tex"]) == 1
    assert "tex is not executed" in capsys.readouterr().out


def test_the_pre_flight_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sanitize", "none.cu"], "none.cu"),
        (["launch", "none.ptx"], "none.ptx"),
        (["counters", "reverse.cu", "--line", "x"], "--line takes a line's number or FILE:LINE, not 'x'"),
        (["launch", "reverse.cu", "--schedule", "fair"], "--schedule takes lockstep"),
        (["explain", "rase"], "there is no kind of hazard 'rase'; the kinds are: "),
        (["run"], "Missing argument 'PROGRAM'"),
        (["sanitise", "reverse.cu"], "sanitise"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    words: str,
    racy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(racy.parent)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name}" in text for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"warpsan {__version__}"


TEST = """

def test_reverse(warpsan):
    import json, numpy
    from warpsan.build import Module, build
    ptx = build(Module("reverse.cu", open("{source}").read(), "reverse")).ptx
    a, b = numpy.arange(256, dtype="f4"), numpy.zeros(256, "f4")
    warpsan.launch(ptx, "reverse", grid=1, block=256, args=[a, b])
    assert (b == a[::-1]).all()
"""


@pytest.mark.parametrize("clean", [True, False])
def test_the_fixture_fails_a_test_with_its_hazards(
    pytester: pytest.Pytester, tmp_path: Path, clean: bool, request: pytest.FixtureRequest
) -> None:
    source: Path = request.getfixturevalue("right" if clean else "racy")
    pytester.makepyfile(TEST.format(source=source))
    result = pytester.runpytest_subprocess("-p", "no:xdist")
    result.assert_outcomes(passed=int(clean), failed=int(not clean))
    if not clean:
        assert "race" in result.stdout.str()
