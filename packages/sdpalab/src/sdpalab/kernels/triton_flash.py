"""The ``triton_flash`` kernel: FlashAttention-2 (Dao 2023) in Triton, in the usual form of users' kernels.

Idea: the compiler does the work of ``flash.cu``. One program has a tile of BLOCK_M queries and loops over tiles of
BLOCK_N keys with an online softmax; Triton generates tensor-core fragments, shared memory and its swizzle, cp.async
and barriers. The source contains the algorithm only. This file is a template: everything below ``grid`` describes the
kernel to the lab.

Static limits: the largest number of registers of a thread, and the shared memory available on every architecture from
sm_80 on.
Knobs: BLOCK_M, BLOCK_N, and Triton's own num_warps and num_stages (tiles of K and V that are loaded ahead).
"""

from __future__ import annotations

import triton
import triton.language as tl

from sdpalab.kernels.kernel import MISSION_LIMITS, Config
from sdpalab.kernels.ladder import ladder_supports, reject_oversized, reject_unlisted
from sdpalab.kernels.triton_kernel import TritonKernel
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["TRITON_FLASH", "smem_bytes", "triton_flash"]

HEAD_DIMS = (16, 32, 64, 128)
KNOBS = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (16, 32, 64), "num_warps": (2, 4, 8), "num_stages": (1, 2, 3, 4)}
MAX_SHARED_BYTES = 99 * 1024
"""Largest shared memory of a block on sm_86, sm_89 and sm_120; the other architectures allow more."""


@triton.jit  # type: ignore[untyped-decorator]
def triton_flash(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    o_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    seq_q: tl.tensor,
    seq_kv: tl.tensor,
    group: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
) -> None:
    """One tile of queries of one head: O = softmax(scale Q K^T) V, and the log-sum-exp of its rows.

    ``q``, ``o`` [B, H, Sq, D], ``k``, ``v`` [B, H / group, Skv, D] contiguous; ``lse`` float32 [B, H, Sq] or null.
    grid = (tiles of query rows, query heads, batch); ``group``: query heads that share one K/V head.
    """
    tile = tl.program_id(0)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile  # tiles with the most keys first
    # 64-bit between heads, since B*H*S*D may exceed 2^31; 32-bit within one.
    q_head = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    kv_head = tl.program_id(2).to(tl.int64) * (tl.num_programs(1) // group) + tl.program_id(1) // group
    q_ptr += q_head * seq_q * HEAD_DIM
    o_ptr += q_head * seq_q * HEAD_DIM
    k_ptr += kv_head * seq_kv * HEAD_DIM
    v_ptr += kv_head * seq_kv * HEAD_DIM

    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_offsets = rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=rows[:, None] < seq_q, other=0.0)
    # Q takes the sign of the scale: the largest score then belongs to the largest weight; a scale of 0 gives zeros.
    sign = tl.where(scale > 0, 1.0, tl.where(scale < 0, -1.0, 0.0))
    scale_log2 = tl.where(scale == 0, 1.0, tl.abs(scale) * 1.4426950408889634)  # log2(e)
    q = (q * sign).to(q.dtype)

    # Every row sees key 0, so after the first tile the maximum is finite and the sum at least 1.
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    end = tl.minimum((tile + 1) * BLOCK_M, seq_kv) if CAUSAL else seq_kv
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        in_range = keys < seq_kv
        k = tl.load(k_ptr + keys[None, :] * HEAD_DIM + dims[:, None], mask=in_range[None, :], other=0.0)
        visible = in_range[None, :] & (rows[:, None] >= keys[None, :]) if CAUSAL else in_range[None, :]
        scores = tl.where(visible, tl.dot(q, k), float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        # Subtraction before scaling makes the largest weight exactly 1, and large logits cannot overflow.
        p = tl.exp2((scores - new_max[:, None]) * scale_log2)
        rescale = tl.exp2((row_max - new_max) * scale_log2)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        row_max = new_max

        # Weights of 0 meet V past the end of the head, which must be zeros: 0 * NaN is NaN.
        v = tl.load(v_ptr + keys[:, None] * HEAD_DIM + dims[None, :], mask=in_range[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])

    o = acc / row_sum[:, None]
    tl.store(o_ptr + q_offsets, o.to(o_ptr.dtype.element_ty), mask=rows[:, None] < seq_q)
    if lse_ptr.to(tl.int64) != 0:
        lse = (row_max * scale_log2 + tl.log2(row_sum)) * 0.6931471805599453  # ln 2
        tl.store(lse_ptr + q_head * seq_q + rows, lse, mask=rows < seq_q)


def grid(problem: Problem, config: Config) -> tuple[int, int, int]:
    """One program for each tile of queries, head and batch."""
    return -(-problem.seq_q // config.int("BLOCK_M")), problem.heads, problem.batch


def arguments(problem: Problem, config: Config) -> tuple[str | int | float, ...]:
    """Arguments of the parameters that are not constants, in order."""
    return "q", "k", "v", "o", "lse", problem.seq_q, problem.seq_kv, problem.group, problem.scale


def smem_bytes(problem: Problem, config: Config) -> int:
    """Bytes of the shared-memory tiles of K and V, the least that Triton allocates.

    Triton adds space for P or, on sm_90, for Q; the compiled kernel has the total.
    """
    return config.int("num_stages") * 2 * config.int("BLOCK_N") * problem.head_dim * 2


def _supports(problem: Problem) -> str | None:
    return ladder_supports(problem, HALF_DTYPES, "triton_flash", HEAD_DIMS)


def _reject(problem: Problem, config: Config) -> str | None:
    return reject_unlisted(config, KNOBS) or reject_oversized(smem_bytes(problem, config), MAX_SHARED_BYTES, config)


TRITON_FLASH = TritonKernel(
    name="triton_flash",
    fn=triton_flash,
    grid=grid,
    args=arguments,
    configs=(
        {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3},
        {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2},
        {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 2, "num_stages": 2},
    ),
    supports=_supports,
    reject=_reject,
    limits=MISSION_LIMITS.but(
        registers=255,
        shared_bytes=MAX_SHARED_BYTES,
        reason="Triton chooses the registers; the kernel must not spill",
    ),
    knobs=KNOBS,
    lse=True,
    idea="FlashAttention-2 in Triton: fragments, shared memory, copies and barriers are the compiler's business",
)
