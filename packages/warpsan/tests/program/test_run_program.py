"""Unmodified programs: results, hazards of device and host with their lines, and one sentence for bad input."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from programs import HERE, KERNELS, compile_program, fat_binary, lz4_literals, ptx_of

import warpsan
from warpsan.cli import main
from warpsan.errors import MachineError, UserError
from warpsan.gpus import GPUS
from warpsan.program import ProgramOutcome, RunOptions, run_program
from warpsan.program.arguments import described_argument, element_types
from warpsan.program.properties import device_properties, properties_of
from warpsan.program.state import Allocation
from warpsan.ptx.ir import Param
from warpsan.ptx.types import TYPES

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

Runner = Callable[..., ProgramOutcome]


@pytest.fixture(scope="module")
def ptx() -> bytes:
    return ptx_of()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("program"))


@pytest.fixture
def sentences() -> list[str]:
    return []


@pytest.fixture
def run(
    program: Path, ptx: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: list[str]
) -> Iterator[Runner]:
    """Run the program in a mode; default fat binary: the kernels."""
    (tmp_path / "kernels.cu").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)  # folder of the kernels' sources

    def runner(mode: str, binary: bytes | None = None, **options: object) -> ProgramOutcome:
        (tmp_path / "fat").write_bytes(binary or fat_binary((1, 89, ptx)))
        monkeypatch.setenv("FAT_BINARY", str(tmp_path / "fat"))
        return run_program([str(program), mode], RunOptions(report=sentences.append, memory=1 << 30, **options))

    return runner


def line_of(text: str, source: str = "program.c") -> str:
    """``file:line`` of the only line that contains a text."""
    lines = (HERE / source).read_text() if source == "program.c" else KERNELS
    (number,) = [number for number, line in enumerate(lines.splitlines(), 1) if text in line]
    return f"{source}:{number}"


@pytest.mark.parametrize("mode", ["simple", "streams", "rows", "managed", "managed variable", "pinned", "callback"])
def test_a_program_gets_its_results(run: Runner, capfd: pytest.CaptureFixture[str], mode: str) -> None:
    outcome = run(mode)
    assert capfd.readouterr().out == "right\n"
    assert outcome.clean, outcome.hazards
    assert outcome.gpu == "L4 (sm_89)"


def test_launches_have_the_thorough_checks() -> None:
    assert "lanes" in RunOptions().of_launch["checks"]
    assert {"strict", "provenance"} <= set(RunOptions(strict=True).of_launch["checks"])


def test_what_nobody_has_written_is_poison_or_zeros(run: Runner) -> None:
    outcome = run("unwritten")
    assert (outcome.exit_code, outcome.hazards) == (3, ())
    assert any("--fill zeros" in note for note in outcome.notes)
    assert run("unwritten", fill="zeros").clean


def test_printf_comes_when_the_host_waits(run: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("hello").clean
    assert capfd.readouterr().out == "after the launch\na kernel prints 1000\nafter the wait\n"


@pytest.mark.parametrize(
    ("mode", "kind", "here", "other"),
    [
        ("race", "race", ("part[255 - threadIdx.x];", "kernels.cu"), ("part[threadIdx.x] = x", "kernels.cu")),
        ("beyond", "out-of-bounds", ("x[i] *= factor", "kernels.cu"), None),
        ("stream", "race", ("waits for the default stream alone",), ("x[i] *= factor", "kernels.cu")),
        ("managed early", "race", ("the host reads managed memory",), ("x[i] *= factor", "kernels.cu")),
        ("pinned early", "race", ("if (x[i] != by",), ("the copy back",)),
        ("copy", "out-of-bounds", ('MODE("copy")',), None),
        ("freed", "out-of-bounds", ("x[i] *= factor", "kernels.cu"), None),
        ("dereference", "out-of-bounds", ('MODE("dereference")',), None),
        ("no memset", "uninitialised", ("x[i] *= factor", "kernels.cu"), ("x[i] *= factor", "kernels.cu")),
        ("copy of nothing", "uninitialised", ("x[i] *= factor", "kernels.cu"), ("x[i] *= factor", "kernels.cu")),
    ],
)
def test_a_planted_bug_is_found_with_its_lines(
    run: Runner, mode: str, kind: str, here: tuple[str, ...], other: tuple[str, ...] | None
) -> None:
    outcome = run(mode)
    assert not outcome.clean
    (group,) = outcome.hazards
    assert group.kind == kind
    assert group.here.place == line_of(*here)
    assert (group.other.place if group.other else None) == (line_of(*other) if other else None)


def test_memory_is_named_by_the_call_that_allocated_it(run: Runner) -> None:
    (group,) = run("beyond").hazards
    assert f"at byte 4000 of the memory from cudaMalloc at {line_of('the array of the program')}" in group.message
    (group,) = run("no memset").hazards
    assert f"at byte 0 of the memory from cudaMalloc at {line_of('not cleared')} are read before" in group.message
    assert run("memset").clean


@pytest.mark.parametrize(
    ("mode", "printed", "sentence"),
    [
        ("graph", "operation not supported", r"cudaGraphCreate \(at program.c:\d+\) is not modelled"),
        ("block", "invalid configuration argument", "cudaLaunchKernel at program.c:.*: block.x must be 1 to 1024"),
        ("shared", "1 0 0", "60000 bytes of dynamic shared memory, and 49152 are allowed"),
        ("copy", "cudaErrorInvalidValue", ""),
        ("assert", "cudaErrorAssert\ncudaErrorAssert", ""),
        ("device", "1 8 58", ""),
    ],
)
def test_what_calls_return(
    run: Runner, sentences: list[str], capfd: pytest.CaptureFixture[str], mode: str, printed: str, sentence: str
) -> None:
    outcome = run(mode)
    assert capfd.readouterr().out == printed + "\n"
    assert re.search(sentence, "".join(sentences)) if sentence else not sentences
    assert outcome.problems == tuple(sentences)


def test_a_failed_assertion_is_a_hazard(run: Runner) -> None:
    (group,) = run("assert").hazards
    assert group.kind == "trap"
    assert "Assertion" in group.message or "assert" in group.message


def test_the_exit_code_is_the_programs(run: Runner) -> None:
    outcome = run("exit")
    assert outcome.exit_code == 7
    assert not outcome.clean


def test_compressed_ptx_is_read(run: Runner, ptx: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    text = ptx + b"\n"
    binary = fat_binary((1, 89, lz4_literals(text)), flags=0x2011, size=len(text))
    assert run("simple", binary).clean
    assert capfd.readouterr().out == "right\n"


def test_the_newest_ptx_that_the_gpu_runs_is_taken(run: Runner, ptx: bytes) -> None:
    newer = ptx.replace(b".target sm_89", b".target sm_90a")
    outcome = run("device", fat_binary((1, 89, ptx), (1, 90, newer)))
    assert outcome.gpu == "H200 (sm_90)"
    chosen = run("simple", fat_binary((1, 89, ptx), (1, 90, newer)), gpu=GPUS["L4"], arch="sm_89")
    assert chosen.clean
    assert chosen.gpu == "L4 (sm_89)"


def test_without_ptx_the_run_says_so(run: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run("simple", fat_binary((2, 89, b"\x7fELF")))
    assert "no kernel image is available" in capfd.readouterr().out
    assert outcome.fatal == (
        "the program has no PTX that runs on sm_89 (module 1 has machine code for sm_89): "
        "compile it with nvcc -gencode arch=compute_89,code=compute_89"
    )


def test_device_code_that_was_linked_is_refused(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINKED", "1")
    assert run("simple", fat_binary()).fatal.startswith(
        "the program's device code was linked (nvcc -rdc=true or -dlto), which leaves no PTX of a whole kernel: compile"
    )


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did not end within 0\.2 s"):
        run_program(["sleep", "60"], RunOptions(seconds=0.2))


def test_a_program_without_cuda_is_refused() -> None:
    with pytest.raises(UserError, match="true made no call of the CUDA runtime"):
        run_program(["true"])


def test_a_static_program_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text('__attribute__((section(".nv_fatbin"))) int code = 1;\nint main(void) { return code - 1; }\n')
    with pytest.raises(UserError, match=r"linked with the static CUDA runtime.* nvcc -cudart shared"):
        run_program([str(compile_program(tmp_path, source, "static"))])


def test_without_a_compiler_the_feature_says_so(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(MachineError, match=r"there is no C compiler \(no-such-compiler\)"):
        run_program([str(program)])


def test_the_command(
    program: Path, ptx: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fat").write_bytes(fat_binary((1, 89, ptx)))
    monkeypatch.setenv("FAT_BINARY", str(tmp_path / "fat"))
    assert main(["run", "--json", str(tmp_path / "d.json"), str(program), "simple", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert out == "right\n"
    assert "clean: no hazard in 1 launch on a simulated L4 (sm_89)" in err
    assert main(["run", str(program), "race"]) == 1
    assert "HAZARDS: 1 hazard" in capfd.readouterr().err
    assert main(["run", str(tmp_path / "nothing")]) == 2
    assert "there is no program" in capfd.readouterr().err


@pytest.fixture
def captured(program: Path, ptx: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Capture the program in a mode; returns the PTX file beside its launch file."""
    (tmp_path / "fat").write_bytes(fat_binary((1, 89, ptx)))
    monkeypatch.setenv("FAT_BINARY", str(tmp_path / "fat"))

    def capturer(mode: str, *options: str, code: int = 0) -> Path:
        assert main(["capture", "-o", str(tmp_path / "case"), *options, str(program), mode]) == code
        return tmp_path / "case" / "program.ptx"

    return capturer


