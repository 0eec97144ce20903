"""The wmma kernel with every knob: right, really on tensor cores, and no race without its barriers.

What it computes whatever its knobs, what it refuses of problems, and its static limits are in ``test_ladder*.py``.
"""

from __future__ import annotations

import pytest
from checking import (
    assert_computes,
    assert_same_bits_in_every_order,
    assert_shared_memory,
    assert_values_have_their_own_code,
    ptx_of,
    resources_of,
)
from refusals import WMMA_TILES, Refusal, assert_refused

from sdpalab.kernels.wmma import WMMA, smem_bytes
from sdpalab.problem import Problem

DEFAULT = WMMA.default_config
RAGGED = Problem(1, 2, 37, 32, kv_heads=1, seq_kv=45, causal=True)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("block_m", "block_n"), [(16, 16), (16, 64), (32, 32), (48, 16), (64, 64), (128, 16), (128, 32), (16, 128)]
)
def test_every_tile_is_correct(block_m: int, block_n: int) -> None:
    assert_computes(WMMA, RAGGED, DEFAULT.but(BLOCK_M=block_m, BLOCK_N=block_n))


@pytest.mark.sample(1)
@pytest.mark.parametrize("knob", ["BLOCK_M", "BLOCK_N"])
def test_every_knob_changes_the_code(knob: str) -> None:
    assert_values_have_their_own_code(WMMA, knob, (16, 32, 64))


def test_both_products_are_on_tensor_cores() -> None:
    problem = Problem(1, 1, 64, 64)
    ptx = ptx_of(WMMA, problem)
    assert "cp.async" not in ptx
    assert "wmma.load.b.sync.aligned.col.m16n16k16.shared.f16" in ptx  # K^T
    assert "wmma.load.b.sync.aligned.row.m16n16k16.shared.f16" in ptx  # V
    assert "wmma.mma.sync.aligned" in ptx
    assert "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32" in ptx
    used = resources_of(WMMA, problem)
    assert used.tensor_share is not None
    assert used.tensor_share > 0.0


REFUSALS = [
    *WMMA_TILES,
    Refusal({"BLOCK_M": 0}, "BLOCK_M must be"),
    Refusal({"BLOCK_M": 528}, "BLOCK_M must be"),
    Refusal({"BLOCK_N": 24}, "BLOCK_N must be a multiple of 16 that divides head_dim or exceeds it, not 24"),
    Refusal({"BLOCK_N": 128}, "bytes of shared memory, and the kernel's limit is 65536"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_are_refused(refusal: Refusal) -> None:
    assert_refused(WMMA, refusal)


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem = Problem(1, 1, 64, 32)
    # Nothing touches the padding of the last row.
    assert_shared_memory(WMMA, problem, DEFAULT, smem_bytes(problem, DEFAULT), padding=16)


def test_no_result_rests_on_the_order_of_warps() -> None:
    assert_same_bits_in_every_order(WMMA, Problem(1, 1, 70, 32, causal=True), async_modes=("late",))
