"""Attention kernels in the styles of public repositories, written for these tests: each as its author would leave it.

Each has the options that ``sdpalab new --from`` asks for, words of its questions without them, and a shape.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["STRANGERS", "Stranger"]


class Stranger(NamedTuple):
    """A file, the answers to its questions, words of the questions, and the options of ``judge``."""

    source: str
    answers: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()


ROW = """
  float best = -INFINITY, total = 0.f, acc[DIM];
  for (int c = 0; c < DIM; ++c) acc[c] = 0.f;
  for (int j = 0; j < KEYS; ++j) {
    float s = 0.f;
    for (int c = 0; c < DIM; ++c) s += LOAD(QROW[c]) * LOAD(KROW(j)[c]);
    s *= SCALE;
    const float up = fmaxf(best, s), old = __expf(best - up), p = __expf(s - up);
    for (int c = 0; c < DIM; ++c) acc[c] = acc[c] * old + p * LOAD(VROW(j)[c]);
    total = total * old + p;
    best = up;
  }
"""

MINIMAL = r"""
#include <torch/types.h>
#include <cuda.h>
#include <cuda_runtime.h>

__global__
void forward_kernel(const float* Q, const float* K, const float* V, const int N, const int d,
                    const int Tc, const int Tr, const int Bc, const int Br, const float softmax_scale,
                    float* l, float *m, float* O) {
    int tx = threadIdx.x;
    int bx = blockIdx.x; int by = blockIdx.y;  // batch and head index
    int qkv_offset = (bx * gridDim.y * N * d) + (by * N * d);
    int lm_offset = (bx * gridDim.y * N) + (by * N);
    extern __shared__ float sram[];
    int tile_size = Bc * d;
    float* Qi = sram;
    float* Kj = &sram[tile_size];
    float* Vj = &sram[tile_size * 2];
    float* S = &sram[tile_size * 3];
    for (int j = 0; j < Tc; j++) {
        for (int x = 0; x < d; x++) {
            Kj[(tx * d) + x] = K[qkv_offset + (tile_size * j) + (tx * d) + x];
            Vj[(tx * d) + x] = V[qkv_offset + (tile_size * j) + (tx * d) + x];
        }
        __syncthreads();
        for (int i = 0; i < Tr; i++)  {
            for (int x = 0; x < d; x++) Qi[(tx * d) + x] = Q[qkv_offset + (tile_size * i) + (tx * d) + x];
            float row_m_prev = m[lm_offset + (Br * i) + tx];
            float row_l_prev = l[lm_offset + (Br * i) + tx];
            float row_m = -INFINITY;
            for (int y = 0; y < Bc; y++) {
                float sum = 0;
                for (int x = 0; x < d; x++) sum += Qi[(tx * d) + x] * Kj[(y * d) + x];
                sum *= softmax_scale;
                S[(Bc * tx) + y] = sum;
                if (sum > row_m) row_m = sum;
            }
            float row_l = 0;
            for (int y = 0; y < Bc; y++) {
                S[(Bc * tx) + y] = __expf(S[(Bc * tx) + y] - row_m);
                row_l += S[(Bc * tx) + y];
            }
            float row_m_new = max(row_m_prev, row_m);
            float row_l_new = (__expf(row_m_prev - row_m_new) * row_l_prev) + (__expf(row_m - row_m_new) * row_l);
            for (int x = 0; x < d; x++) {
                float pv = 0;
                for (int y = 0; y < Bc; y++) pv += S[(Bc * tx) + y] * Vj[(y * d) + x];
                float before = j == 0 ? 0.f : O[qkv_offset + (tile_size * i) + (tx * d) + x];
                O[qkv_offset + (tile_size * i) + (tx * d) + x] = (1 / row_l_new)
                    * ((row_l_prev * __expf(row_m_prev - row_m_new) * before)
                    + (__expf(row_m - row_m_new) * pv));
            }
            m[lm_offset + (Br * i) + tx] = row_m_new;
            l[lm_offset + (Br * i) + tx] = row_l_new;
        }
        __syncthreads();
    }
}

