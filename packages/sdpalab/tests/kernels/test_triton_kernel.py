"""Triton kernels through the lab: what the plan holds, how they are built and cached, what is refused and how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs the extra: pip install 'sdpalab[triton]'")

import sdpalab
from sdpalab.bugs import replace_once
from sdpalab.compile import Build, BuildError, build, completed, resources
from sdpalab.errors import MachineError, UserError
from sdpalab.evidence import built_module
from sdpalab.inputs import make_inputs
from sdpalab.judge.sanitize import sanitize_kernel, small_problems
from sdpalab.kernels.kernel import CudaKernel, Kernel, UnsupportedProblem
from sdpalab.kernels.plan import TritonModule
from sdpalab.kernels.triton_kernel import TritonKernel
from sdpalab.kernels.userfile import load_user_kernel
from sdpalab.problem import DTYPES, Problem
from sdpalab.run import SimulatedExecutor
from warpsan.build.triton_compiler import TritonProgram, _version, ptxas_version
from warpsan.sanitize.sanitizer import Modes

SHIPPED = Path(__file__).parent.parent / "sim" / "triton_attention.py"
PROBLEM = Problem(1, 1, 4, 16)

MINE = """\
import triton
import triton.language as tl

from sdpalab import TritonKernel


@triton.jit
def doubled(x):
    return x * 2.0


@triton.jit
def scaled(q_ptr, o_ptr, count, factor, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, SHIFT: tl.constexpr = 0):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(q_ptr + places, mask=places < count).to(tl.float32)
    tl.store(o_ptr + places, (doubled(x) * factor + SHIFT + HEAD_DIM).to(o_ptr.dtype.element_ty), mask=places < count)


def arguments(problem, config):
    return "q", "o", problem.seq_q * problem.head_dim, 0.5


