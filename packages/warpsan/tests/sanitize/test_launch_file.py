"""Launch files: every kind of argument, several launches, expected values, the schema, and invalid files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from warpsan import Device, Report
from warpsan.errors import UserError
from warpsan.sanitize.case import read_case
from warpsan.sanitize.launch_file import LaunchFile, launch_schema, read_launch_file
from warpsan.sanitize.sanitizer import Modes, sanitize_case

ROOT = Path(__file__).resolve().parents[4]
LOCKSTEP = Modes(schedules=("lockstep",), async_modes=("late",))

PTX = """.version 8.5
.target sm_90a
.address_size 64
.visible .const .align 4 .b8 factor[8];
.visible .entry scale(.param .align 64 .b8 s[256], .param .u64 out, .param .u64 table, .param .align 2 .b8 h[2]) {
    .reg .b64 %d<9>; .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .pred %p;
    mov.b64 %d0, s; ld.param.u64 %d1, [%d0+8]; ld.param.u64 %d2, [%d0+16]; ld.param.f32 %f0, [%d0+24];
    mov.u32 %r0, %tid.x; mul.wide.u32 %d3, %r0, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
    ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d2]; ld.const.f32 %f3, [factor+4];
    fma.rn.f32 %f1, %f1, %f0, %f2; mul.f32 %f1, %f1, %f3;
    ld.param.u64 %d4, [out]; add.u64 %d4, %d4, %d3; st.global.f32 [%d4], %f1;
    ld.param.u64 %d5, [table]; ld.global.u64 %d6, [%d5]; ld.global.u64 %d7, [%d5+8];
    setp.ne.u64 %p, %d7, 0; @%p trap; ld.global.f32 %f1, [%d6]; ld.param.u16 %r1, [h];
    cvt.rn.f32.u32 %f2, %r1; add.f32 %f1, %f1, %f2; st.global.f32 [%d4+128], %f1; ret; }
.visible .entry twice(.param .u64 x) {
    .reg .b64 %d<3>; .reg .b32 %r; .reg .f32 %f;
    ld.param.u64 %d0, [x]; mov.u32 %r, %tid.x; mul.wide.u32 %d1, %r, 4; add.u64 %d0, %d0, %d1;
    ld.global.f32 %f, [%d0]; add.f32 %f, %f, %f; st.global.f32 [%d0], %f; ret; }
