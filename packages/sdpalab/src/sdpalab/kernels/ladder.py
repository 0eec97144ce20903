"""Common parameters, grid and size limits of the kernels of the ladder.

The device side of the same convention is ``include/schedule/head.cuh``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sdpalab.kernels.kernel import Config
from sdpalab.kernels.plan import Launch
from sdpalab.problem import Problem

__all__ = [
    "HEAD_DIMS",
    "ladder_launch",
    "ladder_supports",
    "reject_oversized",
    "reject_unlisted",
    "why_not_scale",
    "window_macros",
]

HEAD_DIMS = (32, 64, 128)
"""Head dimensions with builds of the ladder's kernels."""

GRID_YZ_LIMIT = 65535
"""Largest grid.y and grid.z (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""

MAX_SCALE = 3.4028234663852886e38 / math.log2(math.e)
"""Largest magnitude of a scale: its product with log2(e) is still a float32."""

INDEX_LIMIT = 2**31 - 2**16
"""Elements within a 32-bit index of one head; the margin covers the last, ragged tile."""


def ladder_supports(
    problem: Problem, dtypes: tuple[str, ...], kernel: str, head_dims: tuple[int, ...] = HEAD_DIMS
) -> str | None:
    """None if a kernel for these types and head dimensions can compute ``problem``, otherwise the reason."""
    if problem.head_dim not in head_dims:
        known = ", ".join(map(str, head_dims[:-1]))
        return f"kernel {kernel} supports head_dim {known} or {head_dims[-1]}, not {problem.head_dim}"
    if problem.dtype not in dtypes:
        return f"kernel {kernel} computes {' or '.join(dtypes)}, not {problem.dtype}"
    for name, size in (("heads", problem.heads), ("batch", problem.batch)):
        if size > GRID_YZ_LIMIT:
            return f"kernel {kernel} launches one block row per {name}, of which a grid has at most 65535, not {size}"
    for name, length in (("seq_q", problem.seq_q), ("seq_kv", problem.seq_kv)):
        if length * problem.head_dim > INDEX_LIMIT:
            return f"kernel {kernel} indexes a head with 32 bits, and {name}={length} times head_dim does not fit"
    return why_not_scale(problem, kernel)


def why_not_scale(problem: Problem, kernel: str) -> str | None:
    """None if the scale of ``problem`` fits a kernel that holds it in base 2, otherwise the reason."""
    if abs(problem.scale) <= MAX_SCALE:
        return None
    return f"kernel {kernel} holds scale * log2(e) as a float32, and scale={problem.scale:g} does not fit"


def reject_unlisted(config: Config, knobs: Mapping[str, Sequence[int | str]]) -> str | None:
    """None if ``config`` has one of the listed values for each of ``knobs``, otherwise the reason."""
    for name, allowed in knobs.items():
        if config.get(name) not in allowed:
            return f"{name} must be one of {', '.join(map(str, allowed))}, not {config.get(name)}"
    return None


def reject_oversized(shared_bytes: int, limit: int, config: Mapping[str, object]) -> str | None:
    """None if a block's ``shared_bytes`` are within the kernel's declared ``limit``, otherwise the reason."""
    if shared_bytes <= limit:
        return None
    return f"{config} needs {shared_bytes} bytes of shared memory, and the kernel's limit is {limit}"


def window_macros(problem: Problem) -> dict[str, int]:
    """Macros of a window; -1 for a side that hides nothing, since the edge of a wider window would overflow an int.
    Empty without a window."""
    longest = problem.seq_q + problem.seq_kv
    sides = zip(("WINDOW_LEFT", "WINDOW_RIGHT"), problem.window_size or (), strict=False)
    return {name: side if side < longest else -1 for name, side in sides}


def ladder_launch(problem: Problem, block_m: int, threads: int, shared_bytes: int) -> Launch:
    """One block per tile of ``block_m`` query rows, head and batch, with the ladder's common parameters.

    Parameters
    ----------
    threads : int
        Threads of a block.
    shared_bytes : int
        Dynamic shared memory of a block.
    """
    tiles = -(-problem.seq_q // block_m)
    return Launch(
        grid=(tiles, problem.heads, problem.batch),
        block=(threads, 1, 1),
        args=("q", "k", "v", "o", problem.seq_q, problem.seq_kv, problem.group, problem.scale, "lse"),
        dynamic_smem=shared_bytes,
    )
