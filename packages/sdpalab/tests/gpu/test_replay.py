"""The replay's bookkeeping, which needs no GPU: the simulator's own results stand where a GPU's would."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay import PER_TEST, Replay, job_of, summary
from replay_process import GpuProcess

import warpsan
from golden import Job, allowed, read_golden, read_records
from sdpalab.errors import MachineError
from sdpalab.run import gpu_problem

COPY = """.version 8.0
.target sm_80
.address_size 64
.entry copy(.param .u64 x, .param .u64 y, .param .u32 n)
{
.reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p;
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r2, [n];
mov.u32 %r1, %tid.x; setp.ge.u32 %p, %r1, %r2; @%p ret;
mul.wide.u32 %rd3, %r1, 4; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;
ret;
}
"""
TAKES_AN_ADDRESS = ".version 8.0\n.target sm_80\n.address_size 64\n.entry takes(.param .u64 p) { ret; }"
HEADER = {"gpu": "a stand-in"}


class StandIn:
    """Replacement of a GPU: keeps the launches, and returns configured answers."""

    def __init__(self, error: str | None = None) -> None:
        self.jobs: list[Job] = []
        self.error = error

    def __call__(self, job: Job) -> tuple[list[np.ndarray] | None, str | None]:
        self.jobs.append(job)
        x, y = (array.copy() for array in job.arrays)
        y[:4] = x[:4]
        return (None, self.error) if self.error else ([x, y], None)


def launch(replay: Replay, first: int = 1, **options: Any) -> np.ndarray:
    y = np.zeros(32, np.uint32)
    replay.launch(COPY, "copy", 1, 32, [np.arange(first, first + 32, dtype=np.uint32), y, 4], **options)
    return y


def test_a_clean_launch_is_repeated_with_the_buffers_from_before(tmp_path: Path) -> None:
    gpu = StandIn()
    y = launch(Replay(tmp_path, gpu, HEADER))
    assert y.tolist() == [1, 2, 3, 4] + 28 * [0]
    (job,) = gpu.jobs
    assert not job.arrays[1].any()
    assert (job.args, job.grid, job.block) == (({"array": 0}, {"array": 1}, {"value": 4}), (1, 1, 1), (32, 1, 1))
    header, record = read_records(tmp_path / "golden.jsonl")
    assert header == HEADER
    assert (record["equal"], record["error"], record["args"]) == (True, None, list(job.args))
    ((_, read, golden),) = read_golden(tmp_path / "golden.jsonl")
    assert read.digest == job.digest
    np.testing.assert_array_equal(golden[1], y)


def test_other_bits_are_recorded_as_such(tmp_path: Path) -> None:
    replay = Replay(tmp_path, lambda job: ([job.arrays[0], job.arrays[1]], None), HEADER)
    launch(replay)
    (record,) = read_records(replay.path)[1:]
    assert (record["equal"], record["different_bytes"], record["worst_ulp"]) == (False, 4, None)


def test_what_is_repeated_once_only_and_what_never(tmp_path: Path) -> None:
    gpu = StandIn()
    replay = Replay(tmp_path, gpu, HEADER)
    launch(replay)
    launch(replay, schedule="reverse")
    assert len(gpu.jobs) == 1
    launch(replay, checks=("race",))
    launch(replay, first=5, checks=())
    shared = np.zeros(4, np.uint32)
    replay.launch(COPY, "copy", 1, 32, [np.arange(4, dtype=np.uint32), shared, 32])  # out of bounds
    fields = np.zeros((), [("pointer", np.uint64)])
    for value in (
        [shared],
        warpsan.Struct(bytes(8), {0: shared}),
        warpsan.Pointer(warpsan.Struct(bytes(8), {0: shared})),
        fields,
    ):
        replay.launch(TAKES_AN_ADDRESS, "takes", 1, 1, [value])
    assert len(gpu.jobs) == 1
    for first in range(2, PER_TEST + 10):
        launch(replay, first=first)
    assert len(gpu.jobs) == PER_TEST
    again = Replay(tmp_path, gpu, HEADER)
    launch(again)
    assert len(gpu.jobs) == PER_TEST
    launch(again, first=1000)
    assert len(gpu.jobs) == PER_TEST + 1


def test_a_file_that_a_crash_cut_off_is_taken_up(tmp_path: Path) -> None:
    launch(Replay(tmp_path, StandIn(), HEADER))
    path = tmp_path / "golden.jsonl"
    path.write_text(path.read_text() + '{"test": "cut o')
    launch(Replay(tmp_path, StandIn(), HEADER), first=2)
    assert len(read_records(path)) == 3


def test_records_of_two_gpus_are_not_mixed(tmp_path: Path) -> None:
    Replay(tmp_path, StandIn(), HEADER)
    with pytest.raises(pytest.UsageError, match="was recorded on"):
        Replay(tmp_path, StandIn(), {"gpu": "another"})


def test_the_table_names_what_did_not_agree(tmp_path: Path) -> None:
    launch(Replay(tmp_path, StandIn(), HEADER))
    replay = Replay(tmp_path, StandIn("MachineError: GPU 0 cannot load (ptxas)"), HEADER)
    launch(replay, first=2)
    launch(replay, first=3)
    records = read_records(replay.path)
    first, second = summary(records)
    assert first.startswith("1 of 3 launches equal bit for bit, with ")
    test = records[1]["test"].partition("[")[0]
    assert second == f"    2  {test}: MachineError: GPU 0 cannot load"


@pytest.mark.parametrize(
    ("ulps", "words"), [(None, "other bits"), (0, "only other NaNs or signs of zero"), (3, "up to 3 ulp")]
)
def test_the_table_says_how_far_apart_results_are(ulps: int | None, words: str) -> None:
    record = {"test": "t.py::t[1]", "equal": False, "error": None, "worst_ulp": ulps, "float_type": None}
    record["opcodes"] = ["ex2.approx.f32"]
    records = [HEADER, *({**record, "digest": digest} for digest in "ab")]
    assert summary(records)[1:] == [f"    2  t.py::t: {words}"]
    for each in records[1:]:
        each["opcodes"] = ["add.u32"]
    assert summary(records)[1:] == [f"    2  t.py::t: {words}, which its instructions do not allow"]


@pytest.mark.parametrize(
    ("opcode", "ulps", "may"),
    [
        ("add.rn.f32", 1, False),
        ("ex2.approx.ftz.f32", 64, True),
        ("ex2.approx.ftz.f32", 65, False),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 10**6, True),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", None, False),
    ],
)
def test_what_may_differ_is_what_instructions_leave_open(opcode: str, ulps: int | None, may: bool) -> None:
    record = {"error": None, "equal": False, "worst_ulp": ulps, "float_type": "f32", "opcodes": ["ld.f32", opcode]}
    assert allowed(record) == may
    assert allowed({**record, "equal": True})
    assert not allowed({**record, "error": "it hung"})


def test_a_launch_that_had_an_error_is_repeated_and_the_last_record_counts(tmp_path: Path) -> None:
    launch(Replay(tmp_path, StandIn("the process died"), HEADER))
    again = StandIn()
    launch(Replay(tmp_path, again, HEADER))
    assert len(again.jobs) == 1
    assert summary(read_records(tmp_path / "golden.jsonl"))[0].startswith("1 of 1 launches equal")


def test_a_tensor_map_is_made_again_as_it_was() -> None:
    array = np.zeros((40, 64), np.float16)
    options = {"element_strides": (2, 1), "oob_fill": "nan", "shape": (30, 64), "strides": (128, 2)}
    given = warpsan.TensorMap(array, (16, 32), "64B", **options)
    job, _ = job_of(COPY, "copy", 1, (32, 2), [given, array, np.uint32(3)], [array, array, 3], {"cluster": (2, 1, 1)})
    tensor_map = job.arguments()[0][0]
    for name in ("tiling", "offset"):
        assert getattr(tensor_map, name) == getattr(given, name), name
    assert (len(job.arrays), job.block, job.cluster) == (1, (32, 2, 1), (2, 1, 1))
    assert job.args[1:] == ({"array": 0}, {"value": 3})


@pytest.mark.skipif(not gpu_problem(), reason="there is a GPU")
def test_the_process_says_that_there_is_no_gpu() -> None:
    with pytest.raises(MachineError, match="did not start: no GPU: "):
        GpuProcess()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param((), "no GPU", marks=pytest.mark.skipif(not gpu_problem(), reason="there is a GPU")),
        pytest.param(
            ("-n", "2"),
            "--replay-on-gpu takes one process: leave out -n",
            marks=pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist"),
        ),
    ],
)
def test_the_option_is_refused_in_one_sentence(root: Path, tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    test = "packages/warpsan/tests/test_video.py"
    command = [sys.executable, "-m", "pytest", test, "--replay-on-gpu", str(tmp_path / "out")]
    done = subprocess.run([*command, *more], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = done.stderr.strip().splitlines()
    assert words in line
    assert not (tmp_path / "out").exists()
