"""The hopper_fp8 kernel: its declared numerics on every shape and knob, its softmax beside its products, its bars."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from checking import assert_computes, assert_gate, judged, run

from sdpalab import sim
from sdpalab.build import Build, BuildError, build
from sdpalab.build.sass import Instruction, disassemble, main_loop, parse
from sdpalab.inputs import make_inputs
from sdpalab.judge.log_sum_exp import log_sum_exp_float64, measure_lse
from sdpalab.judge.reference import attention_float64
from sdpalab.judge.rule import measure
from sdpalab.judge.verdict import Status
from sdpalab.kernels.hopper_fp8 import HOPPER_FP8, KNOBS, SCALE_ROWS, block_rows, smem_bytes
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.plan import INCLUDE_DIR
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.run.sanitize import ASYNC_MODES, SCHEDULES

ARCH = HOPPER_FP8.default_arch
WIDE = HOPPER_FP8.default_config.but(BLOCK_M=128)
SMALL = WIDE.but(BLOCK_M=64, BLOCK_N=64)
RAGGED = Problem(1, 2, 150, 64, kv_heads=1, seq_kv=333, causal=True)

SHAPES = [
    Problem(1, 1, 1, 64),
    Problem(1, 1, 33, 64, seq_kv=1),
    Problem(1, 1, 129, 64, seq_kv=128),
    Problem(2, 4, 40, 64, kv_heads=2, seq_kv=17, causal=True),
    Problem(1, 2, 300, 64, kv_heads=1, seq_kv=130, causal=True),
    Problem(1, 1, 65, 128, seq_kv=300),
    Problem(1, 1, 200, 128, seq_kv=310, causal=True),
    Problem(1, 1, 70, 64, dtype="bfloat16"),
    Problem(1, 1, 90, 64, scale=-0.3, causal=True),
    Problem(1, 1, 90, 64, scale=0.0, causal=True),
    Problem(1, 1, 40, 64, scale=3.0),
]
CODES = [
    (Problem(1, 8, 512, 64), WIDE),
    (Problem(1, 8, 512, 64, causal=True), SMALL),
    (Problem(1, 8, 512, 64, causal=True, dtype="bfloat16"), WIDE.but(BLOCK_N=64)),
    (Problem(1, 8, 512, 128), SMALL),
    (Problem(1, 8, 512, 128, causal=True), WIDE),
]


def built(problem: Problem, config: Config = WIDE) -> Build:
    step = HOPPER_FP8.launch_plan(problem, config).launches[-1]
    assert step.module is not None
    return build(step.module, ARCH)


def label(value: object) -> str:
    return str(getattr(value, "label", value))


@pytest.mark.parametrize("problem", SHAPES, ids=label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(HOPPER_FP8, problem)


@pytest.mark.parametrize(
    "kind",
    ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "outlier", "negative", "equal", "huge", "tiny"],
)
def test_probes(kind: str) -> None:
    assert_computes(HOPPER_FP8, Problem(1, 1, 70, 64, seq_kv=200), SMALL, kind=kind)


@pytest.mark.parametrize(
    ("problem", "rows"),
    [
        (MISSION, 64),  # 32 blocks of 128 rows on 132 SMs
        (MISSION.with_(batch=4), 64),
        (MISSION.with_(batch=5), 128),
        (Problem(1, 8, 512, 128), 128),  # a lone consumer lacks the registers
    ],
    ids=str,
)
def test_the_rows_of_a_block_follow_the_problem(problem: Problem, rows: int) -> None:
    assert block_rows(problem, HOPPER_FP8.default_config) == rows
    assert (
        HOPPER_FP8.launch_plan(problem).launches[1]
        == (HOPPER_FP8.launch_plan(problem, WIDE.but(BLOCK_M=rows)).launches[1])
    )


@pytest.mark.parametrize(("block_m", "block_n"), list(product(KNOBS["BLOCK_M"], KNOBS["BLOCK_N"])))
def test_every_tile_is_correct(block_m: int, block_n: int) -> None:
    assert_computes(HOPPER_FP8, RAGGED, WIDE.but(BLOCK_M=block_m, BLOCK_N=block_n))


@pytest.mark.parametrize(("problem", "config"), [(RAGGED, SMALL), (Problem(1, 1, 70, 64, seq_kv=300), WIDE)], ids=label)
def test_every_order_gives_the_same_bits_and_no_hazard(problem: Problem, config: Config) -> None:
    outputs = set()
    for schedule, async_mode in product(SCHEDULES, ASYNC_MODES):
        checks = (*sim.CHECKS, "strict")
        result = run(HOPPER_FP8, problem, config, schedule=schedule, async_mode=async_mode, checks=checks)
        assert result.hazards == (), f"{schedule}, {async_mode}"
        outputs.add(result.outputs["o"].tobytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("problem", [RAGGED, Problem(1, 1, 70, 128, scale=-2.0)], ids=label)
def test_log_sum_exp(problem: Problem) -> None:
    inputs = vars(make_inputs(problem))
    without = SimulatedExecutor(ARCH).run(HOPPER_FP8.launch_plan(problem), inputs)
    result = SimulatedExecutor(ARCH).run(HOPPER_FP8.launch_plan(problem, lse=True), inputs)
    numerics = HOPPER_FP8.numerics
    limits = log_sum_exp_float64(**inputs, scale=problem.scale, causal=problem.causal, numerics=numerics)
    errors = measure_lse(result.outputs["lse"], *limits)
    assert errors.not_finite == 0
    assert errors.error < min(errors.limit, 1e-5)  # the simulator adds in float32
    assert np.array_equal(result.outputs["o"], without.outputs["o"])
    assert result.ptx_sha256 == without.ptx_sha256
    assert not result.hazards


@pytest.mark.parametrize("scale", [0.125, -0.125, 3.0e37, 1e-44])
def test_no_scale_is_too_large_or_too_small(scale: float) -> None:
    # All keys but one of a row's score 1e11 less than it, times the scale; masked keys are minus infinity.
    problem = Problem(1, 1, 64, 64, seq_kv=130, scale=scale, causal=True)
    draw = np.random.default_rng(7)
    chosen = draw.integers(0, np.arange(problem.seq_q) + 1)
    sign = draw.choice([-1.0, 1.0], (problem.seq_kv, problem.head_dim))
    k = (sign * 50000).astype(np.float16)[None, None]
    q = (np.sign(scale) * sign[chosen] * 60000).astype(np.float16)[None, None]
    v = draw.choice([-448.0, -2.0, 1.0, 3.5, 448.0], problem.kv_shape).astype(np.float16)
    v[..., 0] = 448.0  # in each block: V is e4m3 as it is
    result = SimulatedExecutor(ARCH).run(HOPPER_FP8.launch_plan(problem), {"q": q, "k": k, "v": v})
    assert not result.hazards
    rows = v[0, 0].astype(np.float64)
    average = np.cumsum(rows, axis=0)[:64] / np.arange(1, 65)[:, None]
    expected = rows[chosen] if abs(scale) > 1e-40 else average  # all visible keys weigh the same
    np.testing.assert_allclose(result.outputs["o"][0, 0], expected, rtol=2e-3, atol=1e-3)


def test_nothing_past_the_end_of_a_head_is_used_or_written() -> None:
    # Tiles reach past the end of the first head, into the second's, which is NaN.
    problem = Problem(1, 2, 37, 64, seq_kv=141)
    inputs = vars(make_inputs(problem))
    executor, plan = SimulatedExecutor(ARCH), HOPPER_FP8.launch_plan(problem)
    clean = executor.run(plan, inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = executor.run(plan, inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


def test_a_blocks_scale_of_v_is_its_own() -> None:
    # Blocks of V differ by 2^20, and the first rows see nothing of the large one.
    problem = Problem(1, 1, 256, 64, causal=True)
    inputs = make_inputs(problem)
    inputs.v[:, :, 128:] *= np.float16(2.0**10)
    inputs.v[:, :, :128] *= np.float16(2.0**-10)
    result = SimulatedExecutor(ARCH).run(HOPPER_FP8.launch_plan(problem), vars(inputs))
    reference = attention_float64(**vars(inputs), scale=problem.scale, causal=True)
    errors = measure(result.outputs["o"][:, :, :128], reference[:, :, :128], problem.dtype)
    assert errors.rel_l2 < 0.1


@pytest.mark.parametrize(
    ("kind", "file", "old", "new"),
    [
        (
            "normal",
            "quantise.cuh",
            "const QuantisePatch<RowOrder::mma> patch",
            "const QuantisePatch<RowOrder::natural> patch",
        ),
        (
            "reverse_ramp",
            "fp8.cuh",
            "offset = fmaf(tile_max - row.max, scale_log2, WEIGHT_EXPONENT)",
            "offset = WEIGHT_EXPONENT",
        ),
        ("large_logits", "warpgroup_fp8.cuh", "o_frag[i] * factor)", "o_frag[i])"),
        (
            "normal",
            "hopper_fp8.cu",
            "accumulate_tile(o_frag, product, v_scale,",
            "accumulate_tile(o_frag, product, scale.y,",
        ),
        ("normal", "hopper_fp8.cu", "scale = scales[scale_block(tile)];", "scale = scales[0];"),
    ],
    ids=[
        "keys in their own order",
        "no maximum but the tile's",
        "no rescale",
        "the next tile's V",
        "scales of the first",
    ],
)
def test_what_the_numbers_rest_on(kind: str, file: str, old: str, new: str, tmp_path: Path) -> None:
    assert isinstance(HOPPER_FP8.source, Path)
    problem = Problem(1, 1, 64, 64, seq_kv=300)
    inputs = make_inputs(problem, kind)
    inputs.v[:, :, 128:] *= 10
    for path in (HOPPER_FP8.source, *INCLUDE_DIR.glob("*.cuh")):
        text = path.read_text()
        if path.name == file:
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / path.name).write_text(text)
    planted = replace(HOPPER_FP8, source=tmp_path / "hopper_fp8.cu")
    right, wrong = (
        SimulatedExecutor(ARCH, checks=()).run(kernel.launch_plan(problem, SMALL), vars(inputs))
        for kernel in (HOPPER_FP8, planted)
    )
    reference = attention_float64(**vars(inputs), scale=problem.scale, causal=False)
    good, bad = (measure(found.outputs["o"], reference, "float16") for found in (right, wrong))
    assert good.rel_l2 < 0.1
    assert bad.not_finite or bad.rel_l2 > 3 * good.rel_l2


def test_what_is_declared_is_what_the_judge_holds_it_to() -> None:
    problem = Problem(1, 1, 100, 64, seq_kv=400)
    result = run(HOPPER_FP8, problem)
    assert judged(HOPPER_FP8, problem, result).status is Status.PASSED
    finer = replace(HOPPER_FP8, numerics=replace(HOPPER_FP8.numerics, quantised=None))
    assert judged(finer, problem, result).status is Status.INCORRECT


@pytest.mark.parametrize(("problem", "config"), CODES, ids=label)
def test_static_gate(problem: Problem, config: Config) -> None:
    assert_gate(HOPPER_FP8, problem, config, ARCH)
    # C7510 and the like: ptxas found registers of a product in use, and lets products wait for each other.
    log = built(problem, config).log
    assert "serialized" not in log
    assert "injected" not in log


@pytest.mark.parametrize(("problem", "config"), CODES, ids=label)
def test_the_softmax_is_computed_beside_the_product(problem: Problem, config: Config) -> None:
    # A turn issues all products, waits for the scores, computes the weights, and only then waits for the product with
    # V. ptxas moves the last wait up if nothing stops it.
    made = built(problem, config)
    order = [event for event in map(_event, main_loop(parse(disassemble(made))[made.entry])) if event]
    keys, head_dim = config.int("BLOCK_N"), problem.head_dim
    weights = ["exp"] * (keys // 2 + 2)
    turn = [*["issue"] * (head_dim // 32 + keys // 32), "pass", "wait 1", *weights, "wait 0"]
    if config.int("BLOCK_M") > 64:
        turn.insert(0, "turn")
    else:
        turn.remove("pass")
    assert order == turn


def _event(instruction: Instruction) -> str:
    if instruction.opcode == "WARPGROUP.DEPBAR.LE":
        return f"wait {int(instruction.operands.rpartition(',')[2], 16)}"
    names = {"QGMMA": "issue", "BAR.SYNC": "turn", "BAR.ARV": "pass", "MUFU.EX2": "exp"}
    return next((name for opcode, name in names.items() if instruction.opcode.startswith(opcode)), "")


@pytest.mark.parametrize(("problem", "config"), CODES, ids=label)
def test_hoppers_own_instructions_are_in_the_sass(problem: Problem, config: Config) -> None:
    made = built(problem, config)
    count = Counter(instruction.base for instruction in parse(disassemble(made))[made.entry])
    # The first scores, and in the loop; the output in the loop, and behind it.
    assert count["QGMMA"] == 2 * problem.head_dim // 32 + 2 * config.int("BLOCK_N") // 32
    assert count["UTMALDG"] == config.int("BLOCK_M") // 64 + 2
    assert count["UTMASTG"] == 1
    assert count["STSM"] == problem.head_dim // 16
    assert count["USETMAXREG"] == 2
    assert count["LDG"] == 3  # the scale of Q, and the first scales of K and V; those of a tile
    assert not {"HGMMA", "STS", "LDS", "LDSM", "LDL", "STL"} & set(count)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_algorithm_is_in_the_ptx(head_dim: int) -> None:
    ptx = built(Problem(1, 1, 64, head_dim)).ptx.decode()
    shapes = Counter(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m64n\d+k32)\.f32\.e4m3\.e4m3", ptx))
    scores, output = 2 * head_dim // 32, 2 * SCALE_ROWS // 32
    assert shapes == (
        {"m64n128k32": scores, "m64n64k32": output} if head_dim == 64 else {"m64n128k32": scores + output}
    )
    assert ptx.count("wgmma.fence") == 3
    assert ptx.count("wgmma.commit_group") == 4
    assert ptx.count("cvt.rn.satfinite.e4m3x2.f32") == 2 * SCALE_ROWS // 4  # the first tile's weights, and in the loop
    assert ptx.count("setmaxnreg.dec") == ptx.count("setmaxnreg.inc") == 1
    assert ptx.count("fence.proxy.async.shared::cta") == 1
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|shfl\.sync\.idx", ptx)


@pytest.mark.parametrize(("head_dim", "config"), [(64, WIDE), (128, WIDE), (64, SMALL)], ids=str)
def test_everything_is_read_once_a_block_and_without_a_bank_conflict(head_dim: int, config: Config) -> None:
    problem = Problem(1, 1, 128, head_dim, seq_kv=256)
    counted = []

    def note(_: Build, report: sim.Report) -> None:
        counted.append(report.counters)

    run(HOPPER_FP8, problem, config, counters=True, on_launch=note)
    counters = counted[-1]
    assert counters is not None
    blocks = problem.seq_q // config.int("BLOCK_M")
    read, written = problem.seq_q + 2 * blocks * problem.seq_kv, 2 * problem.seq_q
    assert counters.total("sectors", "async") == (read + written) * head_dim // 32
    assert counters.tensor_flops == problem.flops
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")


def test_the_plan_quantises_first() -> None:
    quantise, attention = HOPPER_FP8.launch_plan(MISSION).launches
    assert quantise.entry == f"quantise_blocks<{SCALE_ROWS}>"
    assert attention.entry == ""
    assert attention.grid == (8, 8, 1)
    assert attention.dynamic_smem == smem_bytes(MISSION, HOPPER_FP8.default_config)


@pytest.mark.parametrize(
    ("head_dim", "changes", "reason", "message"),
    [
        (64, {"BLOCK_M": 32}, "BLOCK_M must be one of 0, 64, 128, not 32", "BLOCK_M is 64 or 128"),
        (64, {"BLOCK_N": 96}, "BLOCK_N must be one of 64, 128, not 96", "BLOCK_N is 64 or 128"),
        (64, {"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
        (
            128,
            {"BLOCK_M": 64},
            "take 208 registers for accumulators and weights, and with BLOCK_M=64 a thread has 200 for them",
            "leave a consumer registers for the rest",
        ),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused_here_and_in_the_source(
    head_dim: int, changes: dict[str, int], reason: str, message: str
) -> None:
    problem = Problem(1, 1, 64, head_dim)
    with pytest.raises(UnsupportedProblem) as refused:
        HOPPER_FP8.launch_plan(problem, WIDE.but(**changes))
    assert reason in str(refused.value)
    with pytest.raises(BuildError) as failed:
        build(HOPPER_FP8.module(problem, WIDE.but(**changes)), ARCH)
    assert message in f"{failed.value} {failed.value.log}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 32), "kernel hopper_fp8 supports head_dim 64 or 128, not 32"),
        (Problem(1, 1, 8, 64, scale=-3e38), "scale=-3e+38 does not fit"),
        (Problem(1, 70000, 8, 64), "at most 65535, not 70000"),
        (Problem(1, 30000, 8, 64), "heads + 2 * kv_heads in one grid, of at most 65535, not 90000"),
    ],
    ids=["head_dim", "scale", "heads", "lines"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(HOPPER_FP8.reject_reason(problem))


def test_it_is_built_for_hopper_alone() -> None:
    assert ARCH == "sm_90a"
    assert "only sm_90a has" in str(HOPPER_FP8.arch_reason("sm_100"))


def test_the_search_space_is_what_fits() -> None:
    assert len(list(HOPPER_FP8.space(MISSION))) == 18
    assert len(list(HOPPER_FP8.space(MISSION.with_(head_dim=128)))) == 15


@pytest.mark.parametrize("config", [WIDE, SMALL], ids=str)
def test_smem_bytes_is_what_the_kernel_touches(config: Config) -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=128)
    assert not run(HOPPER_FP8, problem, config).hazards
    assert any("out-of-bounds" in hazard for hazard in run(HOPPER_FP8, problem, config, less_smem=16).hazards)
