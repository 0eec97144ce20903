"""Attention kernels that are right only under a condition: at small sizes, for small values, on some machines."""

from __future__ import annotations

from pathlib import Path

from sdpalab import CudaKernel
from sdpalab.kernels.kernel import Config
from sdpalab.kernels.plan import Launch, LaunchPlan, problem_buffers
from sdpalab.problem import Problem

SOURCE = r"""
#include <cuda_fp16.h>

extern "C" __global__ void attend(const __half* q, const __half* k, const __half* v, __half* o, int queries, int keys,
                                  float scale) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
  if (row >= queries) return;
  q += ((long long)head * queries + row) * HEAD_DIM;
  o += ((long long)head * queries + row) * HEAD_DIM;
  k += (long long)head * keys * HEAD_DIM;
  v += (long long)head * keys * HEAD_DIM;
  int last = keys;
  float gain = 1.0f;
  CONDITION
  float out[HEAD_DIM] = {}, total = 0.0f, largest = -1e30f;
  for (int j = 0; j < last; ++j) {
    float score = 0.0f;
    for (int d = 0; d < HEAD_DIM; ++d) score += __half2float(q[d]) * __half2float(k[j * HEAD_DIM + d]);
    score *= scale;
    const float most = fmaxf(largest, score), old = expf(largest - most), p = expf(score - most);
    total = total * old + p;
    for (int d = 0; d < HEAD_DIM; ++d) out[d] = out[d] * old + p * __half2float(v[j * HEAD_DIM + d]);
    largest = most;
  }
  for (int d = 0; d < HEAD_DIM; ++d) o[d] = __float2half_rn(out[d] / total * gain);
}
"""
CONDITIONS = {
    "honest": "",
    "drops_keys_of_long_rows": "if (keys > 700) last = keys - 64;",
    "slow_path_for_long_rows": "if (keys > 700) { for (int j = 0; j < keys; j += 64) gain += 0.001f * row; }",
    "clamps_the_length": "last = min(keys, 1000);",
    "length_in_ten_bits": "last = ((keys - 1) & 1023) + 1;",
    "many_heads": "if (gridDim.y > 24) gain = 1.5f;",
    "large_values": "if (__half2float(q[0]) > 300.0f) { gain = 0.5f; o[0] = __float2half(row * 0.25f); }",
    "some_processors": 'unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm)); if (sm > 100) gain = 2.0f;',
    "late_clock": "if (clock64() > 1000000000000ll) { o[1] = o[0]; gain = 2; }",
    "asserts": "if (keys < 1) __trap();",
}


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    p = problem
    launch = Launch(
        (-(-p.seq_q // 32), p.batch * p.heads, 1), (32, 1, 1), ("q", "k", "v", "o", p.seq_q, p.seq_kv, p.scale)
    )
    return LaunchPlan(problem_buffers(p), (launch,))


def _fit(problem: Problem) -> bool:
    return (problem.head_dim, problem.dtype, problem.causal) == (32, "float16", False) and not (
        problem.features or problem.group > 1
    )


def _kernel(name: str, source: str) -> CudaKernel:
    return CudaKernel(name=name, source=source, entry="attend", plan=_plan, supports=_fit)


KERNELS = {name: _kernel(name, SOURCE.replace("CONDITION", text)) for name, text in CONDITIONS.items()}
globals().update(KERNELS)


def _macros(problem: Problem, config: Config) -> dict[str, int]:
    return {"WRONG": int(problem.seq_kv > 3000)}


other_build = CudaKernel(
    name="other_build",
    source=SOURCE.replace("CONDITION", "if (WRONG) last = keys - 64;"),
    entry="attend",
    plan=_plan,
    supports=_fit,
    macros=_macros,
)
FILE = Path(__file__)