KERNEL = TritonKernel(
    name="scaled",
    fn=scaled,
    grid=lambda problem, config: (problem.seq_q * problem.head_dim // config.int("BLOCK"),),
    args=arguments,
    configs=({"BLOCK": 32, "num_warps": 1},),
)
"""
"""Q + 16 for head_dim 16, through a function that the kernel calls."""

Write = Callable[..., TritonKernel]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write MINE with one piece of its text replaced, and load its kernel as a user's."""

    def write(old: str = "", new: str = "") -> TritonKernel:
        assert old in MINE
        path = tmp_path / "mine.py"
        path.write_text(MINE.replace(old, new, 1) if old else MINE)
        kernel = load_user_kernel(f"{path}:KERNEL")
        assert isinstance(kernel, TritonKernel)
        return kernel

    return write


def module_of(kernel: TritonKernel, problem: Problem = PROBLEM, **knobs: int) -> TritonModule:
    module = kernel.launch_plan(problem, kernel.default_config.but(**knobs)).steps[0].module
    assert isinstance(module, TritonModule)
    return module


def built(kernel: TritonKernel, arch: str = "sm_89", problem: Problem = PROBLEM, **knobs: int) -> Build:
    return build(module_of(kernel, problem, **knobs), arch)


def test_both_kinds_are_kernels() -> None:
    assert issubclass(TritonKernel, Kernel)
    assert issubclass(CudaKernel, Kernel)


def test_plan_takes_types_from_the_arguments(write: Write) -> None:
    kernel = write()
    plan = kernel.launch_plan(PROBLEM.with_(dtype="bfloat16"))
    (step,) = plan.steps
    assert (step.grid, step.block, step.args) == ((2, 1, 1), (32, 1, 1), ("q", "o", 64, 0.5))
    module = step.module
    assert isinstance(module, TritonModule)
    types = ("*bf16", "*bf16", "i32", "fp32", "constexpr", "constexpr", "constexpr")
    assert tuple(module.signature.values()) == types
    assert module.constants == {"BLOCK": 32, "HEAD_DIM": 16, "SHIFT": 0}
    assert module.options == {"num_warps": 1}
    assert (module.name, module.source, module.entry) == ("mine.py", MINE, "scaled")


def test_integers_that_need_64_bits(write: Write) -> None:
    kernel = write("problem.seq_q * problem.head_dim, 0.5", "2**31, 0.5")
    assert module_of(kernel).signature["count"] == "i64"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_a_problem_has_a_name_in_triton(write: Write, dtype: str) -> None:
    assert module_of(write(), PROBLEM.with_(dtype=dtype)).signature["q_ptr"].startswith("*")


def test_it_runs_through_its_plan(write: Write) -> None:
    inputs = make_inputs(PROBLEM)
    result = SimulatedExecutor().run(write().launch_plan(PROBLEM), {"q": inputs.q, "k": inputs.k, "v": inputs.v})
    expected = (inputs.q.astype(np.float32) + np.float32(16)).astype(np.float16)
    np.testing.assert_array_equal(result.outputs["o"], expected)
    assert result.hazards == ()


def test_the_build_completes_the_launch(write: Write) -> None:
    """Shared memory and scratch parameters are known to the compiler only; the resources count them."""
    shipped = load_user_kernel(f"{SHIPPED}:KERNEL")
    assert isinstance(shipped, TritonKernel)
    problem = Problem(1, 1, 64, 64)
    step = shipped.launch_plan(problem).steps[0]
    compiled = built(shipped, problem=problem)
    done = completed(step, compiled)
    stages, tile_bytes = 2, 32 * 64 * 2
    assert done.dynamic_smem == stages * 2 * tile_bytes
    assert done.args == (*step.args, 0, 0)
    assert done.block == (128, 1, 1)
    used = resources(compiled, step)
    assert (used.shared_bytes, used.threads_per_block) == (done.dynamic_smem, 128)
    assert used.sass["HMMA"] > 0
    assert f"Used {used.registers} registers" in compiled.log


def test_cuda_launches_are_complete_already(write: Write) -> None:
    compiled = built(write())
    launch = write().launch_plan(PROBLEM).steps[0]
    assert completed(launch, Build(**{**vars(compiled), "triton": {}})) is launch


@pytest.mark.parametrize(("arch", "target"), [("sm_80", "sm_80"), ("sm_89", "sm_89"), ("sm_90", "sm_90a")])
def test_it_is_compiled_for_the_architecture_that_is_named(write: Write, arch: str, target: str) -> None:
    compiled = built(write(), arch)
    assert f".target {target}\n" in compiled.ptx.decode()
    assert compiled.compiler.startswith("Triton 3.")
    assert "num_warps=1" in compiled.command


def test_the_assembler_is_the_one_that_triton_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.9 takes its newer one from sm_90 on, where 3.8 takes it from sm_100 on; it writes PTX for that one."""
    from triton import knobs
    from triton.backends.nvidia import compiler

    newer = ptxas_version("sm_100")
    assert ptxas_version("sm_90") == _version(str(compiler.get_ptxas(90).path))
    monkeypatch.setattr(compiler, "get_ptxas", lambda arch: knobs.nvidia.ptxas_blackwell)
    assert ptxas_version("sm_90") == newer != _version(str(knobs.nvidia.ptxas.path))


def test_fused_multiply_adds_do_not_depend_on_the_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(write())
    for value in ("0", "1"):
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", value)
        program = TritonProgram(module, "sm_89")
        assert program.backend.parse_options(dict(program.options)).enable_fp_fusion is True


def test_no_path_of_this_machine_is_in_it(write: Write, tmp_path: Path) -> None:
    compiled = built(write())
    assert b'"/mine.py"' in compiled.ptx
    for place in (str(tmp_path), str(Path(sys.prefix))):
        assert place.encode() not in compiled.ptx + compiled.cubin
    assert str(tmp_path) not in compiled.log


def test_a_hit_compiles_nothing_and_is_the_same(
    write: Write, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    first = built(write())
    monkeypatch.setattr(triton, "compile", None)
    second = built(write())
    assert (first.cache_hit, second.cache_hit) == (False, True)
    assert (first.ptx, first.cubin, first.entry, first.triton) == (
        second.ptx,
        second.cubin,
        second.entry,
        second.triton,
    )


def test_tritons_own_cache_is_not_used(
    write: Write, tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own))
    assert not built(write()).cache_hit
    assert not own.exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [("* factor +", "* factor -"), ("x * 2.0", "x * 3.0"), ("SHIFT: tl.constexpr = 0", "SHIFT: tl.constexpr = 1")],
    ids=["kernel", "called function", "default"],
)
def test_an_edit_is_another_build(write: Write, old: str, new: str) -> None:
    assert built(write()).key != built(write(old, new)).key


def test_what_else_is_in_the_key(write: Write) -> None:
    kernel = write()
    makes = [
        built(kernel),
        built(kernel, "sm_80"),
        built(kernel, BLOCK=64),
        built(kernel, num_warps=2),
        built(kernel, problem=PROBLEM.with_(dtype="bfloat16")),
        built(kernel, problem=PROBLEM.with_(head_dim=32)),
    ]
    assert len({each.key for each in makes}) == len({each.name for each in makes}) == len(makes)


def test_lengths_are_not_in_the_key(write: Write) -> None:
    assert built(write()).key == built(write(), problem=PROBLEM.with_(seq_q=8)).key


@pytest.mark.parametrize(
    ("old", "new", "fragments"),
    [
        ("x = tl.load(q_ptr", "x = tl.lode(q_ptr", ["mine.py, line 15", "lode"]),
        (
            "return x * 2.0",
            "return x * unheard_of",
            ["a function that scaled calls", "'return x * unheard_of'", "is not defined"],
        ),
        ("places = tl.program_id(0) * BLOCK", "places = tl.arange(0, 3) * BLOCK", ["mine.py, line 14", "power of 2"]),
    ],
    ids=["no such function", "in a function called", "rule of the language"],
)
def test_source_that_does_not_compile(write: Write, old: str, new: str, fragments: list[str]) -> None:
    with pytest.raises(BuildError) as caught:
        built(write(old, new))
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "fragment"),
    [
        ("fn=scaled", "fn=arguments", "fn must be a function under @triton.jit, not the plain function arguments"),
        ("fn=scaled", "fn=triton.autotune([], [])(scaled)", "under @triton.jit, not of type Autotuner: give its .fn"),
        ('configs=({"BLOCK": 32, "num_warps": 1},)', "configs=()", "at least one configuration"),
    ],
    ids=["plain function", "autotuner", "no configuration"],
)
def test_a_kernel_that_cannot_be(write: Write, old: str, new: str, fragment: str) -> None:
    with pytest.raises(UserError) as caught:
        write(old, new)
    assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("decorator", "fn"), [("", "scaled"), ("@triton.autotune([], [])\n", "scaled.fn")], ids=["jit", "autotune"]
)
def test_a_function_without_a_launch_is_answered_with_what_to_define(tmp_path: Path, decorator: str, fn: str) -> None:
    path = tmp_path / "bare.py"
    functions = MINE.partition("\n\ndef arguments")[0]
    path.write_text(functions.replace("@triton.jit\ndef scaled", f"{decorator}@triton.jit\ndef scaled"))
    with pytest.raises(UserError, match=rf"bare\.py: scaled is a Triton function without .* with fn={fn}, its grid"):
        load_user_kernel(f"{path}:scaled")
    with pytest.raises(UserError, match=r"bare\.py: doubled is a Triton function without a launch"):
        load_user_kernel(str(path))


def test_so_is_the_object(write: Write) -> None:
    with pytest.raises(UserError, match="scaled is a Triton function without a launch"):
        sdpalab.judge(write().fn)


@pytest.mark.parametrize(
    ("old", "new", "fragment"),
    [
        ('"num_warps": 1', '"BLOK": 1', "knob BLOK is neither a constexpr parameter of scaled nor one of num_warps"),
        ("tl.constexpr = 0", "tl.constexpr", "constexpr SHIFT of scaled is given by no knob"),
        ('return "q", "o",', 'return "q",', "args gives 3 arguments, and scaled takes 4: q_ptr, o_ptr, count, factor"),
        ('return "q", "o",', 'return "q", "out",', "argument o_ptr is the buffer 'out', and there are q, k, v, o"),
        ('config.int("BLOCK"),)', 'config.int("BLOCK"), 0)', "grid gives (2, 0), not one to three positive integers"),
        ('"num_warps": 1', '"num_warps": "two"', "knob num_warps must be an integer"),
    ],
    ids=["knob", "constexpr", "arguments", "buffer", "grid", "option"],
)
def test_a_plan_that_cannot_be(write: Write, old: str, new: str, fragment: str) -> None:
    with pytest.raises(UnsupportedProblem) as caught:
        write(old, new).launch_plan(PROBLEM)
    assert fragment in str(caught.value)


def test_scratch_memory_is_refused(write: Write) -> None:
    """A tensor descriptor made in the kernel lies in global memory that Triton's launcher would bring."""
    text = "tl.make_tensor_descriptor(o_ptr, [count], [1], [BLOCK]).store([tl.program_id(0) * BLOCK], x.to(tl.float16))"
    with pytest.raises(BuildError, match=r"scaled needs \d+ bytes of scratch memory"):
        built(write("    tl.store(", f"    {text}\n    tl.store("), "sm_90")


@pytest.mark.parametrize(
    "options",
    [{"ir_override": "/x.ttir"}, {"extern_libs": "/x.bc"}, {"ptx_options": "-o /x"}, {"num_warps": "4 -o /x"}],
)
def test_an_option_that_no_kernel_may_set_is_refused(write: Write, options: dict[str, Any]) -> None:
    module = module_of(write())
    with pytest.raises(BuildError, match=rf"Triton's option {next(iter(options))}=.* is not allowed: .* num_warps, "):
        build(replace(module, options=options))


def test_number_of_warps_that_cannot_be(write: Write) -> None:
    with pytest.raises(BuildError, match="num_warps must be a power of 2"):
        built(write(), num_warps=3)


def test_without_triton_the_extra_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(write())
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MachineError, match=r"pip install 'warpsan\[triton\]'"):
        build(module)
    with pytest.raises(UserError, match=r"mine.py does not import: .*\(line 1\): pip install 'sdpalab\[triton\]'"):
        write()