"""


def case(folder: Path, **changes: Any) -> dict[str, Any]:
    """A valid file of two launches with every kind of argument."""
    x = np.arange(40, dtype=np.float32)
    np.save(folder / "x.npy", x)
    half = int(np.float16(1.5).view(np.uint16))
    want = 2 * np.concatenate([(x[:32] * 0.5 + x[8:40]) * 3, np.full(32, x[1] + half)])
    np.save(folder / "want.npy", want.astype(np.float32))
    (folder / "k.ptx").write_text(PTX)
    struct = {
        "size": 256,
        "data": "ff 00",
        "items": {"8": "x", "16": {"buffer": "x", "offset": 32}, "24": {"value": 0.5, "dtype": "float32"},
                  "128": {"map": {"buffer": "tiles", "box": [8, 16]}}},
    }  # fmt: skip
    scale = {"entry": "scale", "grid": 1, "block": [32], "dynamic_smem": 0}
    scale["args"] = [{"struct": struct}, "out", {"table": [{"buffer": "x", "offset": 4}, None]},
                     {"value": 1.5, "dtype": "float16"}]  # fmt: skip
    return {
        "buffers": {
            "x": {"file": "x.npy"},
            "tiles": {"dtype": "bfloat16", "shape": [16, 16]},
            "out": {"dtype": "float32", "shape": 64, "init": "poison"},
        },
        "variables": {"factor": {"values": [7, 3], "dtype": "float32"}},
        "launches": [scale, {"entry": "twice", "grid": 1, "block": 64, "args": ["out"]}],
        "expect": {"out": {"file": "want.npy"}},
        **changes,
    }


def written(folder: Path, facts: Any) -> Path:
    path = folder / "k.json"
    path.write_text(json.dumps(facts))
    return path


def test_every_kind_of_argument(tmp_path: Path) -> None:
    outcome = sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, case(tmp_path))))
    assert outcome.hazards == ()
    assert outcome.cases == ("scale", "twice")
    assert len(outcome.runs) == 4


def test_a_result_that_is_not_expected(tmp_path: Path) -> None:
    facts = case(tmp_path, expect={"out": {"init": "zeros", "atol": 1e6}, "x": {"init": "arange"}})
    assert sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP).clean
    facts["expect"] = {"x": {"values": [*range(39), 7]}}
    (hazard,) = sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP).hazards
    assert hazard.kind == "result"
    assert hazard.message == (
        "result: buffer x: 1 of 40 elements are not as expected; the worst is [39], 39 in place of 7"
    )


@pytest.mark.parametrize(
    ("init", "refilled", "wrong"),
    [
        ("poison", None, True),
        ("zeros", None, False),
        ("poison", "zeros", False),
        ("zeros", "poison", True),
        (-1, None, False),
    ],
)
def test_nobody_has_written_poison(tmp_path: Path, init: Any, refilled: str | None, wrong: bool) -> None:
    buffer = {"dtype": "int32", "shape": 32}
    launch = {"entry": "twice", "grid": 1, "block": 32, "args": ["x"]}
    launch |= {"set": {"x": {**buffer, "init": refilled}}} if refilled else {}
    (tmp_path / "k.ptx").write_text(PTX)
    launches = written(
        tmp_path, {"buffers": {"x": {**buffer, "init": init}}, "launches": [launch, launch | {"set": {}}]}
    )
    hazards = sanitize_case(read_case(tmp_path / "k.ptx", launches), LOCKSTEP).hazards
    assert [hazard.kind for hazard in hazards] == (["uninitialised"] if wrong else [])
    assert all("at byte 0 of buffer x are read before anything wrote them" in hazard.message for hazard in hazards)


def test_launches_of_two_streams(tmp_path: Path) -> None:
    facts = case(tmp_path)
    for launch, stream in zip(facts["launches"], ("a", "b"), strict=True):
        launch["stream"] = stream
    racing = sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP)
    assert {hazard.kind for hazard in racing.hazards} == {"race"}
    facts["launches"][1]["after"] = ["a"]
    assert sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP).clean


def test_a_launch_that_may_overlap_the_one_before_it(tmp_path: Path) -> None:
    facts = case(tmp_path)
    facts["launches"][1]["programmatic"] = True
    racing = sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP)
    assert {hazard.kind for hazard in racing.hazards} == {"race"}
    (tmp_path / "k.ptx").write_text(
        PTX.replace("ld.global.f32 %f, [%d0];", "griddepcontrol.wait; ld.global.f32 %f, [%d0];")
    )
    assert sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP).clean


def test_a_captured_file_has_addresses_other_ptx_and_refilled_buffers(tmp_path: Path) -> None:
    place = Device().array(np.zeros(1)).address + (1 << 20)
    np.save(tmp_path / "pointer.npy", np.array([place], np.uint64))
    (tmp_path / "other.ptx").write_text(PTX.replace("factor", "other"))
    chase = (
        ".version 8.5\n.target sm_90a\n.address_size 64\n.visible .entry chase(.param .u64 p) { .reg .b64 %d<3>;"
        " .reg .f32 %f; ld.param.u64 %d0, [p]; ld.global.u64 %d1, [%d0]; ld.global.f32 %f, [%d1]; add.f32 %f, %f, %f;"
        " st.global.f32 [%d1], %f; ret; }"
    )
    (tmp_path / "k.ptx").write_text(chase)
    launches = [
        {"entry": "chase", "grid": 1, "block": 1, "args": ["pointer"]},
        {"entry": "twice", "ptx": "other.ptx", "grid": 1, "block": 1, "args": ["x"], "set": {"x": {"values": [5]}}},
    ]
    launches[1]["set"]["other"] = {"dtype": "uint8", "shape": 8, "init": "ones"}
    facts = {
        "buffers": {
            "pointer": {"file": "pointer.npy"},
            "x": {"dtype": "float32", "values": [1], "address": place},
        },
        "launches": launches,
        "expect": {"x": {"values": [10]}},
    }
    assert sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP).clean
    facts["launches"] = launches[:1]
    facts["expect"] = {"x": {"values": [2]}}
    assert sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP).clean
    facts["buffers"]["x"]["address"] = 4096
    with pytest.raises(UserError, match="buffer x cannot lie at 0x1000: the device has room from"):
        sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP)


def test_a_type_that_numpy_does_not_have(tmp_path: Path) -> None:
    facts = case(tmp_path)
    np.save(tmp_path / "tiles.npy", np.ones((16, 16), ml_dtypes.bfloat16))
    facts["buffers"]["tiles"] = {"file": "tiles.npy", "dtype": "bfloat16"}
    assert sanitize_case(read_case(tmp_path / "k.ptx", written(tmp_path, facts)), LOCKSTEP).clean


def test_cuda_sources_by_an_instance_of_a_template(tmp_path: Path) -> None:
    source = """#include "more.h"
