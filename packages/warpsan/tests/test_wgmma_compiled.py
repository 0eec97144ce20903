"""wgmma from the CUDA compiler: two overlapped products as in attention, O += half(S / 2) V, with S twice Q K^T."""

import re
from functools import cache

import numpy as np
import pytest

import warpsan
from warpsan.build.nvrtc import compile_program
from wgmma_kernels import accumulator_fragment, image, lay_out

SOURCE = r"""
typedef unsigned long long u64;
__device__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
__device__ unsigned pack(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#define TILE "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define OUT(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
__device__ void qk(float (&s)[8], u64 q, u64 k) {
  asm volatile("{ .reg .pred no; setp.ne.u32 no, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 " TILE ", %8, %9, no, 1, 1, 0, 0; }"
               : OUT(s) : "l"(q), "l"(k));
}
__device__ void pv(float (&o)[8], unsigned (&p)[4], u64 v) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 " TILE ", {%8, %9, %10, %11}, %12, 1, 1, 1, 1;"
               : OUT(o) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
}
extern "C" __global__ void kernel(const unsigned* image, float* out, u64 q, u64 k, u64 v, int tiles, int words) {
  extern __shared__ __align__(1024) unsigned smem[];
  for (int i = threadIdx.x; i < words; i += 128) smem[i] = image[i];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float o[8] = {}, s[8];
  fence();
  qk(s, q, k);
  commit();
  wait<0>();
#pragma unroll 1
  for (int j = 1; j <= tiles; ++j) {
    float next[8];
    unsigned p[4];
    for (int i = 0; i < 4; ++i) p[i] = pack(0.5f * s[2 * i], 0.5f * s[2 * i + 1]);
    fence();
    if (j < tiles) {
      qk(next, q, k + j * 128);
      commit();
    }
    pv(o, p, v + (j - 1) * 128);
    commit();
    if (j < tiles) wait<1>();
    for (int i = 0; i < 8; ++i) next[i] *= 2.0f;  // while the second product is in flight
    wait<0>();
    for (int i = 0; i < 8; ++i) s[i] = next[i];
  }
  for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = o[i];
}
"""
TILES = 3
BYTES = 40960


@cache
def compiled():
    return compile_program(SOURCE, "kernel.cu", "kernel", (), ("--gpu-architecture=sm_90a",)).ptx.decode().rstrip("\0")


def inputs():
    """Shared memory, descriptors of Q, K and V, and the exact result for P rounded to half precision."""
    rng = np.random.default_rng(4)
    q, *kv = (rng.normal(size=shape).astype(np.float16) for shape in ((64, 16), *[(16, 16)] * (2 * TILES)))
    places = [lay_out(q, 0, "none", True)]
    start = (int(places[0][0].max()) // 1024 + 1) * 1024
    places += [lay_out(kv[j], start + 2048 * j, "32B", j < TILES) for j in range(2 * TILES)]
    memory = image(BYTES, *zip([q, *kv], [addresses for addresses, _ in places], strict=True))
    exact = np.zeros((64, 16))
    for j in range(TILES):
        p = (q.astype(float) @ kv[j].astype(float).T * (1 if j else 0.5)).astype(np.float16)
        exact += p.astype(float) @ kv[TILES + j].astype(float).T
    return memory, [places[0][1], places[1][1], places[1 + TILES][1]], exact


def run(ptx, **options):
    memory, descriptors, exact = inputs()
    out = np.zeros((128, 8), np.float32)
    arguments = [memory, out, *descriptors, TILES, BYTES // 4]
    report = warpsan.launch(ptx, "kernel", 1, 128, arguments, dynamic_smem=BYTES, **options)
    return report, out, accumulator_fragment(exact)


@pytest.mark.sample(3)
@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("schedule", ["lockstep", "forward", "reverse", "random"])
def test_right_and_without_a_hazard(schedule, mode):
    report, out, exact = run(compiled(), schedule=schedule, async_mode=mode)
    # A product of Q and K next to a halfway point may round the other way: one unit of P in the last place.
    np.testing.assert_allclose(out, exact, rtol=1e-3, atol=2e-2)
    assert report.hazards == []


def test_every_deleted_synchronisation_is_reported():
    places = list(re.finditer(r"(wgmma\.(fence|commit_group|wait_group)|bar\.sync|fence\.proxy)[^;]*;", compiled()))
    assert len(places) == 10
    silent = []
    for place in places:
        ptx = compiled()[: place.start()] + ";" + compiled()[place.end() :]
        if not run(ptx)[0].hazards:
            silent.append(place.group())
    assert silent == []
