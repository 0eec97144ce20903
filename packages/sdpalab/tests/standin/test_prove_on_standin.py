"""``prove``, ``explain`` and the op on the stand-in GPU: our kernel is what runs where records allow it, else torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from standin_gpu import HERE, ROOT, StandIn, complaints, prepended

from certificate_sample import stored_times
from sdpalab.bugs import replace_once
from sdpalab.evidence.store.record import keep
from sdpalab.installation import IMPORT_FOLDERS
from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 48, 32)
SHAPE = "1,1,48,32"
DRIVER = "CUDA 13.0"
FASTER, SLOWER = [0.5] * 20, [1.5] * 20

CALL = """
import json, sys, torch, sdpalab
generator = torch.Generator().manual_seed(5)
q, k, v = (torch.randn(1, 1, 48, 32, generator=generator).half() for _ in "qkv")
told = sdpalab.explain(q, k, v)
out = sdpalab.scaled_dot_product_attention(q, k, v)
exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
print(json.dumps({"kernel": told.kernel, "reason": told.reason, "error": float((out - exact).abs().max())}))
"""

OTHER_DRIVER = "import sdpalab.run.driver_version as module\nmodule.driver_version = lambda: 'CUDA 12.9'\n"

CAPTURED = """
import json, torch, sdpalab
from sdpalab.run import torch_gpu
from sdpalab.run.gpu_driver import gpu_device
q = k = v = torch.ones(1, 1, 48, 32).half()
torch_gpu.capturing = lambda: True
try:
    sdpalab.scaled_dot_product_attention(q, k, v)
except sdpalab.UserError as error:
    print(error)
torch_gpu.capturing = lambda: False
print(sdpalab.prepare(q, k, v).kernel)
torch_gpu.capturing = lambda: True
gpu_device().driver.cuDeviceGetCount()  # a mark in the log
print(float(sdpalab.scaled_dot_product_attention(q, k, v).sum()))
"""

RELOADED = """
import shutil, sys, torch, sdpalab
q = torch.ones(1, 1, 48, 32).half()
print(sdpalab.explain(q, q, q).kernel)
shutil.copytree(sys.argv[1], sys.argv[2])
print(sdpalab.explain(q, q, q).kernel)
sdpalab.reload_proofs()
print(sdpalab.explain(q, q, q).kernel)
"""


@pytest.fixture(scope="module")
def judged(standin_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with what ``prove`` keeps of ``flash`` on an L4."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "gpu").mkdir()
    gpu = StandIn(standin_library, folder / "gpu", gpu="l4")
    result = folder / "result.json"
    done = gpu.cli("prove", "flash", "--shape", SHAPE, "--json", result, SDPALAB_DATA_DIR=str(folder / "data"))
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("judging flash: ") for line in done.stderr.splitlines())
    assert "PASSED: flash, " in done.stdout
    assert "on NVIDIA L4" in done.stdout
    report = json.loads(result.read_text())
    (attempt,) = report["attempts"]
    assert (attempt["status"], report["machine"]["gpu"], report["machine"]["driver"]) == ("PASSED", "NVIDIA L4", DRIVER)
    assert Path(attempt["record"]).parent == folder / "data" / "proofs" / "l4"
    (choice,) = report["choices"]
    assert choice["kernel"] is None
    assert choice["reason"].endswith(f"run: sdpalab prove --shape {SHAPE} --time")
    return folder / "data"


@pytest.fixture
def l4(standin: StandIn) -> StandIn:
    standin.configure(gpu="l4")
    return standin


def timed(judged: Path, folder: Path, ratios: list[float]) -> Path:
    """A copy of the data folder, with a comparison beside the verdict."""
    data = folder / "data"
    shutil.copytree(judged, data)
    record = stored_times(ratios, problem=PROBLEM, driver=DRIVER, torch=torch.__version__)
    keep(record, "times", data / "proofs")
    return data


def call(gpu: StandIn, data: Path, *, before: str = "", **env: str) -> dict[str, Any]:
    """One call of the op in a process of its own, what explain says of it, and how often our kernel was launched."""
    gpu.clear_log()
    done = gpu.run(before + CALL, SDPALAB_DATA_DIR=str(data), **env)
    assert (done.returncode, done.stderr) == (0, "")
    reply: dict[str, Any] = json.loads(done.stdout)
    assert reply["error"] < 2e-3
    return {**reply, "launches": sum("flash" in entry["launch"] for entry in gpu.launches())}


@pytest.mark.slow
def test_without_a_proof_it_is_torch(l4: StandIn, tmp_path: Path) -> None:
    answer = call(l4, tmp_path / "data")
    assert (answer["kernel"], answer["launches"]) == (None, 0)
    assert answer["reason"] == f"no kernel is proven on NVIDIA L4; run: sdpalab prove --shape {SHAPE} --time"


def test_with_a_proof_and_a_comparison_our_kernel_is_what_runs(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    answer = call(l4, timed(judged, tmp_path, FASTER))
    assert (answer["kernel"], answer["launches"]) == ("flash", 1)
    assert "flash is proven for 1x1x48x32 on NVIDIA L4 by " in answer["reason"]
    assert "and takes 0.50x torch's eager time" in answer["reason"]


STRIDED = """
import json, torch, sdpalab
generator = torch.Generator().manual_seed(5)
k, v = (torch.randn(1, 1, 48, 32, generator=generator).half() for _ in "kv")
wide = torch.randn(1, 48, 2, 32, generator=generator).half()
q = wide.transpose(1, 2)[:, :1]  # as a model's query: rows of the heads side by side
assert not q.is_contiguous() and q.stride(-1) == 1
with sdpalab.no_fallback():
    out = sdpalab.scaled_dot_product_attention(query=q, key=k, value=v)
exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
why = sdpalab.explain(q, k, v)
elsewhere = sdpalab.explain(q, k, v, gpu="L4")
print(json.dumps([why.kernel, why.reason, why.copied_bytes, float((out - exact).abs().max()), elsewhere.reason]))
"""


@pytest.mark.slow
def test_a_strided_query_is_copied_and_the_kernel_runs(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    l4.clear_log()
    done = l4.run(STRIDED, SDPALAB_DATA_DIR=str(timed(judged, tmp_path, FASTER)))
    assert (done.returncode, done.stderr) == (0, "")
    kernel, reason, bytes_, error, elsewhere = json.loads(done.stdout)
    assert (kernel, bytes_) == ("flash", 48 * 32 * 2)
    assert error < 2e-3
    assert reason.endswith("a copy of query comes first (3072 bytes), which the comparison does not count")
    assert elsewhere == reason
    assert sum("flash" in entry["launch"] for entry in l4.launches()) == 1


@pytest.mark.slow
def test_without_a_comparison_it_is_torch(l4: StandIn, judged: Path) -> None:
    answer = call(l4, judged)
    assert (answer["kernel"], answer["launches"]) == (None, 0)
    assert "no measured comparison with torch" in answer["reason"]


@pytest.mark.slow
def test_with_a_comparison_that_says_slower_it_is_torch(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    answer = call(l4, timed(judged, tmp_path, SLOWER))
    assert (answer["kernel"], answer["launches"]) == (None, 0)
    assert "flash takes 1.50x torch's eager time" in answer["reason"]


@pytest.mark.slow
def test_with_another_driver_it_is_torch(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    answer = call(l4, timed(judged, tmp_path, FASTER), before=OTHER_DRIVER)
    assert (answer["kernel"], answer["launches"]) == (None, 0)
    assert f"are from driver {DRIVER}, and this one is CUDA 12.9" in answer["reason"]


@pytest.mark.slow
def test_a_comment_in_the_source_changes_nothing(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    commented = with_source(tmp_path, "// flash: FlashAttention-2", "// a line more\n// flash: FlashAttention-2")
    answer = call(l4, timed(judged, tmp_path, FASTER), **commented)
    assert (answer["kernel"], answer["launches"]) == ("flash", 1)


@pytest.mark.slow
def test_after_the_source_changed_it_is_torch(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    changed = with_source(tmp_path, "lse, scale)", "lse, 1.1f * scale)")
    answer = call(l4, timed(judged, tmp_path, FASTER), **changed)
    assert (answer["kernel"], answer["launches"]) == (None, 0)
    assert "the code of flash is no longer what " in answer["reason"]
    assert "the kernel or its compiler was changed since; run: sdpalab prove" in answer["reason"]


def with_source(folder: Path, old: str, new: str) -> dict[str, str]:
    """The environment of a process with a copy of the lab whose ``flash.cu`` is another."""
    package = folder / "src" / "sdpalab"
    shutil.copytree(
        ROOT / "packages" / "sdpalab" / "src" / "sdpalab",
        package,
        ignore=shutil.ignore_patterns("__pycache__", "shipped"),
    )
    path = package / "kernels" / "flash.cu"
    path.write_text(replace_once(path.read_text(), (old, new)))
    return {"PYTHONPATH": prepended("PYTHONPATH", HERE, folder / "src", *map(Path, IMPORT_FOLDERS))}


@pytest.mark.slow
def test_a_first_call_within_a_capture_says_what_to_do_and_a_prepared_one_waits_for_nothing(
    l4: StandIn, judged: Path, tmp_path: Path
) -> None:
    done = l4.run(CAPTURED, SDPALAB_DATA_DIR=str(timed(judged, tmp_path, FASTER)))
    assert (done.returncode, done.stderr) == (0, "")
    refusal, prepared, total = done.stdout.splitlines()
    assert refusal == (
        "the first call with these shapes prepares flash, which cannot be done while a CUDA graph is captured: call it "
        "once before, on this thread, or sdpalab.prepare(q, k, v, ...)"
    )
    assert (prepared, float(total)) == ("flash", 48 * 32)
    names = [entry.get("call") for entry in l4.log()]
    after = set(filter(None, names[len(names) - names[::-1].index("cuDeviceGetCount") :]))
    assert "cuLaunchKernelEx" in after
    assert not any("Synchronize" in name or "Mem" in name or "Module" in name for name in after)


@pytest.mark.slow
def test_a_process_reads_new_records_on_request(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    records = timed(judged, tmp_path, FASTER)
    target = tmp_path / "later"
    done = l4.process(sys.executable, "-c", RELOADED, str(records), str(target), SDPALAB_DATA_DIR=str(target))
    assert (done.stderr, done.stdout.split()) == ("", ["None", "None", "flash"])


@pytest.mark.slow
def test_a_damaged_record_is_a_warning_and_no_failure(l4: StandIn, judged: Path, tmp_path: Path) -> None:
    data = timed(judged, tmp_path, FASTER)
    (data / "proofs" / "l4" / "half.json").write_text('{"record": "kept", "gpu')
    done = l4.run(CALL, SDPALAB_DATA_DIR=str(data))
    assert done.returncode == 0
    assert json.loads(done.stdout)["kernel"] == "flash"
    assert "half.json is not a valid record and is ignored" in done.stderr


@pytest.mark.slow
def test_what_is_too_slow_to_be_timed_is_torch_and_the_reason_is_kept(l4: StandIn, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shape = ("--shape", "1,1,16,32")
    done = l4.cli("prove", "scalar", *shape, "--time", "--seconds", "0.01", SDPALAB_DATA_DIR=str(data))
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    records = sorted(path.name.partition("-")[0] for path in (data / "proofs" / "l4").iterdir())
    assert records == ["scalar", "times"]
    (times,) = (data / "proofs" / "l4").glob("times-*.json")
    bench = json.loads(times.read_text())["bench"]
    assert [result["inputs"] for result in bench["results"]] == ["normal", "ramp", "negative"]
    assert {row["subject"] for row in bench["worst"]} == {"torch", "scalar", "empty kernel"}
    assert "scaled_dot_product_attention runs torch: scalar is proven for 1x1x16x32" in done.stdout
    assert "has no time of scalar: LEFT OUT: a sample of it takes" in done.stdout


@pytest.mark.slow
def test_two_processes_prove_at_once(l4: StandIn, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sdpalab", "prove", "scalar", "--shape", "1,1,16,32"]
    env = l4.env(SDPALAB_DATA_DIR=str(tmp_path / "data"))
    both = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]
    assert len(list((tmp_path / "data" / "proofs" / "l4").glob("scalar-*.json"))) == 2


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_one_sentence_before_anything_is_judged(l4: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = l4.cli("prove", "flash", "--shape", SHAPE, SDPALAB_DATA_DIR=str(tmp_path / "file" / "data"))
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert "records cannot be kept in " in line
    assert "SDPALAB_DATA_DIR names another data folder" in line
    assert l4.launches() == []


@pytest.mark.slow
def test_a_kernel_that_this_gpu_does_not_run_is_bad_input(l4: StandIn, tmp_path: Path) -> None:
    done = l4.cli("prove", "hopper", "--shape", SHAPE, SDPALAB_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "hopper" in line
    assert "sm_90a" in line


@pytest.mark.slow
def test_gradients_are_proven_and_timed(l4: StandIn, tmp_path: Path) -> None:
    """The record covers the backward problem, and its times are those of torch's backward pass and the kernel."""
    data, result = tmp_path / "data", tmp_path / "prove.json"
    words = ("prove", "flash_backward", "--task", "backward", "--shape", "1,1,64,64", "--time", "--seconds", "10")
    done = l4.cli(*words, "--json", result, SDPALAB_DATA_DIR=str(data), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    (attempt,) = json.loads(result.read_text())["attempts"]
    assert (attempt["kernel"], attempt["status"]) == ("flash_backward", "PASSED")
    (times,) = data.rglob("times*.json")
    results = json.loads(times.read_text())["bench"]["results"]
    assert {each["problem"]["task"] for each in results} == {"backward"}
    for each in results:
        named = {measurement["name"]: measurement["status"] for measurement in each["measurements"]}
        assert named["torch"] == named["flash_backward"] == "MEASURED"