torch::Tensor forward(torch::Tensor Q, torch::Tensor K, torch::Tensor V) {
    const int Bc = 32; const int Br = 32;
    const int B = Q.size(0); const int nh = Q.size(1);
    const int N = Q.size(2); const int d = Q.size(3);
    const int Tc = ceil((float) N / Bc); const int Tr = ceil((float) N / Br);
    const float softmax_scale = 1.0 / sqrt(d);
    auto O = torch::zeros_like(Q);
    auto l = torch::zeros({B, nh, N});
    auto m = torch::full({B, nh, N}, -INFINITY);
    const int sram_size = (3 * Bc * d * sizeof(float)) + (Bc * Br * sizeof(float));
    dim3 grid_dim(B, nh);
    dim3 block_dim(Bc);
    forward_kernel<<<grid_dim, block_dim, sram_size>>>(
        Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(), N, d, Tc, Tr, Bc, Br, softmax_scale,
        l.data_ptr<float>(), m.data_ptr<float>(), O.data_ptr<float>());
    return O;
}
"""

ONE_HEAD = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>

#define D 32
#define BLOCK_SIZE 64

// out = softmax(q k^T / sqrt(D)) v, all [n, D]
__global__ void attention_row(float *out, const float *q, const float *k, const float *v, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
BODY
  for (int c = 0; c < D; ++c) out[row * D + c] = acc[c] / total;
}

int main() {
  int n = 1000;
  float *d_q, *d_k, *d_v, *d_out;
  cudaMalloc(&d_q, n * D * sizeof(float));
  cudaMalloc(&d_k, n * D * sizeof(float));
  cudaMalloc(&d_v, n * D * sizeof(float));
  cudaMalloc(&d_out, n * D * sizeof(float));
  attention_row<<<(n + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>(d_out, d_q, d_k, d_v, n);
  cudaDeviceSynchronize();
  printf("done\n");
}
""".replace(
    "BODY",
    ROW.replace("DIM", "D")
    .replace("KEYS", "n")
    .replace("LOAD", "")
    .replace("QROW", "(q + row * D)")
    .replace("KROW(j)", "(k + j * D)")
    .replace("VROW(j)", "(v + j * D)")
    .replace("SCALE", "rsqrtf((float)D)"),
)

BSHD = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_fp16.h>

namespace mine {

template <int kHeadDim, int kThreads>
__global__ void attn_fwd(const half *__restrict__ q, const half *__restrict__ k, const half *__restrict__ v,
                         half *__restrict__ out, int batch, int seqlen, int nheads, float sm_scale) {
  const int row = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y, b = blockIdx.z;
  if (row >= seqlen) return;
  const size_t pitch = (size_t)nheads * kHeadDim, base = (size_t)b * seqlen * pitch + (size_t)head * kHeadDim;
BODY
  for (int c = 0; c < kHeadDim; ++c) out[base + row * pitch + c] = __float2half(acc[c] / total);
}

}  // namespace mine

