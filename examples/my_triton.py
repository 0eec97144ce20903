"""Your own Triton kernel in the lab: the function and its launcher as you have them, and below them the description.

    sdpalab judge examples/my_triton.py

compiles it for an architecture without a GPU, runs its PTX on the simulator and compares the result with a float64
reference. A TritonKernel names the function, its grid and its arguments; your launcher stays as it is.
"""

import torch
import triton
import triton.language as tl

from sdpalab import Numerics, Problem, StaticLimits, TritonKernel

LOG2_E = 1.4426950408889634


@triton.jit
def attention_tile(
    q_ptr,  # [batch, heads, seq_q, HEAD_DIM]
    k_ptr,  # [batch, heads / group, seq_kv, HEAD_DIM]
    v_ptr,  # [batch, heads / group, seq_kv, HEAD_DIM]
    o_ptr,  # [batch, heads, seq_q, HEAD_DIM]
    seq_q,
    seq_kv,
    group,
    scale_log2,  # the scale of the scores, times log2(e): 2^x is one instruction
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program computes BLOCK_M query rows of one head, over tiles of BLOCK_N keys."""
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64)  # of all batches
    rows, dims = first + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    q_places = (head * seq_q + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_places, mask=rows[:, None] < seq_q, other=0.0)
    k_ptr += head // group * seq_kv * HEAD_DIM
    v_ptr += head // group * seq_kv * HEAD_DIM

    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, tl.minimum(first + BLOCK_M, seq_kv) if CAUSAL else seq_kv, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < seq_kv
        kv_places = keys[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + kv_places, mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + kv_places, mask=inside[:, None], other=0.0)
        visible = inside[None, :] & ((rows[:, None] >= keys[None, :]) if CAUSAL else True)
        scores = tl.where(visible, tl.dot(q, tl.trans(k)) * scale_log2, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v)
        row_max = new_max
    tl.store(o_ptr + q_places, (acc / row_sum[:, None]).to(o_ptr.dtype.element_ty), mask=rows[:, None] < seq_q)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool) -> torch.Tensor:
    """The launcher of your project, on contiguous tensors of a GPU. The lab does not call it."""
    out = torch.empty_like(q)
    batch, heads, seq_q, head_dim = q.shape
    grid = (triton.cdiv(seq_q, 64), batch * heads)
    lengths = (seq_q, k.shape[2], heads // k.shape[1])
    attention_tile[grid](q, k, v, out, *lengths, scale * LOG2_E, head_dim, causal, BLOCK_M=64, BLOCK_N=32)
    return out


def supports(problem: Problem) -> str | None:
    """None, or the reason why the problem is not supported."""
    if problem.head_dim not in (16, 32, 64, 128):
        return f"my_triton needs a head_dim of 16, 32, 64 or 128, not {problem.head_dim}"
    return None


MY_TRITON = TritonKernel(
    name="my_triton",
    fn=attention_tile,  # under @triton.autotune its .fn
    grid=lambda problem, config: (-(-problem.seq_q // config.int("BLOCK_M")), problem.batch * problem.heads),
    # One argument for each parameter that is no constexpr; HEAD_DIM and CAUSAL are filled in, knobs are the others.
    args=lambda problem, config: (
        *("q", "k", "v", "o"),
        *(problem.seq_q, problem.seq_kv, problem.group),
        problem.scale * LOG2_E,
    ),
    configs=[{"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4}, {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4}],
    supports=supports,
    numerics=Numerics(accumulate="float32", probabilities="problem"),  # the weights are rounded to V's type
    limits=StaticLimits(registers=255, shared_bytes=99 * 1024, reason="Triton chooses the registers"),
    idea="FlashAttention-2, a tile of queries for each program",
)
