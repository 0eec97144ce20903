"""FlashAttention-2 in Triton, as its users write it: code for the simulator from another compiler.

It is also a user's file: ``sdpalab judge packages/sdpalab/tests/sim/triton_attention.py``.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from sdpalab import Config, Problem, StaticLimits, TritonKernel


@triton.jit
def attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    heads_per_kv,
    seq_q,
    seq_kv,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """O = softmax(scale Q K^T) V for one tile of BLOCK_M queries of one head; Q, K, V, O are contiguous [BH, S, D]."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // heads_per_kv
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    q_offsets = head * seq_q * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=rows[:, None] < seq_q, other=0.0)
    k_base = k_ptr + kv_head * seq_kv * HEAD_DIM
    v_base = v_ptr + kv_head * seq_kv * HEAD_DIM
    running_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    end = tl.minimum((tile + 1) * BLOCK_M, seq_kv) if CAUSAL else seq_kv
    for start in range(0, end, BLOCK_N):
        keys = start + columns
        k = tl.load(k_base + keys[None, :] * HEAD_DIM + dims[:, None], mask=keys[None, :] < seq_kv, other=0.0)
        scores = tl.dot(q, k) * scale_log2
        visible = keys[None, :] < seq_kv
        if CAUSAL:
            visible = visible & (rows[:, None] >= keys[None, :])
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        p = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + tl.sum(p, 1)
        v = tl.load(v_base + keys[:, None] * HEAD_DIM + dims[None, :], mask=keys[:, None] < seq_kv, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        running_max = new_max
    o = acc / running_sum[:, None]
    tl.store(o_ptr + q_offsets, o.to(o_ptr.dtype.element_ty), mask=rows[:, None] < seq_q)


def grid(problem: Problem, config: Config) -> tuple[int, int]:
    """One program for each tile of queries of each head."""
    return triton.cdiv(problem.seq_q, config.int("BLOCK_M")), problem.batch * problem.heads


def arguments(problem: Problem, config: Config) -> tuple[str | int | float, ...]:
    """The parameters that are not constants; log2(e) is in the scale, since the kernel takes powers of two."""
    return "q", "k", "v", "o", problem.group, problem.seq_q, problem.seq_kv, problem.scale * math.log2(math.e)


KERNEL = TritonKernel(
    name="triton_attention",
    fn=attention,
    grid=grid,
    args=arguments,
    configs=({"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2},),
    supports=lambda problem: None if problem.head_dim in (16, 32, 64, 128) else "head_dim must be 16, 32, 64 or 128",
    limits=StaticLimits(registers=255, reason="Triton decides how many registers it takes"),
    idea="FlashAttention-2 in forty lines of Triton",
)
