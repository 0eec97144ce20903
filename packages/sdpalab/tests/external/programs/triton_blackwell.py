"""Triton's code for sm_100a of a product and of attention: ``compiled(NAME)`` is the PTX and its shared bytes."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(a, b, c, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """C = A B; A [M, K], B [K, BLOCK_N]."""
    m, n, k = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, K, BLOCK_K):
        x = tl.load(a + m[:, None] * K + (step + k)[None])
        y = tl.load(b + (step + k)[:, None] * BLOCK_N + n[None])
        sums = tl.dot(x, y, sums)
    tl.store(c + m[:, None] * BLOCK_N + n[None], sums.to(tl.float16))


@triton.jit
def attention(q, k, v, out, keys, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr):
    """One head: Q [seq, HEAD_DIM], K and V [keys, HEAD_DIM]; ``scale`` is in units of log2."""
    m, d, n = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    queries = tl.load(q + m[:, None] * HEAD_DIM + d[None])
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for step in range(0, keys, BLOCK_N):
        inside = step + n < keys
        block = (step + n)[:, None] * HEAD_DIM + d[None]
        x = tl.load(k + block, mask=inside[:, None], other=0.0)
        y = tl.load(v + block, mask=inside[:, None], other=0.0)
        scores = tl.where(inside[None], tl.dot(queries, x.T) * scale, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        weights, old = tl.exp2(scores - now[:, None]), tl.exp2(largest - now)
        total = total * old + tl.sum(weights, 1)
        sums = tl.dot(weights.to(tl.float16), y, sums * old[:, None])
        largest = now
    tl.store(out + m[:, None] * HEAD_DIM + d[None], (sums / total[:, None]).to(tl.float16))


KERNELS = {
    "matmul": (matmul, dict.fromkeys("abc", "*fp16") | {"K": "i32"}, {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}),
    "attention": (
        attention,
        dict.fromkeys(("q", "k", "v", "out"), "*fp16") | {"keys": "i32", "scale": "fp32"},
        {"BLOCK_M": 128, "BLOCK_N": 64, "HEAD_DIM": 64},
    ),
}


def compiled(name: str) -> tuple[str, int]:
    """PTX of a kernel, and its bytes of dynamic shared memory."""
    function, types, constants = KERNELS[name]
    aligned = {(k,): [["tt.divisibility", 16]] for k, each in enumerate(types.values()) if each == "*fp16"}
    source = ASTSource(function, types, constants, aligned)
    kernel = triton.compile(source, target=GPUTarget("cuda", 100, 32), options={"num_warps": 4, "num_stages": 2})
    return kernel.asm["ptx"], kernel.metadata.shared
