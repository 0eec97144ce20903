"""The structure of flash_backward: products, sums of dQ and their order, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from checking import assert_computes, assert_same_bits_in_every_order, ptx_of, run
from refusals import Refusal, assert_refused

from sdpalab.bugs.edit import SourceEdit
from sdpalab.compile import build
from sdpalab.compile.resources import Resources, resources
from sdpalab.inputs import make_inputs
from sdpalab.judge.rule.evaluate import judge_output
from sdpalab.judge.sanitize import sanitize_kernel
from sdpalab.judge.verdict import Status
from sdpalab.kernels.flash_backward import FLASH_BACKWARD, smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.model.counted import count
from sdpalab.packing import TAIL, Packing
from sdpalab.problem import Problem
from sdpalab.run import SimulatedExecutor
from warpsan.sanitize.sanitizer import Modes

PROBLEM = Problem(1, 1, 64, 64, task="backward")
TILES = Problem(1, 2, 100, 64, kv_heads=1, seq_kv=300, task="backward")  # several tiles of keys add to each of dQ
WINDOW = Problem(1, 1, 300, 64, seq_kv=450, window_size=(140, 30), task="backward")  # first at other tiles of keys
ORDERED = FLASH_BACKWARD.default_config.but(DETERMINISTIC=1)


@pytest.mark.sample
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(head_dim: int, dtype: str) -> None:
    ptx = ptx_of(FLASH_BACKWARD, PROBLEM.with_(head_dim=head_dim, dtype=dtype))
    stream, short = (64 if head_dim == 64 else 32), {"float16": "f16", "bfloat16": "bf16"}[dtype]
    product = (stream // 8) * (head_dim // 16)  # of a warp's 16 keys
    warps = 8 if head_dim == 128 else 4
    columns = stream * head_dim // 8 // 16 // warps  # of 8, of 16 rows of a warp's dQ; its loop has 32 keys
    blocks = 2 if head_dim == 64 else 1  # of 16 rows of a warp's dQ, which share fragments of K
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32") == ptx.count("mma.sync")
    assert ptx.count("mma.sync") == 4 * product + 2 * columns
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == product + 2 * blocks + columns // blocks
    assert len(re.findall(r"\bred\.relaxed\.gpu\.global\.add\.f32", ptx)) == 4 * columns
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|\batom\.|acquire|release", ptx)


def test_five_products_and_no_conflict() -> None:
    problem = PROBLEM.with_(seq_q=256, seq_kv=256)
    counted = count(FLASH_BACKWARD, problem, "sm_89")
    for step in counted.launches:
        for unit in ("sectors", "wavefronts"):
            assert step.counters.total(unit) == step.counters.total(f"ideal_{unit}"), (step.name, unit)
    products = sum(each.warps for each in counted.main.counters.by_instruction if each.text.startswith("mma"))
    assert products == 5 * 256 * 256 * 64 // (16 * 8 * 16)


def test_the_sums_of_dq_start_from_zeros_and_are_added_by_atomics() -> None:
    inputs = make_inputs(TILES)
    plan = FLASH_BACKWARD.launch_plan(TILES)
    unfilled = tuple(replace(buffer, fill=None) if buffer.name == "dq_sums" else buffer for buffer in plan.buffers)
    assert SimulatedExecutor().run(replace(plan, buffers=unfilled), inputs.arrays).hazards
    part = "dq[n / DQ_BLOCKS][n % DQ_BLOCKS][i]"
    add = (f"ptx::red_add_f32(own + (4 * n + i) * 32, {part});", f"own[(4 * n + i) * 32] += {part};")
    found = sanitize_kernel(SourceEdit("flash_backward", (add,)).apply(), [TILES], modes=Modes(schedules=("lockstep",)))
    assert "race" in {hazard.kind for hazard in found.hazards}


@pytest.mark.sample
@pytest.mark.parametrize("problem", [TILES, WINDOW, TILES.with_(seq_q=300, causal=True)], ids=lambda each: each.label)
def test_the_order_of_the_sums_is_fixed_on_request(problem: Problem) -> None:
    assert_computes(FLASH_BACKWARD, problem, ORDERED)
    assert_same_bits_in_every_order(FLASH_BACKWARD, problem, ORDERED, async_modes=("late",))


@pytest.mark.parametrize(
    "edit",
    [
        ("key_tile - keys.first, key_tile + 1 == keys.end);", "key_tile - keys.first, false);"),
        ("const Span keys = seen.of_queries(tile);", "const Span keys{0, ceil_div(tensors.seq_kv, BLOCK)};"),
    ],
    ids=["no last one", "tiles that no query sees are counted"],
)
def test_a_wrong_order_is_found(edit: tuple[str, str]) -> None:
    mutant = replace(SourceEdit("flash_backward", (edit,)).apply(), configs=(ORDERED,))
    try:
        hazards = run(mutant, WINDOW, ORDERED, max_steps=200_000).hazards
    except Exception as error:  # an endless wait
        hazards = (str(error),)
    assert hazards


SHARED = FLASH_BACKWARD.default_config.but(BLOCK=128, STREAM=64, WARP_KEYS=32, QUERY_WARPS=2, DO_STAGES=2)
WIDE = [(64, FLASH_BACKWARD.default_config.but(BLOCK=128, STREAM=64, WARP_KEYS=32)), (96, SHARED), (128, SHARED)]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("head_dim", "config"), WIDE, ids=str)
def test_32_keys_a_warp_halve_the_reads_of_shared_memory(head_dim: int, config: Config) -> None:
    """The same products with 2.0 to 2.5 wavefronts for each, 10% less than with 16 keys a warp, and no conflicts."""
    problem = PROBLEM.with_(head_dim=head_dim, seq_q=256, seq_kv=256)
    per_product = []
    for each in (config, FLASH_BACKWARD.default_config):
        counters = count(FLASH_BACKWARD, problem, "sm_80", each).main.counters
        assert counters.total("wavefronts") == counters.total("ideal_wavefronts")
        products = sum(line.warps for line in counters.by_instruction if line.text.startswith("mma"))
        assert products == 5 * 256 * 256 * head_dim // (16 * 8 * 16)
        per_product.append(counters.total("wavefronts") / products)
    assert per_product[0] < min(2.5, 0.9 * per_product[1])
    for ordered in (0, 1):
        chosen = config.but(DETERMINISTIC=ordered)
        assert_computes(FLASH_BACKWARD, TILES.with_(head_dim=head_dim, seq_q=150, causal=True), chosen, arch="sm_80")


PACKED = Problem(
    *(3, 4, 150, 64),
    kv_heads=2,
    seq_kv=200,
    q_lengths=(150, 0, 70),
    kv_lengths=(200, 30, 130),
    layout="varlen",
    task="backward",
)
GAPS = PACKED.with_(
    layout="varlen:gaps", causal=True, bottom_right=True, q_lengths=(15, 100, 70), kv_lengths=(40, 130, 0)
)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "problem", [PACKED, GAPS, GAPS.with_(head_dim=128, alibi_slopes=True)], ids=lambda each: each.label
)
@pytest.mark.parametrize("ordered", [0, 1])
def test_packed_sequences(problem: Problem, ordered: int) -> None:
    """Each sequence is right whatever NaN lies between and behind them, and gradients of rows behind the last are 0."""
    config, packing = FLASH_BACKWARD.default_config.but(DETERMINISTIC=ordered), Packing(problem)
    inputs = make_inputs(problem)
    plan = FLASH_BACKWARD.launch_plan(problem, config)
    result = SimulatedExecutor().run(plan, packing.pack(inputs.arrays))
    assert not result.hazards
    assert (
        judge_output(problem, inputs, packing.unpack(result.outputs), FLASH_BACKWARD.numerics_of(config)).status
        is Status.PASSED
    )
    for name in ("dq", "dk", "dv"):
        assert not result.outputs[name][-TAIL:].any(), name


def resources_of_gradients(problem: Problem) -> Resources:
    step = FLASH_BACKWARD.launch_plan(problem).launches[1]
    assert step.module is not None
    return resources(build(step.module, "sm_89"), step)


@pytest.mark.parametrize(("head_dim", "smem", "blocks"), [(64, 50176, 2), (96, 47616, 2), (128, 98816, 1)])
def test_blocks_of_an_sm(head_dim: int, smem: int, blocks: int) -> None:
    problem = PROBLEM.with_(head_dim=head_dim)
    assert smem_bytes(problem, FLASH_BACKWARD.default_config) == smem
    used = resources_of_gradients(problem)
    assert (used.shared_bytes, used.blocks_per_sm, used.spill_bytes) == (smem, blocks, 0)


REFUSALS = [
    Refusal({"STREAM": 16}, "STREAM must be one of 0, 32, 64, not 16", "STREAM is 32 or 64", PROBLEM),
    Refusal({"WARP_KEYS": 8}, "WARP_KEYS must be one of 16, 32, not 8", "one or two blocks of 16 keys", PROBLEM),
    Refusal({"QUERY_WARPS": 4}, "QUERY_WARPS must be one of 1, 2, not 4", "one or two warps share keys", PROBLEM),
    Refusal({"WARP_KEYS": 32}, "WARP_KEYS=32 is for head_dim 64", problem=PROBLEM.with_(head_dim=128)),
    Refusal({"WARP_KEYS": 32}, "WARP_KEYS=32 is for problems without", problem=PROBLEM.with_(attn_mask="bool:1,1")),
    Refusal({"BLOCK": 64, "WARP_KEYS": 32}, "has 64 threads a block, and 128 to 256 are possible", problem=PROBLEM),
    Refusal({"BLOCK": 128, "QUERY_WARPS": 2}, "has 512 threads a block, and 128 to 256", problem=PROBLEM),
    Refusal({"DO_STAGES": 3}, "DO_STAGES must be one of 1, 2, not 3", "DO_STAGES is 1 or 2", PROBLEM),
    Refusal({}, "computes gradients, and 1x1x64x64 is a forward problem", problem=Problem(1, 1, 64, 64)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_and_problems_are_refused(refusal: Refusal) -> None:
    assert_refused(FLASH_BACKWARD, refusal)
