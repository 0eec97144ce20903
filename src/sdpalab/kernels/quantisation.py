"""The step that quantises Q, K and V to e4m3 before a kernel computes with them; the idea is told in ``quantise.cuh``.

A kernel that has this step declares ``Quantisation(rows=ROWS)``.
"""

from __future__ import annotations

from sdpalab.kernels.ladder import GRID_YZ_LIMIT
from sdpalab.kernels.plan import Buffer, Launch
from sdpalab.problem import Problem

__all__ = ["quantisation_buffers", "quantise_rows", "quantises"]


def quantises(problem: Problem, kernel: str) -> str | None:
    """None if the step's grid can be launched for ``problem``, otherwise the reason in one sentence."""
    lines = problem.heads + 2 * problem.kv_heads
    if lines <= GRID_YZ_LIMIT:
        return None
    return f"kernel {kernel} quantises heads + 2 * kv_heads in one grid, of at most {GRID_YZ_LIMIT}, not {lines}"


def quantisation_buffers(problem: Problem, rows: int) -> tuple[Buffer, ...]:
    """Workspaces that the step fills, with a scale for each block of ``rows`` rows.

    ``q_bytes`` and ``k_bytes`` are as Q and K. ``v_bytes`` uint8 [B, Hkv, blocks * rows * D] has V in the layout that
    :func:`quantise_rows` is asked for. ``q_scales`` is float32 [B, H, blocks], ``kv_scales`` float32
    [B, Hkv, blocks, 2], first the scale of K and then that of V.
    """
    q_blocks, kv_blocks = (-(-length // rows) for length in (problem.seq_q, problem.seq_kv))
    kv_heads = problem.kv_shape[:2]
    return (
        Buffer("q_bytes", problem.q_shape, "uint8", "workspace"),
        Buffer("k_bytes", problem.kv_shape, "uint8", "workspace"),
        Buffer("v_bytes", (*kv_heads, kv_blocks * rows * problem.head_dim), "uint8", "workspace"),
        Buffer("q_scales", (*problem.q_shape[:2], q_blocks), "float32", "workspace"),
        Buffer("kv_scales", (*kv_heads, kv_blocks, 2), "float32", "workspace"),
    )


def quantise_rows(problem: Problem, rows: int, *, v_in_blocks: bool) -> Launch:
    """The step, for a kernel whose source includes ``quantise.cuh``.

    Parameters
    ----------
    rows : int
        Rows that share a scale: a multiple of 32, and at most 32768 / head_dim.
    v_in_blocks : bool
        V as blocks [D, rows] one behind the other; otherwise as V^T [D, blocks * rows], padded with zeros. Keys are in
        ``RowOrder::mma`` in both.
    """
    q_blocks, kv_blocks = (-(-length // rows) for length in (problem.seq_q, problem.seq_kv))
    pitch, stride = (rows, rows * problem.head_dim) if v_in_blocks else (kv_blocks * rows, rows)
    workspaces = (buffer.name for buffer in quantisation_buffers(problem, rows))
    return Launch(
        entry=f"quantise_blocks<{rows}>",
        grid=(max(q_blocks, kv_blocks), problem.heads + 2 * problem.kv_heads, problem.batch),
        block=(rows * problem.head_dim // 32, 1, 1),
        args=("q", "k", "v", *workspaces, problem.seq_q, problem.seq_kv, problem.heads, pitch, stride),
    )
