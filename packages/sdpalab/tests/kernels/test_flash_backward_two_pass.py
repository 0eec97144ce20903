"""The structure of flash_backward_two_pass: products, copies and barriers in its PTX, its work, and what it refuses."""

from __future__ import annotations

import re

import pytest
from checking import assert_shared_memory, ptx_of, resources_of
from refusals import Refusal, assert_refused

from sdpalab.kernels.flash_backward_two_pass import FLASH_BACKWARD_TWO_PASS, smem_bytes
from sdpalab.kernels.kernel import Config
from sdpalab.model.counted import count
from sdpalab.problem import Problem

PROBLEM = Problem(1, 1, 64, 64, task="backward")


@pytest.mark.sample
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_algorithm_is_in_the_ptx(head_dim: int, dtype: str) -> None:
    ptx = ptx_of(FLASH_BACKWARD_TWO_PASS, PROBLEM.with_(head_dim=head_dim, dtype=dtype))
    block, stream = (128 if head_dim == 128 else 64), (64 if head_dim == 64 else 32)
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    product = (stream // 8) * (head_dim // 16)  # of a warp's 16 rows
    assert (
        ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32") == ptx.count("mma.sync") == 7 * product
    )
    own = 2 * 2 * head_dim // 16  # both kinds of CTA read two owned tiles, once or for each streamed tile
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == 4 * product // 2 + own
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == 3 * product // 2
    threads, rows = block // 16 * 32, 2 * block + 2 * 2 * stream
    assert ptx.count("cp.async.cg") == 2 * rows * head_dim // 8 // threads
    assert len(re.findall(r"bar\.sync|barrier\.sync", ptx)) == 2 * 3  # the owned tile, each streamed one, the results
    assert not re.search(r"\b(ld|st)\.local|\bcall\b|\bdiv\.\w+\.f|\b(atom|red)\.", ptx)


def test_no_tile_without_a_visible_pair_is_computed() -> None:
    def products(problem: Problem) -> int:
        counters = count(FLASH_BACKWARD_TWO_PASS, problem, "sm_89").main.counters
        assert counters.total("wavefronts") == counters.total("ideal_wavefronts")
        return sum(each.warps for each in counters.by_instruction if each.text.startswith("mma"))

    square = PROBLEM.with_(seq_q=256, seq_kv=256)
    tiles, a_tile = 16, 7 * 4 * 8 * 4  # 7 products of 4 warps, 8 x 4 instructions each
    assert products(square) == tiles * a_tile
    assert products(square.with_(causal=True)) == 10 * a_tile
    assert products(square.with_(window_size=(64, 0))) == 7 * a_tile
    assert products(square.with_(kv_lengths=(64,))) == 4 * a_tile


@pytest.mark.parametrize(("head_dim", "smem", "blocks"), [(64, 33792, 2), (96, 49664, 2), (128, 98816, 1)])
def test_blocks_of_an_sm(head_dim: int, smem: int, blocks: int) -> None:
    problem = PROBLEM.with_(head_dim=head_dim)
    assert smem_bytes(problem, FLASH_BACKWARD_TWO_PASS.default_config) == smem
    used = resources_of(FLASH_BACKWARD_TWO_PASS, problem, arch="sm_80")
    assert (used.shared_bytes, used.blocks_per_sm) == (smem, blocks)


def test_smem_bytes_is_what_the_kernel_touches() -> None:
    problem, config = PROBLEM.with_(seq_q=128), Config(BLOCK=64, STREAM=32)
    assert_shared_memory(FLASH_BACKWARD_TWO_PASS, problem, config, smem_bytes(problem, config), step=4)


REFUSALS = [
    Refusal({"BLOCK": 32}, "BLOCK must be one of 0, 64, 128, not 32", "BLOCK is 64 or 128", PROBLEM),
    Refusal({"STREAM": 16}, "STREAM must be one of 0, 32, 64, not 16", "STREAM is 32, or 64", PROBLEM),
    Refusal({"STREAM": 64}, "STREAM=64 is for head_dim 64", "STREAM is 32, or 64", PROBLEM.with_(head_dim=128)),
    Refusal({}, "supports head_dim 64, 96 or 128, not 32", "HEAD_DIM is 64, 96 or 128", PROBLEM.with_(head_dim=32)),
    Refusal({}, "computes gradients, and 1x1x64x64 is a forward problem", problem=Problem(1, 1, 64, 64)),
    Refusal({}, "computes float16 or bfloat16, not float32", problem=PROBLEM.with_(dtype="float32")),
    Refusal({}, "does not take head_dim_v", problem=PROBLEM.with_(head_dim_v=32)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_illegal_knobs_and_problems_are_refused(refusal: Refusal) -> None:
    assert_refused(FLASH_BACKWARD_TWO_PASS, refusal)
