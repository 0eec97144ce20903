"""A matrix product that Triton compiles for sm_90 with tensor maps: a pipeline of bulk copies, mbarriers and wgmma."""

import re

import numpy as np
import pytest

from hopper_snippets import MODES

pytest.importorskip("triton", reason="needs the extra: pip install 'sdpalab[triton]'")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import warpsan

TILE = 64


@triton.jit
def product(a, b, c, depth, TILE: tl.constexpr):
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in tl.range(0, depth, TILE):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    c.store([row, column], total.to(tl.float16))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """PTX and bytes of shared memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        matrix = f"tensordesc<fp16[{TILE},{TILE}]>"
        signature = {"a": matrix, "b": matrix, "c": matrix, "depth": "i32", "TILE": "constexpr"}
        source = ASTSource(fn=product, signature=signature, constexprs={"TILE": TILE})
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
    return kernel.asm["ptx"], kernel.metadata.shared


def run(ptx: str, smem: int, **options: object) -> tuple[list[str], float]:
    """Kinds of hazards, and the largest error, of a ragged product: no axis is a multiple of the tile."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((100, 200)).astype(np.float16), rng.standard_normal((72, 200)).astype(np.float16)
    c = np.zeros((100, 72), np.float16)
    matrices = [[warpsan.TensorMap(each, (TILE, TILE), "128B"), *each.shape, each.shape[1], 1] for each in (a, b, c)]
    arguments = [*matrices[0], *matrices[1], *matrices[2], 200, 0, 0]  # the last two are Triton's scratch pointers
    report = warpsan.launch(ptx, "product", (2, 2), 128, arguments, dynamic_smem=smem, **options)
    error = np.abs(c - a.astype(np.float64) @ b.astype(np.float64).T).max()
    return [hazard.kind for hazard in report.hazards], float(error)


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_the_product_is_right_and_clean(compiled, mode, schedule):
    kinds, error = run(*compiled, async_mode=mode, schedule=schedule)
    assert kinds == []
    assert error < 0.03  # an element of 200 products of N(0, 1), up to about 50, rounded to float16


@pytest.mark.parametrize(
    "pattern",
    [r"wgmma\.wait_group.*", r"fence\.proxy\.async.*", r"cp\.async\.bulk\.wait_group.*", r"mbarrier\.init.*"],
)
def test_without_one_kind_of_synchronisation_it_is_not(compiled, pattern):
    ptx, smem = compiled
    mutant, number = re.subn(r"(?m)^\s*(@\S+\s+)?" + pattern, "", ptx)
    assert number > 0
    try:
        kinds, _ = run(mutant, smem, max_steps=200_000)
    except warpsan.SimError:
        return
    assert kinds
