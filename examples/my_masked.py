"""Your own CUDA kernel for masks, key lengths, windows, a soft cap, ALiBi and sinks: what ``features`` promises.

    sdpalab judge examples/my_masked.py --shape 2,4,60,32 --kv-lengths 60,31 --alibi-slopes --sinks

Each array of the problem beside Q, K and V is a buffer of its name; where a problem lacks it, the kernel gets a null
pointer. Windows and soft caps are macros. ``docs/judge.md`` has the formula and the macros.
"""

from pathlib import Path

from sdpalab import Config, CudaKernel, Launch, Numerics, Problem

ARRAYS = ("kv_lengths", "attn_mask", "alibi_slopes", "sinks")


def plan(problem: Problem, config: Config) -> Launch:
    """One warp for each query row, head and batch entry; its scores lie in shared memory."""
    return Launch(
        grid=(problem.seq_q, problem.heads, problem.batch),
        block=(32, 1, 1),
        args=("q", "k", "v", "o", *ARRAYS, problem.seq_kv, problem.group, problem.scale),
        dynamic_smem=4 * problem.seq_kv,
    )


def supports(problem: Problem) -> str | None:
    """None, or the reason why the problem is not supported."""
    if problem.dtype != "float16":
        return f"my_masked computes float16, not {problem.dtype}"
    if problem.seq_kv > 8192:
        return f"my_masked keeps a row of scores in shared memory: seq_kv is at most 8192, not {problem.seq_kv}"
    return None


MY_MASKED = CudaKernel(
    name="my_masked",
    source=Path("my_masked.cu"),
    entry="one_warp_a_row",
    plan=plan,
    supports=supports,
    features=("window_size", "softcap", *ARRAYS),
    numerics=Numerics(accumulate="float32", probabilities="float32"),
    idea="one warp computes one query row, with every mask and bias",
)
