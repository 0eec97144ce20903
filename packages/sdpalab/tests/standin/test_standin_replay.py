"""``pytest packages/warpsan/tests --replay-on-gpu FOLDER`` on the stand-in: a sample of it, whose launches all
agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from standin_gpu import StandIn

SAMPLE = (
    "packages/warpsan/tests/test_launch.py::test_pointers_into_one_array_share_it_and_reach_all_of_it",
    "packages/warpsan/tests/test_tensor_copy.py::test_a_tensor_may_begin_inside_its_array",
    "packages/warpsan/tests/test_cluster.py",
    "packages/warpsan/tests/test_video.py::test_lanes[.add-s32.u32.s32-2-vabsdiff]",
    "packages/warpsan/tests/test_tensor_copy.py::test_boxes_of_one_to_five_axes_at_odd_places",
)


def replay(standin: StandIn, folder: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "--replay-on-gpu", str(folder))
    return standin.process(*command)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "golden.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_sample_of_the_simulators_launches_agrees(standin: StandIn, tmp_path: Path) -> None:
    done = replay(standin, tmp_path, *SAMPLE)
    assert done.returncode == 0, done.stdout[-3000:]
    header, *launches = records(tmp_path)
    assert header["gpu"] == "NVIDIA H200"
    assert len(launches) > 20
    assert [record for record in launches if record["error"] or not record["equal"]] == []
    assert any("box" in argument for record in launches for argument in record["args"]), "no tensor map was replayed"
    assert any(record["cluster"] != [1, 1, 1] for record in launches), "no cluster was replayed"
    assert len(standin.launches()) == len(launches)


@pytest.mark.slow
def test_an_error_fails_the_run_and_is_tried_again_by_the_next(standin: StandIn, tmp_path: Path) -> None:
    test = "packages/warpsan/tests/test_video.py"
    standin.fail({"function": "cuLaunchKernelEx", "nth": 2, "result": 999})
    done = replay(standin, tmp_path, test)
    assert done.returncode == 1, done.stdout[-3000:]
    assert "MachineError: GPU 0 cannot launch the launch" in done.stdout
    errors = [record["digest"] for record in records(tmp_path)[1:] if record["error"]]
    assert len(errors) == 1
    standin.configure()
    standin.clear_log()
    done = replay(standin, tmp_path, test)
    assert done.returncode == 0, done.stdout[-3000:]
    assert len(standin.launches()) == 1
    assert records(tmp_path)[-1]["digest"] == errors[0]
    assert records(tmp_path)[-1]["equal"]
