"""The ``cublas`` kernel: two library matrix products with a softmax kernel between them. The idea: ``cublas.cu``."""

from __future__ import annotations

from pathlib import Path

from sdpalab.kernels.kernel import MISSION_LIMITS, Config, CudaKernel, Numerics
from sdpalab.kernels.ladder import reject_unlisted, why_not_scale
from sdpalab.kernels.plan import Buffer, Gemm, Launch, LaunchPlan
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["CUBLAS", "pitch", "workspace_bytes"]

KNOBS = {"BLOCK_M": (1, 2, 4, 8), "BLOCK_N": (256, 512, 1024, 2048, 4096), "NUM_WARPS": (4, 8)}
VEC = 4
MAX_ROUNDS = 8
MAX_WORKSPACE_BYTES = 4 << 30


def pitch(problem: Problem) -> int:
    """Elements from one row of S, and of P, to the next: a multiple of 8, so that rows of P begin at 16 bytes."""
    return -(-problem.seq_kv // 8) * 8


def workspace_bytes(problem: Problem) -> int:
    """Device memory for S in float32 and P in 16 bits."""
    return problem.batch * problem.heads * problem.seq_q * pitch(problem) * (4 + 2)


def _supports(problem: Problem) -> str | None:
    if problem.dtype not in HALF_DTYPES:
        return f"kernel cublas computes {' or '.join(HALF_DTYPES)}, not {problem.dtype}"
    unfit = why_not_scale(problem, "cublas")
    if unfit is not None:
        return unfit
    if workspace_bytes(problem) > MAX_WORKSPACE_BYTES:
        return (
            f"kernel cublas keeps all scores and weights in memory, which for {problem.label} are "
            f"{workspace_bytes(problem) / 2**30:.1f} GiB, and at most {MAX_WORKSPACE_BYTES >> 30} GiB are taken"
        )
    return None


def _reject(problem: Problem, config: Config) -> str | None:
    unlisted = reject_unlisted(config, KNOBS)
    if unlisted is not None:
        return unlisted
    block_m, block_n, warps = (config.int(name) for name in ("BLOCK_M", "BLOCK_N", "NUM_WARPS"))
    if warps % block_m:
        return f"BLOCK_M={block_m} rows cannot share NUM_WARPS={warps} warps evenly"
    round_keys = VEC * 32 * warps // block_m
    if not round_keys <= block_n <= MAX_ROUNDS * round_keys:
        return (
            f"BLOCK_N={block_n} keys are not 4 to 32 for each thread of a row, of which there are "
            f"{round_keys // VEC} with BLOCK_M={block_m} NUM_WARPS={warps}"
        )
    return None


def _plan(problem: Problem, config: Config) -> LaunchPlan:
    # Query heads that share a K/V head are contiguous: together they form one taller matrix.
    batch, m = problem.batch * problem.kv_heads, problem.group * problem.seq_q
    rows, padded = batch * m, pitch(problem)
    block_m = config.int("BLOCK_M")
    scores = Buffer("scores", (rows, padded), "float32", "workspace")
    weights = Buffer("weights", (rows, padded), problem.dtype, "workspace")
    softmax = Launch(
        grid=(-(-rows // block_m), 1, 1),
        block=(32 * config.int("NUM_WARPS"), 1, 1),
        args=("scores", "weights", rows, problem.seq_q, problem.seq_kv, padded, problem.scale, "lse"),
    )
    qk = Gemm("q", "k", "scores", batch=batch, m=m, n=problem.seq_kv, k=problem.head_dim, transpose_b=True, ldc=padded)
    pv = Gemm("weights", "v", "o", batch=batch, m=m, n=problem.head_dim, k=problem.seq_kv, lda=padded)
    return LaunchPlan((scores, weights), (qk, softmax, pv))


_DEFAULT = Config(BLOCK_M=8, BLOCK_N=512, NUM_WARPS=8)

CUBLAS = CudaKernel(
    name="cublas",
    source=Path("cublas.cu"),
    entry="softmax_rows",
    plan=_plan,
    configs=(
        _DEFAULT,
        _DEFAULT.but(BLOCK_N=1024),
        _DEFAULT.but(BLOCK_M=4, BLOCK_N=1024),
        _DEFAULT.but(BLOCK_M=1, BLOCK_N=1024, NUM_WARPS=4),
    ),
    supports=_supports,
    reject=_reject,
    numerics=Numerics(normalise="before"),
    limits=MISSION_LIMITS.but(
        registers=64,
        shared_bytes=1024,
        min_blocks_per_sm=4,
        reason="four blocks of eight warps fit the register file",
    ),
    knobs=KNOBS,
    lse=True,
    idea="unfused: a library's two matrix products, and a softmax between them that reads each score once",
)
