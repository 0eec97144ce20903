"""Your own kernel with CUTLASS's CuTe: the source beside this file, and where the headers of CUTLASS are.

    pip install --no-deps nvidia-cutlass        # the headers alone
    sdpalab judge examples/my_cute.py --shape 1,2,64,64

or, with a checkout of NVIDIA/cutlass, sdpalab judge examples/my_cute.py --shape 1,2,64,64 --include CHECKOUT/include.
The first build reads some 700 headers and takes about 15 s of CPU.

Any header library goes the same way: its folder in include_dirs, or --include DIR on the command line. The standard
headers (<cstdint>, <limits>, <cuda/barrier>, cooperative_groups.h) need no folder.
"""

import importlib.util
from pathlib import Path

from sdpalab import CudaKernel, Launch, Numerics, Problem, StaticLimits

ROWS = 64
"""Query rows of a block, 16 for each of its 4 warps."""


def cutlass_headers() -> list[Path]:
    """The include folder of the package nvidia-cutlass; none where it is not installed."""
    package = importlib.util.find_spec("cutlass_library")
    roots = package.submodule_search_locations if package else None
    return [Path(root) / "source" / "include" for root in roots or ()]


def supports(problem: Problem) -> str | None:
    """None, or the reason why the problem is not supported."""
    if problem.dtype != "float16" or problem.head_dim != 64:
        return f"my_cute computes float16 with head_dim 64, not {problem.dtype} with {problem.head_dim}"
    return None


MY_CUTE = CudaKernel(
    name="my_cute",
    source=Path("my_cute.cu"),
    entry="cute_attention",
    plan=lambda problem, config: Launch(
        grid=(-(-problem.seq_q // ROWS), problem.heads, problem.batch),
        block=(128, 1, 1),
        args=("q", "k", "v", "o", problem.seq_q, problem.seq_kv, problem.group, problem.scale),
    ),
    include_dirs=cutlass_headers(),
    options=["-default-device"],  # CUTLASS has constexpr functions without __device__
    supports=supports,
    numerics=Numerics(accumulate="float32", probabilities="problem"),
    limits=StaticLimits(registers=255, reason="O, the scores and the fragments of Q are in registers"),
    idea="FlashAttention-2, with CuTe's layouts, copies and tiled mma",
)