def test_a_captured_launch_file_replays(captured: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    path = captured("simple")
    launches = json.loads(path.with_suffix(".json").read_text())
    (launch,) = launches["launches"]
    array = line_of("the array of the program")
    assert launch["args"] == [array, 1000]
    assert launch["set"] == {"factor": {"dtype": "uint8", "file": "variable-factor-launch-1.npy"}}
    assert list(launches["expect"]) == [array]
    assert main(["sanitize", str(path), "--schedule", "forward"]) == 0
    assert "clean" in capfd.readouterr().out
    changed = np.load(path.parent / "buffer-1.npy")
    changed[7] += 1
    np.save(path.parent / "buffer-1.npy", changed)
    assert main(["sanitize", str(path), "--schedule", "forward"]) == 1
    assert "1 of 4000 elements are not as expected; the worst is [7]" in capfd.readouterr().out


def test_memory_that_nobody_has_written_is_captured(captured: Callable[..., Path]) -> None:
    path = captured("no memset", code=1)
    buffers = json.loads(path.with_suffix(".json").read_text())["buffers"].values()
    assert [buffer.get("init") for buffer in buffers] == [None, "poison"]
    assert main(["sanitize", str(path), "--schedule", "forward"]) == 1


def test_streams_and_events_are_captured(captured: Callable[..., Path]) -> None:
    path = captured("streams")
    first, second = json.loads(path.with_suffix(".json").read_text())["launches"]
    assert (first["stream"], "after" in first) == ("stream 1", False)
    assert (second["stream"], second["after"]) == ("stream 2", ["stream 1"])
    assert main(["sanitize", str(path), "--schedule", "forward"]) == 0


def test_only_some_launches_are_captured(captured: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    captured("streams", "--most", "1")
    assert "1 launches are left out" in capfd.readouterr().err
    captured("simple", "--kernel", "nothing")
    assert "there was no launch to capture" in capfd.readouterr().err


def test_the_types_of_arguments_are_those_of_the_name() -> None:
    name = "void scale<float, 4>(float*, __half const*, std::pair<int, float*>, unsigned int, int)"
    assert element_types(name, 5) == ["float32", "float16", "uint8", "=uint32", "=int32"]
    assert element_types("scale", 2) == ["uint8", "uint8"]


def test_addresses_and_maps_in_a_structure_are_named() -> None:
    gpu = warpsan.Device()
    x = gpu.array(np.zeros((8, 64), np.float16))
    tensor_map = warpsan.TensorMap(x, (4, 16), "32B")
    raw = bytearray(256)
    raw[8:16] = (x.address + 6).to_bytes(8, "little")
    raw[128:256] = tensor_map.descriptor(x.address)
    param = Param("p", TYPES["b8"], 256, 0)
    allocation = Allocation(x, "device", "x")
    argument = described_argument(param, bytes(raw), "uint8", lambda address: allocation, {x.address: "x"})
    assert argument["struct"]["items"] == {
        "8": {"buffer": "x", "offset": 6},
        "128": {
            "map": {
                "buffer": "x",
                "box": [4, 16],
                "swizzle": "32B",
                "shape": [8, 64],
                "strides": [128, 2],
                "element_strides": [1, 1],
                "oob_fill": "zero",
                "dtype": "float16",
            }
        },
    }


@pytest.mark.parametrize(("version", "size"), [("11", 728), ("12", 1032), ("13", 1008)])
def test_device_properties_have_the_size_of_the_structure(version: str, size: int) -> None:
    data = properties_of(device_properties(GPUS["H200"], "sm_90", 1 << 34), version)
    assert len(data) == size
    assert data.startswith(b"NVIDIA H200 (simulated by warpsan)\0")
