"""Kernels of another compiler: Triton's attention on the simulator, against float64, without a hazard.

Layouts, swizzles and waits are Triton's own, so that the simulator's reading of the PTX manual does not rest on this
project's kernels alone. `evidence/campaigns/triton-f06a221.json` has the whole table of configurations.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="needs the extra: pip install 'sdpalab[triton]'")

from triton_attention import KERNEL

from sdpalab import Problem
from sdpalab.compile import Build, build, completed
from sdpalab.inputs import make_inputs
from sdpalab.inputs.reference import attention_float64
from sdpalab.kernels.plan import LaunchPlan
from sdpalab.run import SimulatedExecutor
from warpsan import Report, launch

LIMIT = {"float16": 5e-4, "bfloat16": 4e-3}
"""Relative L2 error against float64: twice what P and O rounded to the problem's type cost."""

# arch, dtype, head_dim, causal, (seq_q, seq_kv, heads, kv_heads), (BLOCK_M, BLOCK_N, num_warps, num_stages)
CONFIGURATIONS = [
    ("sm_80", "float16", 64, False, (100, 100, 2, 2), (64, 32, 4, 2)),
    ("sm_80", "bfloat16", 64, True, (141, 141, 2, 2), (64, 64, 4, 3)),
    ("sm_80", "float16", 16, True, (77, 77, 1, 1), (32, 32, 2, 1)),
    ("sm_80", "bfloat16", 128, False, (65, 97, 1, 1), (64, 32, 8, 2)),
    ("sm_89", "float16", 64, True, (160, 160, 2, 1), (128, 32, 8, 3)),
    ("sm_89", "float16", 32, False, (33, 150, 2, 2), (32, 64, 2, 2)),
    ("sm_89", "float16", 128, True, (129, 129, 1, 1), (64, 64, 4, 2)),
    ("sm_89", "bfloat16", 16, False, (100, 100, 2, 2), (64, 32, 4, 3)),
    ("sm_89", "bfloat16", 32, True, (90, 40, 2, 2), (64, 32, 2, 3)),
    ("sm_89", "bfloat16", 128, True, (141, 141, 1, 1), (128, 32, 8, 2)),
    ("sm_89", "float16", 64, False, (1, 1, 1, 1), (64, 64, 4, 1)),
    ("sm_90", "float16", 64, True, (100, 100, 1, 1), (32, 32, 2, 2)),
    ("sm_90", "bfloat16", 128, False, (77, 77, 1, 1), (64, 64, 4, 1)),
]

HOPPER = [
    ("float16", 64, False, (141, 141, 1, 1), (64, 32, 4, 3)),
    ("float16", 32, True, (150, 150, 2, 1), (128, 64, 8, 2)),
    ("bfloat16", 16, False, (100, 77, 1, 1), (64, 64, 4, 2)),
    ("bfloat16", 128, True, (141, 141, 1, 1), (128, 32, 8, 3)),
]
"""Warpgroups whose operands come by cp.async."""


def _plan(
    dtype: str, dim: int, causal: bool, sizes: tuple[int, int, int, int], tiles: tuple[int, int, int, int]
) -> tuple[Problem, LaunchPlan]:
    seq_q, seq_kv, heads, kv_heads = sizes
    problem = Problem(1, heads, seq_q, dim, seq_kv=seq_kv, kv_heads=kv_heads, dtype=dtype, causal=causal)
    knobs = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), tiles, strict=True))
    return problem, KERNEL.launch_plan(problem, KERNEL.default_config.but(**knobs))


def _relative_error(problem: Problem, out: np.ndarray, inputs: Any) -> float:
    reference = attention_float64(inputs.q, inputs.k, inputs.v, scale=problem.scale, causal=problem.causal)
    return float(np.linalg.norm(out.astype(np.float64) - reference) / np.linalg.norm(reference))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("arch", "dtype", "dim", "causal", "sizes", "tiles"),
    CONFIGURATIONS,
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_right_and_without_a_hazard(
    arch: str,
    dtype: str,
    dim: int,
    causal: bool,
    sizes: tuple[int, int, int, int],
    tiles: tuple[int, int, int, int],
) -> None:
    problem, plan = _plan(dtype, dim, causal, sizes, tiles)
    inputs = make_inputs(problem)
    result = SimulatedExecutor(arch).run(plan, {"q": inputs.q, "k": inputs.k, "v": inputs.v})
    assert result.hazards == ()
    assert result.changed_inputs == ()
    assert _relative_error(problem, result.outputs["o"], inputs) < LIMIT[dtype]


PIPELINED = ("float16", 64, True, (141, 141, 1, 1), (64, 32, 4, 3))


@pytest.fixture(scope="module")
def pipelined() -> tuple[Problem, LaunchPlan, Build]:
    problem, plan = _plan(*PIPELINED)
    module = plan.steps[0].module
    assert module is not None
    return problem, plan, build(module, "sm_89")


def test_it_is_the_code_that_a_gpu_would_run(pipelined: tuple[Problem, LaunchPlan, Build]) -> None:
    ptx = pipelined[2].ptx.decode()
    for opcode in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4.trans", "cp.async.cg", "shfl.sync.bfly"):
        assert opcode in ptx