at::Tensor run(at::Tensor q, at::Tensor k, at::Tensor v) {
  auto out = at::empty_like(q);  // [batch, seqlen, nheads, head_dim]
  const int batch = q.size(0), seqlen = q.size(1), nheads = q.size(2);
  constexpr int kThreads = 64;
  dim3 grid((seqlen + kThreads - 1) / kThreads, nheads, batch);
  auto stream = at::cuda::getCurrentCUDAStream().stream();
  mine::attn_fwd<32, kThreads><<<grid, kThreads, 0, stream>>>(
      (const half *)q.data_ptr(), (const half *)k.data_ptr(), (const half *)v.data_ptr(), (half *)out.data_ptr(),
      batch, seqlen, nheads, 1.f / sqrtf(32.f));
  return out;
}
""".replace(
    "BODY",
    ROW.replace("DIM", "kHeadDim")
    .replace("KEYS", "seqlen")
    .replace("LOAD", "__half2float")
    .replace("QROW", "(q + base + row * pitch)")
    .replace("KROW(j)", "(k + base + j * pitch)")
    .replace("VROW(j)", "(v + base + j * pitch)")
    .replace("SCALE", "sm_scale"),
)

PACKED = r"""
// inp is (B, T, 3, NH, HS) of Q, K and V; out is (B, T, NH, HS)
__global__ void fused_attention(float* out, const float* inp, int B, int T, int NH, int HS) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= B * T * NH) return;
    int h = idx % NH, t = idx / NH % T, b = idx / (NH * T);
    int C = NH * HS;
    const float* q = inp + (b * T + t) * 3 * C + h * HS;
    const float scale = 1.0f / sqrtf(HS);
    float best = -INFINITY, total = 0.0f, acc[64];
    for (int c = 0; c < HS; c++) acc[c] = 0.0f;
    for (int t2 = 0; t2 <= t; t2++) {
        const float* k = inp + (b * T + t2) * 3 * C + C + h * HS;
        const float* v = inp + (b * T + t2) * 3 * C + 2 * C + h * HS;
        float s = 0.0f;
        for (int c = 0; c < HS; c++) s += q[c] * k[c];
        s *= scale;
        float up = fmaxf(best, s), old = expf(best - up), p = expf(s - up);
        for (int c = 0; c < HS; c++) acc[c] = acc[c] * old + p * v[c];
        total = total * old + p;
        best = up;
    }
    for (int c = 0; c < HS; c++) out[(b * T + t) * C + h * HS + c] = acc[c] / total;
}

void attention_forward(float* out, const float* inp, int B, int T, int C, int NH) {
    int HS = C / NH;
    const int block_size = 128;
    int total_threads = B * T * NH;
    fused_attention<<<(total_threads + block_size - 1) / block_size, block_size>>>(out, inp, B, T, NH, HS);
}
"""

CROSS = r"""
#include <cuda_runtime.h>
#include <iostream>

constexpr int WARP = 32;
constexpr int head_dim = 64;
constexpr float kScale = 0.125f;
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

// One warp a row of Q [M, 64]; K and V are [N, 64]; one grid row for each pair of batch and head.
__global__ void cross_attention(const float* query, const float* key, const float* value, float* output, int M, int N,
                                bool causal) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
  if (row >= M) return;
  const float *q = query + ((long)blockIdx.y * M + row) * head_dim, *k = key + (long)blockIdx.y * N * head_dim,
              *v = value + (long)blockIdx.y * N * head_dim;
  float best = -INFINITY, total = 0.f, a0 = 0.f, a1 = 0.f;
  for (int j = 0; j < N && !(causal && j > row); ++j) {
    float s = q[lane] * k[j * head_dim + lane] + q[lane + WARP] * k[j * head_dim + lane + WARP];
    for (int step = WARP / 2; step > 0; step >>= 1) s += __shfl_xor_sync(0xffffffff, s, step);
    s *= kScale;
    const float up = fmaxf(best, s), old = __expf(best - up), p = __expf(s - up);
    a0 = a0 * old + p * v[j * head_dim + lane];
    a1 = a1 * old + p * v[j * head_dim + lane + WARP];
    total = total * old + p;
    best = up;
  }
  float* out = output + ((long)blockIdx.y * M + row) * head_dim;
  out[lane] = a0 / total;
  out[lane + WARP] = a1 / total;
}

void run(const float* q, const float* k, const float* v, float* o, int batch_heads, int M, int N, bool causal,
         cudaStream_t stream) {
  dim3 block(WARP, 4);
  dim3 grid(CEIL_DIV(M, 4), batch_heads);
  cross_attention<<<grid, block, 0, stream>>>(q, k, v, o, M, N, causal);
}
"""

GROUPED = r"""
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <vector>

using bf16 = __nv_bfloat16;

