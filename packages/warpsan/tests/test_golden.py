"""Golden vectors recorded on GPUs: the simulator agrees as well as at the time of the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpsan
from golden import Job, compare, make_record, read_golden, stored_float
from warpsan.ptx.types import TYPES

EVIDENCE = Path(__file__).resolve().parents[3] / "evidence"
FILES = sorted(EVIDENCE.rglob("golden.jsonl"))
PARTS = 8

SCALE = """.version 8.0
.target sm_80
.address_size 64
.entry scale(.param .u64 x, .param .u64 y, .param .f32 factor)
{
.reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .f32 %f<3>;
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.f32 %f1, [factor];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
ld.global.f32 %f2, [%rd1]; mul.rn.f32 %f2, %f2, %f1; st.global.f32 [%rd2], %f2;
ret;
}
"""


def disagreement(record: dict[str, Any], job: Job, golden: list[np.ndarray]) -> str:
    """Increase of the simulator's distance from the GPU's result over the record, as text; empty without one."""
    args, arrays = job.arguments()
    warpsan.launch(job.ptx, job.entry, job.grid, job.block, args, cluster=job.cluster, dynamic_smem=job.dynamic_smem)
    now = compare(golden, arrays, stored_float(job.ptx, job.entry))
    if now["equal"]:
        return ""
    if record["equal"]:
        return f"{record['test']}: {now['different_bytes']} bytes are no longer those of the GPU"
    before = record["worst_ulp"]
    if before is not None and (now["worst_ulp"] is None or now["worst_ulp"] > before):
        return f"{record['test']}: {now['worst_ulp']} ulp from the GPU, and {before} when it was recorded"
    return ""


NONE = pytest.param(
    *(None, 0),
    marks=pytest.mark.skip(reason="no golden vectors recorded yet: pytest packages/warpsan/tests --replay-on-gpu DIR"),
    id="none",
)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        pytest.param(path, part, id=f"{path.parent.relative_to(EVIDENCE)}-{part}")
        for path in FILES
        for part in range(PARTS)
    ]
    or [NONE],
)
def test_golden_vectors_of_a_gpu(path: Path, part: int) -> None:
    vectors = list(read_golden(path))[part::PARTS]
    assert vectors, f"{path} holds too few launches to be worth keeping"
    worse = [text for text in (disagreement(*vector) for vector in vectors) if text]
    assert not worse, "\n".join(worse)


def _job() -> Job:
    x = np.linspace(-1, 1, 32, dtype=np.float32)
    args = ({"array": 0}, {"array": 1}, {"value": 0.1})
    return Job(SCALE, "scale", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (x, np.zeros(32, np.float32)), args)


def _file(path: Path, golden: np.ndarray) -> Path:
    """A file with one record, in which a GPU returned ``golden`` for the launch's second buffer."""
    job = _job()
    args, arrays = job.arguments()
    warpsan.launch(job.ptx, job.entry, job.grid, job.block, args)
    record = make_record("this test", job, arrays, [job.arrays[0], golden], None)
    path.write_text(json.dumps({"gpu": "none"}) + "\n" + json.dumps(record) + "\n")
    return path


def _product() -> np.ndarray:
    return np.linspace(-1, 1, 32, dtype=np.float32) * np.float32(0.1)


def test_a_record_gives_back_the_launch_and_its_result(tmp_path: Path) -> None:
    ((record, job, golden),) = read_golden(_file(tmp_path / "golden.jsonl", _product()))
    assert job.digest == _job().digest
    assert (record["equal"], record["worst_ulp"], record["float_type"]) == (True, 0, "f32")
    assert "mul.rn.f32" in record["opcodes"]
    np.testing.assert_array_equal(golden[1], _product())
    assert disagreement(record, job, golden) == ""


def test_a_result_that_moves_away_from_the_gpus_is_found(tmp_path: Path) -> None:
    off = np.nextafter(_product(), np.float32(9))
    ((record, job, golden),) = read_golden(_file(tmp_path / "golden.jsonl", off))
    assert (record["equal"], record["worst_ulp"]) == (False, 1)
    assert disagreement(record, job, golden) == ""
    assert disagreement({**record, "equal": True}, job, golden).endswith("are no longer those of the GPU")
    further = [golden[0], np.nextafter(golden[1], np.float32(9))]
    assert disagreement(record, job, further) == "this test: 2 ulp from the GPU, and 1 when it was recorded"


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_a_record_that_was_altered_is_refused(tmp_path: Path, what: str) -> None:
    path = _file(tmp_path / "golden.jsonl", _product())
    header, line = path.read_text().splitlines()
    record = json.loads(line)
    data = record["data"]
    data["inputs"][0], data["outputs"]["1"] = (
        (data["outputs"]["1"], data["outputs"]["1"]) if what == "inputs" else (data["inputs"][0],) * 2
    )
    path.write_text(header + "\n" + json.dumps(record) + "\n")
    with pytest.raises(ValueError, match="not the one of its digest"):
        list(read_golden(path))


@pytest.mark.parametrize(
    ("dtype", "one", "other", "worst"),
    [
        ("f4", [0.0, 1.0], [-0.0, 1.0], 0),
        ("f4", [1.0], [np.nextafter(np.float32(1), np.float32(2))], 1),
        ("f4", [-1e-45], [1e-45], 2),
        ("f2", [np.nan], [np.nan], 0),
        ("f2", [np.nan], [1.0], None),
        ("f8", [-np.inf], [np.finfo("f8").min], 1),
    ],
)
def test_ulps(dtype: str, one: list[float], other: list[float], worst: int | None) -> None:
    arrays = [np.array(values, dtype) for values in (one, other)]
    arrays[1].view(f"i{arrays[1].itemsize}")[np.isnan(arrays[1])] ^= 1  # another NaN
    kind = TYPES[f"f{8 * arrays[0].itemsize}"]
    assert compare(arrays[:1], arrays[1:], kind)["worst_ulp"] == worst


def test_the_stores_say_which_float_they_store() -> None:
    assert stored_float(SCALE, "scale") == TYPES["f32"]
    bits = stored_float(SCALE.replace("st.global.f32", "st.global.b32"), "scale")
    assert bits == TYPES["f32"]
    integers = SCALE.replace("st.global.f32 [%rd2], %f2", "st.global.u32 [%rd2], %r1")
    assert stored_float(integers, "scale") is None
    both = SCALE.replace("st.global.f32", "st.global.u32 [%rd1], %r1; st.global.f32")
    assert stored_float(both, "scale") is None