@pytest.mark.sample(2)
@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
@pytest.mark.parametrize("async_mode", ["late", "early"])
def test_every_order_gives_the_same_bits(
    pipelined: tuple[Problem, LaunchPlan, Build], schedule: str, async_mode: str
) -> None:
    problem, plan, _ = pipelined
    inputs = make_inputs(problem)
    arrays = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    usual = SimulatedExecutor().run(plan, arrays)
    result = SimulatedExecutor(schedule=schedule, async_mode=async_mode).run(plan, arrays)
    assert result.hazards == ()
    np.testing.assert_array_equal(result.outputs["o"], usual.outputs["o"])


def _launched(problem: Problem, plan: LaunchPlan, built: Build, ptx: str, **modes: str) -> tuple[Report, float]:
    """One launch of ``ptx`` in place of the build's own, on fresh buffers: the report, and the error of the output."""
    inputs = make_inputs(problem)
    buffers = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    buffers = {name: array.copy() for name, array in buffers.items()} | {"o": np.zeros_like(inputs.q)}
    step = completed(plan.steps[0], built)
    args = [buffers[value] if isinstance(value, str) else value for value in step.args]
    report = launch(ptx, built.entry, step.grid, step.block, args, dynamic_smem=step.dynamic_smem, **modes)
    return report, _relative_error(problem, buffers["o"], inputs)


@pytest.mark.parametrize("instruction", ["bar.sync", "cp.async.wait_group"])
def test_a_lost_synchronisation_in_the_loop_is_found(
    pipelined: tuple[Problem, LaunchPlan, Build], instruction: str
) -> None:
    """No hazard in the code as it is means something only if there is one in the same code when it is spoilt."""
    lines = pipelined[2].ptx.decode().splitlines()
    head = next(number for number, line in enumerate(lines) if "mma.sync" in line)
    before = [number for number, line in enumerate(lines) if re.match(rf"\s*{re.escape(instruction)}\b", line)]
    spoilt = max(number for number in before if number < head)
    lines[spoilt] = ""
    report, _ = _launched(*pipelined, "\n".join(lines))
    assert report.hazards
    assert all(hazard.source.startswith("triton_attention.py:") for hazard in report.hazards)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("dtype", "dim", "causal", "sizes", "tiles"),
    HOPPER,
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_wgmma_is_right_and_needs_its_proxy_fence(
    dtype: str, dim: int, causal: bool, sizes: tuple[int, int, int, int], tiles: tuple[int, int, int, int]
) -> None:
    """wgmma reads in the async proxy what cp.async wrote in the generic one.

    Triton 3.6 puts no fence.proxy.async between the two: a defect, which its pull request 9610 mends (10537 for 3.7),
    after outputs had differed from run to run where a later Triton's code was denser (pytorch issue 181248, on a B200).
    Where the fence is missing the simulator says so, and of nothing else; with the fence it has nothing to say.
    """
    problem, plan = _plan(dtype, dim, causal, sizes, tiles)
    module = plan.steps[0].module
    assert module is not None
    built = build(module, "sm_90")
    ptx = built.ptx.decode()
    between = re.findall(r"cp\.async\.wait_group(.*?)wgmma\.mma_async", ptx, re.DOTALL)
    assert between, "the operands come by cp.async"
    missing = any("fence.proxy.async" not in text for text in between)

    report, error = _launched(problem, plan, built, ptx)
    assert error < LIMIT[dtype]
    assert {hazard.kind for hazard in report.hazards} == ({"proxy"} if missing else set())
    for hazard in report.hazards:
        assert "wrote in the generic proxy" in hazard.message
        assert "cp.async" in hazard.message
        assert "wgmma.mma_async" in hazard.message

    fenced = re.sub(r"(cp\.async\.wait_group\s+\d+;\n)", r"\1fence.proxy.async.shared::cta;\n", ptx)
    for modes in ({}, {"schedule": "reverse", "async_mode": "early"}):
        report, error = _launched(problem, plan, built, fenced, **modes)
        assert report.hazards == []
        assert error < LIMIT[dtype]


def test_bfloat16_is_not_float16() -> None:
    """The same arguments in the other type are another signature, and so another build."""
    plans = [_plan(dtype, 64, False, (32, 32, 1, 1), (32, 32, 2, 1))[1] for dtype in LIMIT]
    modules = [plan.steps[0].module for plan in plans]
    texts = [build(module).ptx.decode() for module in modules if module is not None]
    assert ["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text for text in texts] == [False, True]
    assert plans[1].buffer("o").dtype == np.dtype(ml_dtypes.bfloat16).name


def test_the_committed_sweep_is_clean_in_every_configuration() -> None:
    paths = (Path(__file__).resolve().parents[4] / "evidence" / "campaigns").glob("triton-*.json")
    record = max((json.loads(path.read_text()) for path in paths), key=lambda each: str(each["when"]))
    rows = record["rows"]
    for key, values in (
        ("arch", {"sm_80", "sm_89", "sm_90"}),
        ("dtype", {"float16", "bfloat16"}),
        ("head_dim", {16, 32, 64, 128}),
        ("causal", {False, True}),
    ):
        assert {row[key] for row in rows} == values
    assert {row["knobs"].rpartition("num_warps=")[2] for row in rows} == {"2", "4", "8"}
    assert all(not row["hazards"] and row["error"] <= LIMIT[row["dtype"]] for row in rows)
    assert len(rows) == record["totals"]["clean"] == 432