template <int HEAD_SIZE>
__global__ void gqa_attention(const bf16 *__restrict__ q_ptr, const bf16 *__restrict__ k_ptr,
                              const bf16 *__restrict__ v_ptr, bf16 *__restrict__ o_ptr, const int n_heads,
                              const int n_kv_heads, const int q_len, const int kv_len, const float scale,
                              const int is_causal) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y % n_heads, b = blockIdx.y / n_heads;
  if (row >= q_len) return;
  const long q_at = (((long)b * n_heads + head) * q_len + row) * HEAD_SIZE;
  const long kv_at = ((long)b * n_kv_heads + head / (n_heads / n_kv_heads)) * kv_len * HEAD_SIZE;
  const int keys = is_causal ? min(kv_len, row + 1) : kv_len;
BODY
  for (int c = 0; c < HEAD_SIZE; ++c) o_ptr[q_at + c] = __float2bfloat16(acc[c] / total);
}
""".replace(
    "BODY",
    ROW.replace("DIM", "HEAD_SIZE")
    .replace("KEYS", "keys")
    .replace("LOAD", "__bfloat162float")
    .replace("QROW", "(q_ptr + q_at)")
    .replace("KROW(j)", "(k_ptr + kv_at + j * HEAD_SIZE)")
    .replace("VROW(j)", "(v_ptr + kv_at + j * HEAD_SIZE)")
    .replace("SCALE", "scale"),
)

STRIDED = r"""
#include <cuda_fp16.h>
#define HD 32

struct Launcher { int threads = 64; };

extern "C" __global__ void __launch_bounds__(64)
strided_attention(__half* Out, const __half* Q, const __half* K, const __half* V, int stride_qb, int stride_qh,
                  int stride_qs, int stride_kb, int stride_kh, int stride_ks, int stride_vb, int stride_vh,
                  int stride_vs, int stride_ob, int stride_oh, int stride_os, int num_heads, int seqlen_q, int seqlen_k,
                  float softmax_scale_log2) {
  const int row = blockIdx.x * 64 + threadIdx.x, b = blockIdx.y / num_heads, h = blockIdx.y % num_heads;
  if (row >= seqlen_q) return;
  const __half *q = Q + b * stride_qb + h * stride_qh + row * stride_qs, *k = K + b * stride_kb + h * stride_kh,
               *v = V + b * stride_vb + h * stride_vh;
  float acc[HD] = {0.f}, best = -INFINITY, total = 0.f;
  for (int j = 0; j < seqlen_k; ++j) {
    float s = 0.f;
    for (int c = 0; c < HD; ++c) s += __half2float(q[c]) * __half2float(k[j * stride_ks + c]);
    s *= softmax_scale_log2;
    const float up = fmaxf(best, s), old = exp2f(best - up), p = exp2f(s - up);
    for (int c = 0; c < HD; ++c) acc[c] = acc[c] * old + p * __half2float(v[j * stride_vs + c]);
    total = total * old + p;
    best = up;
  }
  for (int c = 0; c < HD; ++c)
    Out[b * stride_ob + h * stride_oh + row * stride_os + c] = __float2half(acc[c] / total);
}
"""

TRANSPOSED_K = r"""
#include <cuda_runtime.h>
#include <cstdint>
#define TILE 32
#define HEAD_DIM 32

/* q, v, o: [batch * heads, seq, HEAD_DIM]; k: [batch * heads, HEAD_DIM, seq]; seq is a multiple of TILE */
template <typename scalar_t>
__global__ void flash_kt(const scalar_t *__restrict__ q, const scalar_t *__restrict__ k,
                         const scalar_t *__restrict__ v, scalar_t *__restrict__ o, const int64_t seq,
                         const float scale) {
  __shared__ float ks[HEAD_DIM][TILE], vs[TILE][HEAD_DIM];
  const int64_t base = blockIdx.y * seq * HEAD_DIM, row = blockIdx.x * TILE + threadIdx.x;
  float qr[HEAD_DIM], acc[HEAD_DIM], best = -INFINITY, total = 0.f;
  for (int c = 0; c < HEAD_DIM; ++c) qr[c] = q[base + row * HEAD_DIM + c], acc[c] = 0.f;
  for (int64_t t = 0; t < seq; t += TILE) {
    for (int c = 0; c < HEAD_DIM; ++c) {
      ks[c][threadIdx.x] = k[base + c * seq + t + threadIdx.x];
      vs[threadIdx.x][c] = v[base + (t + threadIdx.x) * HEAD_DIM + c];
    }
    __syncthreads();
    for (int j = 0; j < TILE; ++j) {
      float s = 0.f;
      for (int c = 0; c < HEAD_DIM; ++c) s += qr[c] * ks[c][j];
      s *= scale;
      const float up = fmaxf(best, s), old = __expf(best - up), p = __expf(s - up);
      for (int c = 0; c < HEAD_DIM; ++c) acc[c] = acc[c] * old + p * vs[j][c];
      total = total * old + p;
      best = up;
    }
    __syncthreads();
  }
  for (int c = 0; c < HEAD_DIM; ++c) o[base + row * HEAD_DIM + c] = acc[c] / total;
}