template <int N> __global__ void fill(float *x) { x[threadIdx.x] = N * MORE + VALUE; }
"""
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "more.h").write_text("#define MORE 10\n")
    (tmp_path / "k.cu").write_text(source)
    facts = {
        "entry": "fill<3>", "grid": 1, "block": 8, "args": [{"dtype": "float32", "shape": [8]}],
        "defines": {"VALUE": "4"}, "include": ["headers"], "arch": "sm_80",
    }  # fmt: skip
    described = read_case(tmp_path / "k.cu", written(tmp_path, facts))
    reports: list[Report] = []
    described.run(reports.append)
    assert [report.hazards for report in reports] == [[]]
    assert described.entries == ("fill<3>",)


def test_the_schema_is_published_and_the_page_keeps_to_it(tmp_path: Path) -> None:
    published = json.loads((ROOT / "packages" / "warpsan" / "docs" / "launch.schema.json").read_text())
    assert published == launch_schema(), "run python scripts/launch_schema.py"
    page = (ROOT / "packages" / "warpsan" / "docs" / "launch-files.md").read_text()
    (example,) = re.findall(r"^    \{\n.*?^    \}$", page, re.M | re.S)
    assert isinstance(read_launch_file(written(tmp_path, json.loads(example))), LaunchFile)


def change(facts: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The file with one value changed; ``...`` removes it."""
    place: Any = facts
    *way, last = (int(part) if part.isdecimal() and part != "8" else part for part in path.split("."))
    for part in way:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return facts


STRUCT = "launches.0.args.0.struct"
WRONG: list[tuple[str, Any, str]] = [
    ("launches", [], "launches: should have at least 1 item"),
    ("launch", 1, "there is no 'launch' in a launch file; it has buffers, variables, expect"),
    ("launches.0.grids", 1, "there is no 'grids' .* it has entry, grid, block"),
    ("launches.0.grid", ..., "a launch needs 'grid'"),
    ("launches.0.block", [32, 0], "launches.0.block.*greater than or equal to 1, not 0"),
    ("launches.0.args", [True], "launches.0.args.0"),
    ("launches.0.args.1", "nothing", "no buffer 'nothing'; there are: x, tiles, out"),
    ("launches.0.args.0", {"bytes": "abc"}, "launches.0.args.0.*pattern"),
    ("launches.0.args.0", {"bytes": "abcd"}, r"argument 0 \(s\) has 2 bytes, and the parameter has 256"),
    (f"{STRUCT}.size", 248, "at offset 128 reaches beyond the 248 bytes"),
    (f"{STRUCT}.data", "00" * 300, "a struct of 256 bytes has 300 bytes of data"),
    (f"{STRUCT}.items.8", 5, "launches.0.args.0.struct.items.8"),
    (f"{STRUCT}.items", {"4": "x"}, "an address lies at a multiple of 8 bytes of a Struct, not at 4"),
    (f"{STRUCT}.items", {"head": "x"}, "have offsets in bytes, not 'head'"),
    (f"{STRUCT}.items", {"254": {"value": 1, "dtype": "int32"}}, "a number at offset 254 reaches beyond the 256 bytes"),
    (f"{STRUCT}.items", {"128": {"map": {"buffer": "x", "box": [5]}}}, "innermost axis is a multiple of 16 bytes"),
    (f"{STRUCT}.file", "nothing.bin", "nothing.bin cannot be read"),
    ("buffers.x.file", "nothing.npy", "buffer x: .*nothing.npy cannot be read"),
    ("buffers.x.file", "k.ptx", "buffer x: .*k.ptx is no .npy file"),
    ("buffers.x.dtype", "float16", "holds float32, and 'dtype' is float16"),
    ("buffers.x.shape", [3, 3], "has 40 elements, and 'shape' is"),
    ("buffers.x", {}, "buffer x: a buffer has 'dtype' and 'shape', a 'file', or 'values'"),
    ("variables.nothing", {"values": [1]}, "no variable 'nothing'; it has: factor"),
    ("variables.factor", {"values": [1]}, "variable factor has 8 bytes, and 4 are given"),
    ("expect.nothing", {"values": [1]}, "no buffer 'nothing'"),
    ("expect.x", {"values": [1]}, "the expected x has 1 elements, and 'shape' is"),
    ("arch", "sm_90a", "'arch', 'defines' and 'include' are for a FILE.cu"),
    ("launches.0.entry", ..., "say which 'entry' of k.ptx is meant; it has: scale, twice"),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG, ids=[f"{path} {words[:30]}" for path, _, words in WRONG])
def test_wrong_files_are_refused_in_one_sentence(tmp_path: Path, path: str, value: Any, words: str) -> None:
    facts = change(case(tmp_path), path, value)
    path_of_file = written(tmp_path, facts)
    with pytest.raises(UserError, match=words) as caught:
        sanitize_case(read_case(tmp_path / "k.ptx", path_of_file), LOCKSTEP)
    assert "\n" not in str(caught.value)
