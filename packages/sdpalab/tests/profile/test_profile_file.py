"""``sdpalab profile FILE --device sim``: a PTX or CUDA C++ file with its launch file is counted as a kernel is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.compile import build
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.plan import Launch, Module
from sdpalab.kernels.registry import get
from sdpalab.model.counted import CountedPlan, count
from sdpalab.model.counted_case import count_case
from sdpalab.problem import Problem
from warpsan.gpus import gpu_named
from warpsan.sanitize.case import case_of

PROBLEM = Problem(1, 2, 100, 64)
L4 = gpu_named("L4")


def launch_of(kernel: Kernel) -> Launch:
    (launch,) = kernel.launch_plan(PROBLEM, sms=L4.sms).launches
    return launch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wmma kernel as a user's files: its source and its PTX, each with a launch file."""
    kernel, folder = get("wmma"), tmp_path_factory.mktemp("files")
    launch, module = launch_of(kernel), launch_of(kernel).module
    assert isinstance(module, Module)
    (folder / "wmma.cu").write_text(module.source)
    (folder / "assembled.ptx").write_bytes(build(module, "sm_89").ptx)
    buffers = {each.name: {"dtype": each.dtype, "shape": each.shape} for each in kernel.launch_plan(PROBLEM).buffers}
    facts = {
        "buffers": buffers,
        "launches": [
            {
                "grid": launch.grid,
                "block": launch.block,
                "dynamic_smem": launch.dynamic_smem,
                "args": launch.args,
            }
        ],
    }
    (folder / "assembled.json").write_text(json.dumps(facts))
    facts["launches"][0]["entry"] = module.entry
    facts |= {"arch": "sm_89", "defines": dict(module.defines), "include": [str(each) for each in module.include_dirs]}
    (folder / "wmma.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="module")
def of_kernel() -> CountedPlan:
    return count(get("wmma"), PROBLEM, "sm_89", sms=L4.sms)


def test_a_cuda_file_has_the_profile_of_its_kernel(folder: Path, of_kernel: CountedPlan) -> None:
    counted = count_case(case_of(folder / "wmma.cu", None))
    assert counted.main.counters.by_instruction == of_kernel.main.counters.by_instruction
    assert counted.main.resources == of_kernel.main.resources
    assert counted.modelled(L4).microseconds == of_kernel.modelled(L4).microseconds
    assert counted.modelled(L4, cold=True).microseconds == of_kernel.modelled(L4, cold=True).microseconds


def test_ptx_is_assembled_and_counted(folder: Path, of_kernel: CountedPlan) -> None:
    counted = count_case(case_of(folder / "assembled.ptx", None))
    for figure in ("warps", "lanes", "sectors", "wavefronts"):
        assert counted.main.counters.total(figure) == of_kernel.main.counters.total(figure)
    assert counted.main.resources.sass["HMMA"] == of_kernel.main.resources.sass["HMMA"]
    assert 0.5 < counted.modelled(L4).microseconds / of_kernel.modelled(L4).microseconds < 2


def test_the_command_prints_it_and_writes_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, file = folder / "out", folder / "wmma.cu"
    assert main(["profile", str(file), "--device", "sim", "--out", str(out), "--json", str(folder / "p.json")]) == 0
    printed = capsys.readouterr().out
    assert "wmma on wmma_attention, for L4 (sm_89)" in printed
    assert "wmma.cuh:" in printed
    assert printed.rstrip().endswith("us on L4, inputs in L2; not measured")
    page = (out / "wmma-simulated.html").read_text()
    assert "wmma.cu" in page
    content = json.loads((folder / "p.json").read_text())
    assert content["kernel"] == "wmma.cu"
    assert content["launches"][0]["simulated"]["tensor_flops"] > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["wmma.cu"], "wmma.cu is profiled with --device sim"),
        (
            ["wmma.cu", "--device", "sim", "--shape", "1,1,64,64"],
            "--shape and its options, --set and --include are",
        ),
        (["wmma.cu", "--device", "sim", "--gpu", "H200"], "wmma.cu is for sm_89, and H200 is sm_90"),
        (["none.ptx", "--device", "sim"], "none.ptx cannot be read"),
        (["bare.ptx", "--device", "sim"], "bare.ptx needs a description of its launch"),
        (["untargeted.ptx", "--device", "sim", "--launch", "assembled.json"], "untargeted.ptx has no .target"),
        (["wmma", "--device", "sim", "--launch", "assembled.json"], "--launch describes the launch of a FILE.ptx"),
        (["wmma.cu", "--device", "sim", "--line", "x"], "--line takes a line's number or FILE:LINE"),
    ],
)
def test_wrong_options_are_a_sentence(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(folder)
    ptx = (folder / "assembled.ptx").read_text()
    (folder / "bare.ptx").write_text(ptx)
    (folder / "untargeted.ptx").write_text(ptx.replace(".target", "//"))
    assert main(["profile", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_launch_that_faults_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads((folder / "assembled.json").read_text())
    facts["launches"][0]["args"][0] = 64
    (folder / "fault.json").write_text(json.dumps(facts))
    file = folder / "assembled.ptx"
    assert main(["profile", str(file), "--device", "sim", "--launch", str(folder / "fault.json")]) == 2
    said = capsys.readouterr().err
    assert "assembled does not run to its end" in said
    assert "sdpalab sanitize" in said
