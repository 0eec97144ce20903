"""Bulk tensor copies from the CUDA compiler: a double-buffered pipeline, with tensor maps as ``__grid_constant__``."""

from functools import cache

import numpy as np
import pytest

import warpsan
from hopper_snippets import MODES
from warpsan.build.nvrtc import compile_program
from warpsan.planting import replace_once

SOURCE = r"""
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait(unsigned bar, unsigned parity) {
  asm volatile("{ .reg .pred done;\n"
               "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 10000000;\n"
               "@done bra READY;\nbra AGAIN;\nREADY: }" :: "r"(bar), "r"(parity) : "memory");
}
// Adds one to every element of a matrix, 16 rows of 32 words at a time.
extern "C" __global__ void kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out,
                                  int n) {
  __shared__ alignas(1024) unsigned tile[2][512];
  __shared__ alignas(8) unsigned long long full[2];
  const bool leader = threadIdx.x == 0;
  if (leader) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&in) : "memory");
    for (int i = 0; i < 2; i++)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&full[i])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  for (int t = 0; t < n; t++) {
    const int stage = t % 2, row = (blockIdx.x * n + t) * 16;
    const unsigned bar = shared_address(&full[stage]), at = shared_address(tile[stage]);
    if (leader) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;" :: "r"(bar) : "memory");
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                   " [%0], [%1, {%2, %3}], [%4];"
                   :: "r"(at), "l"(&in), "r"(0), "r"(row), "r"(bar) : "memory");
    }
    wait(bar, t / 2 % 2);
    for (int i = threadIdx.x; i < 512; i += blockDim.x) tile[stage][i] += 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (leader) {
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                   :: "l"(&out), "r"(0), "r"(row), "r"(at) : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    }
  }
  if (leader) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""


@cache
def compiled(source: str) -> str:
    options = ("--gpu-architecture=sm_90a", "-lineinfo")
    return compile_program(source, "tensor_copy.cu", "kernel", (), options).ptx.decode().rstrip("\0")


def run(source: str = SOURCE, **options: object) -> tuple[warpsan.Report, bool]:
    array = np.arange(4 * 5 * 16 * 32, dtype=np.int32).reshape(-1, 32)
    out = np.zeros_like(array)
    maps = [warpsan.TensorMap(each, (16, 32), "128B") for each in (array, out)]
    report = warpsan.launch(compiled(source), "kernel", 4, 96, [*maps, 5], **options)
    return report, bool((out == array + 1).all())


@pytest.mark.parametrize(("mode", "schedule"), MODES)
def test_the_pipeline_is_right_and_clean(mode, schedule):
    report, right = run(async_mode=mode, schedule=schedule)
    assert (report.hazards, right) == ([], True)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "", {"proxy"}),
        ("wait(bar, t / 2 % 2);", "wait(bar, 0);", {"race", "async"}),
        ("wait(bar, t / 2 % 2);", "", {"race", "async"}),
        ("_, [%0], 2048;", "_, [%0], 1024;", {"mbarrier"}),
        ("wait_group.read 1;", "wait_group.read 2;", {"async", "race"}),
        ("bulk.wait_group 0;", "bulk.wait_group 1;", {"async"}),
        ('"memory");\n    __syncthreads();', '"memory");\n', {"race"}),
    ],
)
def test_each_mistake_is_found_at_its_line_of_the_source(old, new, kinds):
    report, _ = run(replace_once(SOURCE, (old, new)))
    reported = [hazard for hazard in report.hazards if hazard.kind in kinds]
    assert reported
    assert reported[0].source.startswith("tensor_copy.cu:")
