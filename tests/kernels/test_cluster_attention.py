"""The cluster kernel: right on every shape, clean in every order, built as it says."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from checking import (
    assert_computes,
    assert_gate,
    assert_nothing_past_the_end_is_used,
    assert_shared_memory,
    built,
    ptx_of,
    run,
)
from cluster_attention import CLUSTER_ATTENTION, smem_bytes
from cluster_bugs import ONE_KEY, RAGGED
from refusals import Refusal, assert_refused

from sdpalab import sim
from sdpalab.compile.sass import disassemble
from sdpalab.inputs import make_inputs
from sdpalab.kernels.kernel import Config
from sdpalab.measure.counted import count
from sdpalab.problem import MISSION, Problem
from sdpalab.run.sanitize import ASYNC_MODES, SCHEDULES

DEFAULT = CLUSTER_ATTENTION.default_config
TWO_STAGES = DEFAULT.but(NUM_STAGES=2)
ARCH = CLUSTER_ATTENTION.default_arch
STRICT = (*sim.CHECKS, "strict")

SHAPES = [
    Problem(1, 1, 1, 64),
    Problem(2, 1, 64, 64, seq_kv=128),
    Problem(1, 2, 65, 64, kv_heads=1, seq_kv=200),
    Problem(1, 1, 130, 64, seq_kv=129, causal=True),
    Problem(1, 1, 33, 64, seq_kv=700),
    Problem(1, 2, 70, 64, dtype="bfloat16", kv_heads=1, causal=True),
    Problem(1, 1, 40, 64, seq_kv=150, scale=-0.3),
    Problem(1, 1, 40, 64, scale=0.0, causal=True),
]


@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.label)
def test_computes_attention(problem: Problem) -> None:
    assert_computes(CLUSTER_ATTENTION, problem)


@pytest.mark.parametrize("kind", ["ramp", "reverse_ramp", "large_logits"])
def test_halves_of_different_size_are_merged(kind: str) -> None:
    assert_computes(CLUSTER_ATTENTION, Problem(1, 1, 64, 64, seq_kv=140), TWO_STAGES, kind=kind)


@pytest.mark.parametrize(
    "problem", [RAGGED, ONE_KEY, Problem(1, 1, 70, 64, causal=True)], ids=lambda problem: problem.label
)
def test_right_and_clean_in_every_order(problem: Problem) -> None:
    for schedule, async_mode in product(SCHEDULES, ASYNC_MODES):
        options = {"schedule": schedule, "async_mode": async_mode, "checks": STRICT}
        assert_computes(CLUSTER_ATTENTION, problem, TWO_STAGES, **options)


def test_one_key_is_the_output_exactly_though_one_block_has_none() -> None:
    result = run(CLUSTER_ATTENTION, ONE_KEY)
    assert not result.hazards
    assert np.array_equal(result.outputs["o"], np.broadcast_to(make_inputs(ONE_KEY).v, ONE_KEY.q_shape))


def test_nothing_past_the_end_of_a_head_is_used() -> None:
    assert_nothing_past_the_end_is_used(CLUSTER_ATTENTION, Problem(1, 2, 37, 64, seq_kv=101))


def test_everything_is_read_once_a_cluster_and_without_a_bank_conflict() -> None:
    problem = Problem(1, 1, 64, 64, seq_kv=256)
    counters = count(CLUSTER_ATTENTION, problem, ARCH).main.counters
    rows = problem.seq_q + 2 * problem.seq_kv  # Q, though two blocks have it; each block's own half of K and V
    assert counters.total("sectors", "async") == rows * problem.head_dim * 2 // 32
    assert counters.tensor_flops == problem.flops
    assert counters.total("sectors") == counters.total("ideal_sectors")
    assert counters.total("wavefronts") == counters.total("ideal_wavefronts")


def test_the_algorithm_is_in_the_ptx() -> None:
    ptx = ptx_of(CLUSTER_ATTENTION, MISSION)
    assert ptx.count("multicast::cluster") == 1
    assert ptx.count("cp.async.bulk.tensor.4d") == 1 + 4  # K and V, at the start and when a stage is free
    assert ptx.count("mapa.shared::cluster") == 2
    assert ptx.count("st.shared::cluster.v4.f32") == 8 + 1
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait.acquire") == 2
    assert ptx.count("wgmma.mma_async") == 2 * (4 + 4)  # S and O, in the loop and around it
    assert not re.search(r"\bbar\.sync|\b(ld|st)\.local|\bcall\b|ld\.global", ptx)
    assert ptx.count("st.global.v4") == 4


def test_the_algorithm_is_in_the_sass() -> None:
    sass = disassemble(built(CLUSTER_ATTENTION, MISSION))
    assert len(re.findall(r"UTMALDG\.4D\.MULTICAST", sass)) == 1
    assert len(re.findall(r"UTMALDG\.4D ", sass)) == 4
    assert len(re.findall(r"UCGABAR_ARV", sass)) == len(re.findall(r"UCGABAR_WAIT", sass)) == 2
    assert len(re.findall(r"HGMMA\.64x64x16\.F32 ", sass)) == 16
    # In the loop both products are issued, one is waited for, the weights are computed, the other is waited for.
    order = re.findall(r"HGMMA|MUFU\.EX2|DEPBAR\.LE gsb0, 0x[01]", sass)
    first, second = order.index("DEPBAR.LE gsb0, 0x1"), len(order) - order[::-1].index("DEPBAR.LE gsb0, 0x0") - 6
    assert order[first - 8 : first] == ["HGMMA"] * 8
    assert order[first + 1 : second] == ["MUFU.EX2"] * (32 + 2)
    assert order[second : second + 2] == ["DEPBAR.LE gsb0, 0x0", "HGMMA"]


@pytest.mark.parametrize("config", CLUSTER_ATTENTION.configs, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_static_gate(config: Config, causal: bool) -> None:
    problem = MISSION.with_(causal=causal)
    assert_gate(CLUSTER_ATTENTION, problem, config)
    assert "injected" not in built(CLUSTER_ATTENTION, problem, config).log  # of ptxas: a wgmma.fence in the wrong place


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    assert_shared_memory(CLUSTER_ATTENTION, RAGGED, DEFAULT, smem_bytes(RAGGED, DEFAULT), step=8)


REFUSALS = [
    Refusal({}, "supports head_dim 64, not 128", "HEAD_DIM is 64", Problem(1, 1, 64, 128)),
    Refusal({}, "scale=-3e+38 does not fit", problem=Problem(1, 1, 8, 64, scale=-3e38)),
    Refusal({}, "at most 65535, not 70000", problem=Problem(1, 70000, 8, 64)),
    Refusal({"NUM_STAGES": 1}, "NUM_STAGES must be one of 2, 3, 4, not 1", "NUM_STAGES is 2, 3 or 4"),
    Refusal({"NUM_STAGES": 5}, "NUM_STAGES must be one of 2, 3, 4, not 5", "NUM_STAGES is 2, 3 or 4"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_what_it_does_not_compute_is_refused(refusal: Refusal) -> None:
    assert_refused(CLUSTER_ATTENTION, refusal)