template <typename scalar_t>
void launch(const scalar_t *q, const scalar_t *k, const scalar_t *v, scalar_t *o, int batch, int heads, int seq,
            float scale) {
  flash_kt<scalar_t><<<dim3(seq / TILE, batch * heads), TILE>>>(q, k, v, o, seq, scale);
}
template void launch<float>(const float *, const float *, const float *, float *, int, int, int, float);
"""

STRANGERS = {
    "minimal": Stranger(
        MINIMAL,
        (
            *("--layout", "bhsd", "--buffer", "l=0", "--buffer", "m=-inf", "--multiple", "32"),
            *("--arg", "Tc=problem.seq_q // 32", "--arg", "Tr=problem.seq_q // 32", "--arg", "Bc=32", "--arg", "Br=32"),
        ),
        ("the order of Q, K, V and O", "the value of const int Tc", "the array float* l", "--buffer m=0"),
        ("--shape", "1,2,64,32", "--dtype", "float32"),
    ),
    "one_head": Stranger(ONE_HEAD, (), (), ("--shape", "1,1,70,32", "--dtype", "float32")),
    "bshd": Stranger(BSHD, ("--layout", "bshd"), ("the order of Q, K, V and O",), ("--shape", "2,2,70,32")),
    "packed": Stranger(
        PACKED,
        (
            *("--layout", "qkv_bs3hd", "--arg", 'inp="qkv"', "--mask", "causal", "--head-dim", "32"),
            *(
                "--grid",
                "(-(-problem.batch * problem.seq_q * problem.heads // 128), 1, 1)",
                "--entry",
                "fused_attention",
            ),
        ),
        ("the array const float* inp",),
        ("--shape", "2,2,40,32", "--dtype", "float32", "--causal"),
    ),
    "cross": Stranger(
        CROSS,
        ("--layout", "bhsd", "--arg", "causal=int(problem.causal)"),
        ("the order of Q, K, V and O",),
        ("--shape", "1,2,40,64", "--dtype", "float32"),
    ),
    "grouped": Stranger(
        GROUPED,
        (
            *("--entry", "gqa_attention<32>", "--layout", "bhsd", "--block", "(64, 1, 1)"),
            *("--grid", "(-(-problem.seq_q // 64), problem.batch * problem.heads, 1)"),
        ),
        ("the template arguments HEAD_SIZE", "the grid of its launch", "the block of its launch"),
        ("--shape", "1,4,40,32", "--kv-heads", "2", "--dtype", "bfloat16"),
    ),
    "strided": Stranger(
        STRIDED,
        ("--grid", "(-(-problem.seq_q // 64), problem.batch * problem.heads, 1)", "--block", "(64, 1, 1)"),
        ("the grid of its launch",),
        ("--shape", "2,2,70,32"),
    ),
    "transposed_k": Stranger(
        TRANSPOSED_K,
        ("--layout", "bhds_k", "--entry", "flash_kt<float>", "--multiple", "32"),
        ("the order of Q, K, V and O",),
        ("--shape", "1,2,64,32", "--dtype", "float32"),
    ),
}
