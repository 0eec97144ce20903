"""The hopper kernel: right and clean in every order, softmax beside products in its SASS, within its static bars."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from checking import assert_computes, resources_of, run

from sdpalab import sim
from sdpalab.build import Build, BuildError, build
from sdpalab.build.gate import check
from sdpalab.build.loops import reached
from sdpalab.build.sass import Instruction, disassemble, main_loop, parse, successors
from sdpalab.inputs import make_inputs
from sdpalab.kernels.hopper import HOPPER, VALUES, chosen, modelled_clocks, smem_bytes
from sdpalab.kernels.kernel import Config, UnsupportedProblem
from sdpalab.kernels.warpgroups import SMS
from sdpalab.problem import MISSION, Problem
from sdpalab.run import SimulatedExecutor
from sdpalab.run.sanitize import ASYNC_MODES, SCHEDULES, small_problems
from sdpalab.sim.counters import Counters

ARCH = HOPPER.default_arch
AUTO = HOPPER.default_config
ONE = AUTO.but(BLOCK_M=64, BLOCK_N=64, NUM_STAGES=2, SPLIT=1, SCHEDULE="tiles")
TWO = ONE.but(BLOCK_M=128)
THREE = ONE.but(BLOCK_M=192)
CLUSTER_2 = ONE.but(SPLIT=2)
CLUSTER_4 = ONE.but(SPLIT=4)
PERSISTENT = TWO.but(SCHEDULE="persistent", NUM_CTAS=2)

WIDE = TWO.but(BLOCK_N=128)
D256 = TWO.but(BLOCK_N=80)

SHAPES = [
    (Problem(1, 1, 1, 64), AUTO),
    (Problem(1, 1, 33, 64, seq_kv=1), ONE),
    (Problem(1, 1, 33, 64, seq_kv=1), CLUSTER_2),
    (Problem(1, 4, 130, 64, kv_heads=2, seq_kv=200), TWO),
    (Problem(1, 2, 200, 64, kv_heads=1, seq_kv=310, causal=True), THREE),
    (Problem(2, 2, 70, 64, kv_heads=1, seq_kv=140, causal=True), CLUSTER_4),
    (Problem(1, 1, 130, 64, seq_kv=300, causal=True), TWO.but(SPLIT=4)),
    (Problem(1, 1, 129, 64, seq_kv=300, causal=True, dtype="bfloat16"), WIDE),
    (Problem(1, 2, 65, 128, seq_kv=257, causal=True), WIDE),
    (Problem(1, 1, 200, 128, seq_kv=70, causal=True), ONE.but(BLOCK_N=80, NUM_STAGES=3)),
    (Problem(1, 1, 70, 128, seq_kv=200), TWO.but(BLOCK_N=176)),
    (Problem(1, 1, 70, 128, seq_kv=330, dtype="bfloat16"), CLUSTER_4),
    (Problem(1, 1, 130, 256, seq_kv=170, causal=True), D256),
    (Problem(1, 1, 20, 256, seq_kv=140, dtype="bfloat16"), CLUSTER_2),
    (Problem(1, 1, 90, 64, scale=-0.3, causal=True), CLUSTER_4),
    (Problem(1, 1, 90, 64, scale=0.0, causal=True), THREE),
]
CODES = [
    (Problem(1, 8, 512, 64), AUTO),
    (Problem(1, 8, 512, 64, causal=True), WIDE),
    (Problem(1, 8, 512, 64), THREE.but(BLOCK_N=128)),
    (Problem(1, 8, 512, 64, causal=True), CLUSTER_4),
    (Problem(1, 8, 512, 64, dtype="bfloat16"), AUTO),
    (Problem(1, 8, 512, 128, causal=True), WIDE),
    (Problem(1, 8, 512, 128), TWO.but(BLOCK_N=176)),
    (Problem(1, 8, 512, 128), CLUSTER_2.but(BLOCK_N=80)),
    (Problem(1, 8, 512, 256, causal=True), D256),
    (Problem(1, 8, 512, 256), CLUSTER_2.but(BLOCK_N=80)),
    (Problem(1, 8, 512, 64), PERSISTENT.but(BLOCK_M=64, BLOCK_N=128)),
    (Problem(1, 8, 512, 64, causal=True, dtype="bfloat16"), PERSISTENT.but(BLOCK_N=128)),
    (Problem(1, 8, 512, 64, causal=True), PERSISTENT.but(BLOCK_M=192, BLOCK_N=128)),
    (Problem(1, 8, 512, 128), PERSISTENT.but(BLOCK_N=128)),
    (Problem(1, 8, 512, 128, causal=True), PERSISTENT.but(BLOCK_N=128)),
    (Problem(1, 8, 512, 256, causal=True), PERSISTENT.but(BLOCK_M=64, BLOCK_N=80)),
]


def built(problem: Problem, config: Config = AUTO) -> Build:
    (step,) = HOPPER.launch_plan(problem, config).launches
    assert step.module is not None
    return build(step.module, ARCH)


def label(value: object) -> str:
    return str(getattr(value, "label", value))


@pytest.mark.parametrize(("problem", "config"), SHAPES, ids=label)
def test_computes_attention(problem: Problem, config: Config) -> None:
    assert_computes(HOPPER, problem, config)


@pytest.mark.parametrize("config", [ONE, CLUSTER_2], ids=str)
@pytest.mark.parametrize("kind", ["uniform", "needle", "ramp", "reverse_ramp", "large_logits", "huge"])
def test_probes(kind: str, config: Config) -> None:
    assert_computes(HOPPER, Problem(1, 1, 60, 64, seq_kv=140), config, kind=kind)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(1, 1, 100, 64, seq_kv=64 * 5 - 7), TWO),  # a consumer with all of its rows and one with some
        (Problem(1, 1, 40, 128, seq_kv=64 * 5 - 7), CLUSTER_2),
        (Problem(1, 1, 33, 64, seq_kv=20, causal=True), CLUSTER_4),  # three CTAs without keys
    ],
    ids=label,
)
def test_every_order_gives_the_same_bits_and_no_hazard(problem: Problem, config: Config) -> None:
    outputs = set()
    for schedule, async_mode in product(SCHEDULES, ASYNC_MODES):
        checks = (*sim.CHECKS, "strict")
        result = run(HOPPER, problem, config, schedule=schedule, async_mode=async_mode, checks=checks)
        assert result.hazards == (), f"{schedule}, {async_mode}"
        outputs.add(result.outputs["o"].tobytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("config", [TWO, CLUSTER_4], ids=str)
def test_log_sum_exp(config: Config) -> None:
    problem = Problem(1, 4, 70, 64, kv_heads=2, seq_kv=150, causal=True, scale=-0.2)
    inputs = make_inputs(problem)
    plan = HOPPER.launch_plan(problem, config, lse=True)
    result = SimulatedExecutor(ARCH).run(plan, {"q": inputs.q, "k": inputs.k, "v": inputs.v})
    q, k = inputs.q.astype(np.float64), np.repeat(inputs.k.astype(np.float64), problem.group, axis=1)
    scores = problem.scale * q @ k.swapaxes(-1, -2)
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    assert result.hazards == ()
    assert result.outputs["lse"] == pytest.approx(np.logaddexp.reduce(scores, axis=-1), abs=2e-6)


@pytest.mark.parametrize(("head_dim", "config"), [(64, TWO), (128, CLUSTER_2)], ids=str)
def test_nothing_past_the_end_of_a_head_is_used_or_written(head_dim: int, config: Config) -> None:
    # Every tile reaches past the end of the first head, into the second's, which is NaN.
    problem = Problem(1, 2, 37, head_dim, seq_kv=41)
    draw = np.random.default_rng(3)
    inputs = {"q": draw.standard_normal(problem.q_shape).astype(np.float16)}
    inputs |= {name: draw.standard_normal(problem.kv_shape).astype(np.float16) for name in "kv"}
    executor, plan = SimulatedExecutor(ARCH), HOPPER.launch_plan(problem, config)
    clean = executor.run(plan, inputs).outputs["o"]
    for array in inputs.values():
        array[:, 1] = np.nan
    spoilt = executor.run(plan, inputs).outputs["o"]
    assert np.array_equal(spoilt[:, 0], clean[:, 0])
    assert np.isnan(spoilt[:, 1]).all()


@pytest.mark.parametrize("config", [ONE, CLUSTER_2], ids=str)
def test_an_output_that_ends_within_a_tile_is_written_to_its_end_and_no_further(config: Config) -> None:
    problem = Problem(1, 1, 41, 64)
    inputs = {name: np.ones(problem.q_shape, np.float16) for name in "qkv"}
    for poison in (0xFF, 0x00):
        result = SimulatedExecutor(ARCH).run(HOPPER.launch_plan(problem, config), inputs, poison=poison)
        assert result.hazards == ()
        assert np.array_equal(result.outputs["o"], inputs["v"])


def test_bfloat16_is_not_float16() -> None:
    # A value that float16 does not have, in and out.
    problem = Problem(1, 1, 8, 64, dtype="bfloat16")
    inputs = {name: np.full(problem.q_shape, 2.0**20, ml_dtypes.bfloat16) for name in "qkv"}
    result = SimulatedExecutor(ARCH).run(HOPPER.launch_plan(problem, ONE), inputs)
    assert np.array_equal(result.outputs["o"], inputs["v"])


@pytest.mark.parametrize(("problem", "config"), CODES, ids=label)
def test_static_gate(problem: Problem, config: Config) -> None:
    gate = check(resources_of(HOPPER, problem, config, ARCH), HOPPER.static_limits(problem))
    assert gate.ok, gate.failures
    # C7510 and the like: ptxas found registers of a product in use, and lets products wait for each other.
    log = built(problem, config).log
    assert "serialized" not in log
    assert "injected" not in log


@pytest.mark.parametrize(("problem", "config"), CODES, ids=label)
def test_warpgroups_use_the_registers_that_they_keep_or_take(problem: Problem, config: Config) -> None:
    # What ptxas reports is what a thread has at launch. Behind setmaxnreg there are others.
    made = built(problem, config)
    code = parse(disassemble(made))[made.entry]
    following = successors(code)
    sizes = []
    for place, instruction in enumerate(code):
        if instruction.base == "USETMAXREG":
            of_warpgroup = [code[each] for each in reached(following, place)]
            names = (name for each in of_warpgroup for name in re.findall(r"\bR(\d+)\b", each.operands))
            size = int(instruction.operands.rpartition(" ")[2], 16)
            assert max(map(int, names)) < size
            sizes.append(size)
    consumers = chosen(problem, config).int("BLOCK_M") // 64
    launched = resources_of(HOPPER, problem, config, ARCH).registers
    assert min(sizes) + consumers * max(sizes) <= (1 + consumers) * launched


@pytest.mark.parametrize(("problem", "config"), CODES, ids=label)
def test_the_softmax_is_computed_beside_the_product(problem: Problem, config: Config) -> None:
    # What hides the one behind the other: a turn issues all products, waits for the scores, computes the weights, and
    # only then waits for the product with V. ptxas moves the last wait up if nothing stops it.
    made = built(problem, config)
    code = parse(disassemble(made))[made.entry]
    knobs = chosen(problem, config)
    keys, head_dim = knobs.int("BLOCK_N"), problem.head_dim
    loop = main_loop(code)
    if knobs["SCHEDULE"] == "persistent":  # that was the one over tiles of queries; without its end it is none
        loop = main_loop(loop[:-1])
    order = [event for event in map(_event, loop) if event]
    turn = ["issue"] * (head_dim // 16 + keys // 16) + ["wait 1"] + ["exp"] * (keys // 2 + 2) + ["wait 0"]
    if knobs.int("BLOCK_M") > 64 and head_dim <= 128:
        turn = ["turn", *turn[: turn.index("wait 1")], "pass", *turn[turn.index("wait 1") :]]
    assert order == turn


def _event(instruction: Instruction) -> str:
    if instruction.opcode == "WARPGROUP.DEPBAR.LE":
        return f"wait {int(instruction.operands.rpartition(',')[2], 16)}"
    names = {"HGMMA": "issue", "BAR.SYNC": "turn", "BAR.ARV": "pass", "MUFU.EX2": "exp"}
    return next((name for opcode, name in names.items() if instruction.opcode.startswith(opcode)), "")


@pytest.mark.parametrize(("problem", "config"), CODES, ids=label)
def test_hoppers_own_instructions_are_in_the_sass(problem: Problem, config: Config) -> None:
    made = built(problem, config)
    count = Counter(instruction.base for instruction in parse(disassemble(made))[made.entry])
    knobs = chosen(problem, config)
    # The first scores, and in the loop; the output in the loop, and behind it.
    assert count["HGMMA"] == 2 * problem.head_dim // 16 + 2 * knobs.int("BLOCK_N") // 16
    # Q, the tiles that are under way before all else, and those as a place is free; the next Q and its first tiles.
    of_q = knobs.int("BLOCK_M") // 64
    assert count["UTMALDG"] == of_q + 2 + 2 + (of_q + 2 if knobs["SCHEDULE"] == "persistent" else 0)
    assert count["UTMASTG"] == 1
    assert count["STSM"] == problem.head_dim // 16
    assert count["USETMAXREG"] == 2
    assert count["STG"] >= 2  # the log-sum-exp of two rows; more where lanes that diverge have code of their own
    assert not {"STS", "LDG", "HMMA", "LDSM", "LDL", "STL"} & set(count)
    split = knobs.int("SPLIT")
    assert count["LDS"] == (split - 1) * (problem.head_dim // 8 + 1)
    assert count["STAS"] == (problem.head_dim // 8 + 1 if split > 1 else 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(dtype: str) -> None:
    ptx = built(Problem(1, 1, 64, 256, dtype=dtype), CLUSTER_2).ptx.decode()
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n64k16.f32.{short}.{short}") == 2 * 256 // 16
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n256k16.f32.{short}.{short}") == 2 * 64 // 16
    assert ptx.count("wgmma.fence") == 3
    assert ptx.count("wgmma.commit_group") == 4
    assert ptx.count("fence.proxy.async.shared::cta") == 1
    assert ptx.count("setmaxnreg.dec") == ptx.count("setmaxnreg.inc") == 1
    assert ptx.count("st.async.weak.shared::cluster") == 256 // 8 + 1
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == 1
    assert "bar.sync" not in ptx
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|ld\.global", ptx)


def test_everything_is_read_once_a_block_and_without_a_bank_conflict() -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=256)
    counted: list[Counters] = []

    def note(_: Build, report: sim.Report) -> None:
        assert report.counters is not None
        counted.append(report.counters)

    run(HOPPER, problem, CLUSTER_2, counters=True, on_launch=note)
    (counters,) = counted
    rows = 2 * problem.seq_q + 2 * problem.seq_kv  # Q by both blocks; each block's own half of K and V
    written = problem.seq_q
    assert counters.total("sectors", "async") == (rows + written) * problem.head_dim * 2 // 32
    assert counters.tensor_flops == problem.flops
    assert counters.total("sectors") == counters.total("ideal_sectors")
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")


def test_the_mission_shape_fills_the_gpu_and_has_all_its_keys_under_way_at_once() -> None:
    (step,) = HOPPER.launch_plan(MISSION).launches
    assert step.cluster == (2, 1, 1)
    assert SMS - 4 <= np.prod(step.grid) <= SMS
    made = chosen(MISSION, AUTO)
    assert made.int("NUM_STAGES") * made.int("BLOCK_N") * made.int("SPLIT") == MISSION.seq_kv
    assert step.dynamic_smem == smem_bytes(MISSION, made)


@pytest.mark.parametrize(
    ("problem", "knobs"),
    [
        (Problem(1, 8, 64, 64, seq_kv=8192), (64, 128, 4, 4)),  # few rows: the keys go to four SMs
        (Problem(4, 32, 4096, 128), (128, 128, 2, 1)),  # persistent: a place for O instead of a stage
        (Problem(4, 32, 4096, 256), (128, 80, 2, 1)),
        (Problem(1, 1, 64, 64), (64, 64, 2, 1)),  # one tile: nothing to split
    ],
    ids=label,
)
def test_knobs_are_chosen_by_problem(problem: Problem, knobs: tuple[int, ...]) -> None:
    assert tuple(chosen(problem, AUTO)[name] for name in VALUES) == knobs


def test_what_is_given_is_not_chosen() -> None:
    assert chosen(MISSION, ONE) == ONE
    assert chosen(MISSION, AUTO.but(SPLIT=1)).int("SPLIT") == 1
    assert chosen(MISSION, AUTO.but(BLOCK_M=128)).int("BLOCK_M") == 128


def test_a_second_wave_costs_as_much_as_the_first() -> None:
    full, more = (modelled_clocks(Problem(1, heads, 64, 64), 64, 1) for heads in (SMS, SMS + 1))
    assert more == 2 * full


def test_every_combination_that_a_search_tries_has_code_of_its_own() -> None:
    space = list(HOPPER.space(MISSION))
    assert len(space) == len(set(space)) > 50
    assert all(chosen(MISSION, config) == config for config in space)


def test_small_problems_give_each_block_of_a_cluster_enough_tiles_to_fill_its_stages_again() -> None:
    stages = CLUSTER_2.int("NUM_STAGES")
    lengths = [problem.seq_kv for problem in small_problems(HOPPER, CLUSTER_2) if not problem.causal]
    assert lengths == [64, 2 * stages * 64, 2 * (stages + 1) * 64, 2 * (2 * stages + 1) * 64 - 7]


def test_the_deletion_campaign_leaves_out_the_knobs_that_depend_on_the_problem(
    load_script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    subjects = list(load_script("deletion_campaign").subjects(["hopper"]))
    assert [subject.configs for subject in subjects] == [(TWO,), (CLUSTER_2,), (PERSISTENT.but(NUM_CTAS=1),)]
    assert f"hopper {AUTO}: left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("head_dim", "changes", "reason"),
    [
        (64, {"BLOCK_M": 32}, "BLOCK_M must be one of 0, 64, 128, 192, not 32"),
        (64, {"BLOCK_N": 96}, "BLOCK_N must be one of 0, 64, 80, 128, 176, not 96"),
        (64, {"NUM_STAGES": 1}, "NUM_STAGES must be one of 0, 2, 3, 4, not 1"),
        (64, {"SPLIT": 3}, "SPLIT must be one of 0, 1, 2, 4, not 3"),
        (64, {"SCHEDULE": "stream_k"}, "SCHEDULE must be one of auto, tiles, persistent, not stream_k"),
        (64, {"NUM_CTAS": 8}, "with SCHEDULE=auto it must be 0, not 8"),
        (64, {"SCHEDULE": "persistent", "NUM_CTAS": -1}, "NUM_CTAS must be 0 to 65536, not -1"),
        (64, {"SCHEDULE": "persistent", "SPLIT": 2}, "has blocks that split no keys: SPLIT must be 0 or 1, not 2"),
        (256, {"SCHEDULE": "persistent", "BLOCK_M": 128}, "shared memory, and the kernel's limit is 232448"),
        (128, {"BLOCK_M": 128, "BLOCK_N": 128, "NUM_STAGES": 4}, "shared memory, and the kernel's limit is 232448"),
        (128, {"BLOCK_M": 192}, "take 160 registers for accumulators and weights, and with BLOCK_M=192"),
        (256, {"BLOCK_N": 128}, "take 224 registers for accumulators and weights"),
    ],
    ids=str,
)
def test_illegal_knobs_are_refused(head_dim: int, changes: dict[str, int], reason: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        HOPPER.launch_plan(Problem(16, 16, 4096, head_dim), AUTO.but(**changes))
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("head_dim", "changes", "message"),
    [
        (64, {"BLOCK_M": 32}, "BLOCK_M is 64, 128 or 192"),
        (64, {"BLOCK_N": 96}, "BLOCK_N is 64, 80, 128 or 176"),
        (64, {"NUM_STAGES": 1}, "NUM_STAGES is 2, 3 or 4"),
        (64, {"SPLIT": 3}, "SPLIT is 1, 2 or 4"),
        (64, {"SPLIT": 2, "PERSISTENT": 1}, "persistent CTAs split no keys"),
        (128, {"BLOCK_M": 192, "BLOCK_N": 128}, "leave a consumer registers for the rest"),
        (96, {}, "HEAD_DIM is 64, 128 or 256"),
    ],
    ids=str,
)
def test_the_source_refuses_them_too(head_dim: int, changes: dict[str, int], message: str) -> None:
    as_given = replace(HOPPER, macros=lambda problem, config: {"PERSISTENT": 0, **config})
    with pytest.raises(BuildError) as refused:
        build(as_given.module(Problem(1, 1, 64, head_dim), ONE.but(**changes)), ARCH)
    assert message in f"{refused.value} {refused.value.log}"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(1, 1, 8, 32), "supports head_dim 64, 128 or 256, not 32"),
        (Problem(1, 1, 8, 64, scale=-3e38), "scale=-3e+38 does not fit"),
        (Problem(1, 70000, 8, 64), "at most 65535, not 70000"),
    ],
    ids=["head_dim", "scale", "heads"],
)
def test_unsupported_problems_have_a_reason(problem: Problem, reason: str) -> None:
    assert reason in str(HOPPER.reject_reason(problem))


@pytest.mark.parametrize("config", [TWO, CLUSTER_2, PERSISTENT], ids=str)
def test_smem_bytes_is_what_the_kernel_touches(config: Config) -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=128)
    assert run(HOPPER, problem, config).hazards == ()
    assert any("out-of-bounds" in hazard for hazard in run(HOPPER, problem, config, less_smem=8).hazards)
