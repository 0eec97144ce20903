"""Your own CUDA kernel in the lab: this file, and the CUDA source beside it.

    sdpalab judge examples/my_kernel.py

compiles it, runs its PTX on the simulator and compares the result with a float64 reference. The package stays
unchanged: a CudaKernel names the source, its launch and the supported problems.
"""

from pathlib import Path

from sdpalab import Config, CudaKernel, Launch, Numerics, Problem, StaticLimits


def plan(problem: Problem, config: Config) -> Launch:
    """One block for each ``THREADS`` query rows, head and batch; ``args`` are the parameters of the entry, in order."""
    threads = config.int("THREADS")
    row_blocks = (problem.seq_q + threads - 1) // threads
    return Launch(
        grid=(row_blocks, problem.heads, problem.batch),
        block=(threads, 1, 1),
        args=("q", "k", "v", "o", problem.seq_q, problem.seq_kv, problem.group, problem.scale),
    )


def supports(problem: Problem) -> str | None:
    """None, or the reason why the problem is not supported."""
    if problem.dtype != "float16":
        return f"my_kernel computes float16, not {problem.dtype}"
    if problem.head_dim > 64:
        return f"my_kernel keeps a row of Q and of O in registers: head_dim is at most 64, not {problem.head_dim}"
    return None


MY_KERNEL = CudaKernel(
    name="my_kernel",
    source=Path("my_kernel.cu"),  # beside this file
    entry="one_thread_a_row",
    plan=plan,
    configs=[{"THREADS": 64}, {"THREADS": 128}],  # each knob becomes a macro; the first configuration is the default
    supports=supports,
    numerics=Numerics(accumulate="float32", probabilities="float32"),
    limits=StaticLimits(registers=200, reason="one thread holds a whole row of Q and of O"),
    idea="one thread computes one query row",
)