@pytest.mark.slow
def test_judge_passes_a_right_one_and_not_a_wrong_one(tmp_path: Path) -> None:
    problem = Problem(1, 2, 50, 32)
    assert sdpalab.judge(f"{SHIPPED}:KERNEL", [problem]).status == "PASSED"
    wrong = tmp_path / "wrong.py"
    edit = ("running_sum = running_sum * rescale + tl.sum(p, 1)", "running_sum = running_sum + tl.sum(p, 1)")
    wrong.write_text(replace_once(SHIPPED.read_text(), edit))
    verdict = sdpalab.judge(f"{wrong}:KERNEL", [problem])
    assert verdict.status == "INCORRECT"


def test_sanitize_takes_it_like_any_other(write: Write) -> None:
    shipped = load_user_kernel(f"{SHIPPED}:KERNEL")
    assert isinstance(shipped, TritonKernel)
    assert shipped.folder == SHIPPED.parent
    problems = small_problems(shipped, shipped.default_config.but(num_stages=3))
    assert 4 * 32 in {problem.seq_kv for problem in problems}
    outcome = sanitize_kernel(shipped, problems[:1], modes=Modes(schedules=("reverse",), async_modes=("late",)))
    assert outcome.clean
    out_of_bounds = write("q_ptr + places,", "q_ptr + places + 8,")
    outcome = sanitize_kernel(out_of_bounds, [PROBLEM], modes=Modes(schedules=("lockstep",)))
    assert {(hazard.kind, hazard.source) for hazard in outcome.hazards} == {("out-of-bounds", "mine.py:15")}


def test_its_source_is_kept_as_evidence(write: Write) -> None:
    module = module_of(write())
    module_record = built_module(module, build(module))
    assert module_record.files["mine.py"] == MINE.encode()
    assert module_record.record("kernels/scaled").compiler.startswith("Triton 3.")


@pytest.mark.slow
def test_command_line_builds_and_gates_it(cli: Callable[..., object]) -> None:
    done = cli("build", SHIPPED, "--shape", "1,1,64,32", "--set", "num_stages=1")
    assert done.returncode == 0, done.stderr
    assert "gate passed" in done.stdout
    assert "Triton 3." in done.stdout
