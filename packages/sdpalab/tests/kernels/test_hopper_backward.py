"""The structure of hopper_backward: products, roles of warps, sums of dQ and their order, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from checking import assert_computes, assert_same_bits_in_every_order, run
from refusals import Refusal, assert_refused

from sdpalab.bugs.edit import SourceEdit
from sdpalab.compile import Build, build
from sdpalab.compile.resources import resources
from sdpalab.inputs import make_inputs
from sdpalab.kernels.hopper_backward import HOPPER_BACKWARD, smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.model.counted import count
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor

PROBLEM = Problem(1, 1, 128, 64, task="backward")
TILES = Problem(1, 2, 200, 64, kv_heads=1, seq_kv=300, task="backward")  # several tiles of keys add to each of dQ
WINDOW = Problem(1, 1, 300, 64, seq_kv=450, window_size=(140, 30), task="backward")  # first at other tiles of keys
DEFAULT = HOPPER_BACKWARD.default_config
ORDERED = DEFAULT.but(DETERMINISTIC=1)
ALONE = DEFAULT.but(BLOCK=64)


def gradients_of(problem: Problem, config: Config = DEFAULT) -> Build:
    """Build of the main launch."""
    step = HOPPER_BACKWARD.launch_plan(problem, config).launches[1]
    assert step.module is not None
    return build(step.module, HOPPER_BACKWARD.default_arch)


@pytest.mark.sample
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(head_dim: int, dtype: str) -> None:
    built = gradients_of(PROBLEM.with_(head_dim=head_dim, dtype=dtype))
    ptx, short = built.ptx.decode(), {"float16": "f16", "bfloat16": "bf16"}[dtype]
    parts = 2 if head_dim == 64 else 1  # of 64 queries
    scores, gradients, of_dq = 2 * parts * head_dim // 16, 2 * parts * 4, 128 // 16
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)\.\w+ \{[^}]*\}, ([{%])", ptx)
    assert len(products) == scores + gradients + of_dq
    assert {kind for _, kind, _ in products} == {short}
    assert sorted(n for n, _, left in products if left == "{") == [str(head_dim)] * gradients  # A in registers
    assert len(re.findall(r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group\.add\.f32", ptx)) == 2
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|\bred\.|acquire|release\.gpu", ptx)
    assert "C75" not in built.log, "ptxas serialises the products"


@pytest.mark.parametrize("head_dim", [64, 128])
def test_five_products_and_no_conflict(head_dim: int) -> None:
    counted = count(HOPPER_BACKWARD, PROBLEM.with_(seq_q=256, seq_kv=256, head_dim=head_dim), "sm_90a")
    for step in counted.launches:
        for unit in ("sectors", "wavefronts"):
            assert step.counters.total(unit) == step.counters.total(f"ideal_{unit}"), (step.name, unit)
    main = counted.launches[1]
    products = [each for each in main.counters.by_instruction if "wgmma.mma_async" in each.text]
    columns = sum(int(each.text.partition("m64n")[2].partition("k")[0]) * each.warps for each in products)
    assert columns * 16 * 16 == 5 * 256 * 256 * head_dim


def test_the_sums_of_dq_start_from_zeros_and_are_added_by_atomics() -> None:
    inputs, plan = make_inputs(TILES), HOPPER_BACKWARD.launch_plan(TILES)
    unfilled = tuple(replace(buffer, fill=None) if buffer.name == "dq_sums" else buffer for buffer in plan.buffers)
    executor = SimulatedExecutor(HOPPER_BACKWARD.default_arch)
    assert executor.run(replace(plan, buffers=unfilled), inputs.arrays).hazards
    add = ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", "cp.async.bulk.global.shared::cta.bulk_group")
    hazards = run(SourceEdit("hopper_backward", (add,)).apply(), TILES).hazards
    assert any("race" in hazard for hazard in hazards), hazards


@pytest.mark.sample
@pytest.mark.parametrize("problem", [TILES, WINDOW, TILES.with_(seq_q=300, causal=True)], ids=lambda each: each.label)
def test_the_order_of_the_sums_is_fixed_on_request(problem: Problem) -> None:
    assert_computes(HOPPER_BACKWARD, problem, ORDERED)
    assert_same_bits_in_every_order(HOPPER_BACKWARD, problem, ORDERED, async_modes=("late",))


@pytest.mark.parametrize(
    "edit",
    [
        ("key_tile + 1 == keys.end ? 0 : key_tile - keys.first + 1", "key_tile - keys.first + 1"),
        (
            "const Span keys = DETERMINISTIC ? seen.of_queries(at.tile)",
            "const Span keys = DETERMINISTIC ? Span{0, 1}",
        ),
    ],
    ids=["no last one", "tiles that no query sees are counted"],
)
def test_a_wrong_order_is_found(edit: tuple[str, str]) -> None:
    mutant = replace(SourceEdit("hopper_backward", (edit,)).apply(), configs=(ORDERED,))
    try:
        hazards = run(mutant, WINDOW, ORDERED, max_steps=400_000).hazards
    except Exception as error:  # an endless wait
        hazards = (str(error),)
    assert hazards


def test_a_reduction_that_is_only_read_is_not_complete() -> None:
    edit = ("            ptx::cp_async_bulk_wait_group<0>();\n", "")
    mutant = SourceEdit("hopper_backward", (edit,)).apply()
    clean, wrong = (
        run(kernel, TILES, ORDERED, schedule="random", async_mode="late").outputs["dq"].tobytes()
        for kernel in (HOPPER_BACKWARD, mutant)
    )
    assert wrong != clean


@pytest.mark.sample
@pytest.mark.parametrize("stages", [1, 3])
def test_every_number_of_stages_computes(stages: int) -> None:
    for config in (ALONE.but(NUM_STAGES=stages), DEFAULT.but(NUM_STAGES=1)):
        assert_computes(HOPPER_BACKWARD, TILES, config)


@pytest.mark.parametrize(
    ("head_dim", "config", "smem", "blocks"),
    [(64, DEFAULT, 198752, 1), (64, ALONE, 83040, 2), (96, DEFAULT, 197728, 1), (128, DEFAULT, 197728, 1)],
)
def test_blocks_of_an_sm(head_dim: int, config: Config, smem: int, blocks: int) -> None:
    problem = PROBLEM.with_(head_dim=head_dim)
    assert smem_bytes(problem, config) == smem
    step = HOPPER_BACKWARD.launch_plan(problem, config).launches[1]
    used = resources(gradients_of(problem, config), step)
    assert (used.shared_bytes, used.blocks_per_sm, used.spill_bytes) == (smem, blocks, 0)
    clean = run(HOPPER_BACKWARD, problem, config)
    assert clean.hazards == ()


REFUSALS = [
    Refusal({"STREAM": 32}, "STREAM must be one of 0, 64, 128, not 32", "STREAM is 64, or 128", PROBLEM),
    Refusal({"STREAM": 64}, "at head_dim 64 and STREAM=64 BLOCK is 64, not 128", "64 rows and a panel of dQ", PROBLEM),
    Refusal({"BLOCK": 64}, "BLOCK is 128, not 64", "64 rows and a panel of dQ", PROBLEM.with_(head_dim=128)),
    Refusal({"NUM_STAGES": 4}, "NUM_STAGES must be one of 1, 2, 3, not 4", "NUM_STAGES is 1, 2 or 3", PROBLEM),
    Refusal({"NUM_STAGES": 3}, "bytes of shared memory", problem=PROBLEM),
    Refusal({}, "computes gradients, and 1x1x64x64 is a forward problem", problem=Problem(1, 1, 64, 64)),
    Refusal(
        {},
        "takes attn_mask beside a soft cap up to head_dim 96",
        problem=PROBLEM.with_(head_dim=128, attn_mask="bool:1,1", softcap=9.0),
    ),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_and_problems_are_refused(refusal: Refusal) -> None:
    assert_refused(HOPPER_BACKWARD, refusal)


def test_it_is_for_hopper_alone() -> None:
    assert "only sm_90a has" in str(HOPPER_BACKWARD.why_not_on("sm_100"))
