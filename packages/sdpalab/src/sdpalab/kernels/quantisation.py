"""Steps that quantise Q, K and V to e4m3 before a kernel (``include/tile/quantise.cuh``).

They are a translation unit of their own: their code does not depend on the kernel's knobs and masks, which have many
builds. A kernel with the step :func:`quantise_rows` declares ``Quantisation(rows=ROWS)``.
"""

from __future__ import annotations

from collections.abc import Iterable

from sdpalab.kernels.ladder import GRID_YZ_LIMIT, HEAD_DIMS, ladder_supports
from sdpalab.kernels.plan import Buffer, Launch, Module
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = [
    "SOURCE",
    "SOURCE_NAME",
    "over_row_blocks",
    "quantisation_buffers",
    "quantise_rows",
    "quantised_supports",
    "row_blocks",
]

SOURCE_NAME, SOURCE = "quantise.cu", '#include "tile/quantise.cuh"\n'
"""Translation unit of the steps."""


def quantised_supports(problem: Problem, kernel: str, head_dims: tuple[int, ...] = HEAD_DIMS) -> str | None:
    """None if a ladder kernel that quantises can compute ``problem``, otherwise the reason in one sentence."""
    lines = problem.heads + 2 * problem.kv_heads
    if problem.heads <= GRID_YZ_LIMIT < lines:
        return f"kernel {kernel} quantises heads + 2 * kv_heads in one grid, of at most {GRID_YZ_LIMIT}, not {lines}"
    return ladder_supports(problem, HALF_DTYPES, kernel, head_dims)


def row_blocks(problem: Problem, rows: int) -> tuple[int, int]:
    """Numbers of blocks of ``rows`` rows in a head of Q, and in one of K or V."""
    return -(-problem.seq_q // rows), -(-problem.seq_kv // rows)


def quantisation_buffers(problem: Problem, rows: int) -> tuple[Buffer, ...]:
    """Workspaces that the step fills, with a scale for each block of ``rows`` rows.

    ``q_bytes`` and ``k_bytes`` have the shapes of Q and K. ``v_bytes`` uint8 [B, Hkv, blocks * rows * D] has V in the
    layout given to :func:`quantise_rows`. ``q_scales`` is float32 [B, H, blocks], ``kv_scales`` float32
    [B, Hkv, blocks, 2] with the scale of K first, then that of V.
    """
    q_blocks, kv_blocks = row_blocks(problem, rows)
    kv_heads = problem.kv_shape[:2]
    return (
        Buffer("q_bytes", problem.q_shape, "uint8", "workspace"),
        Buffer("k_bytes", problem.kv_shape, "uint8", "workspace"),
        Buffer("v_bytes", (*kv_heads, kv_blocks * rows * problem.head_dim), "uint8", "workspace"),
        Buffer("q_scales", (*problem.q_shape[:2], q_blocks), "float32", "workspace"),
        Buffer("kv_scales", (*kv_heads, kv_blocks, 2), "float32", "workspace"),
    )


def quantise_rows(problem: Problem, rows: int, *, v_in_blocks: bool) -> Launch:
    """The quantisation step, one launch.

    Parameters
    ----------
    rows : int
        Rows that share a scale: a multiple of 32, and at most 32768 / head_dim.
    v_in_blocks : bool
        V as consecutive blocks [D, rows]; otherwise as V^T [D, blocks * rows], padded with zeros. Keys are in
        ``RowOrder::mma`` order in both.
    """
    kv_blocks = row_blocks(problem, rows)[1]
    pitch, stride = (rows, rows * problem.head_dim) if v_in_blocks else (kv_blocks * rows, rows)
    workspaces = (buffer.name for buffer in quantisation_buffers(problem, rows))
    return over_row_blocks(problem, rows, f"quantise_blocks<{rows}>", workspaces, (pitch, stride))


def over_row_blocks(
    problem: Problem, rows: int, entry: str, workspaces: Iterable[str], layout: tuple[int, ...] = ()
) -> Launch:
    """A launch with one block per ``rows`` rows of a head of Q, K or V: ``RowBlock`` on the device side.

    ``entry``, a template in ``tile/quantise.cuh``, takes Q, K, V, the ``workspaces``, both lengths, the number of query
    heads, and the ``layout``.
    """
    macros = {"HEAD_DIM": str(problem.head_dim), "DTYPE_BF16": str(int(problem.dtype == "bfloat16"))}
    return Launch(
        module=Module(SOURCE_NAME, SOURCE, entry, macros),
        grid=(max(row_blocks(problem, rows)), problem.heads + 2 * problem.kv_heads, problem.batch),
        block=(rows * problem.head_dim // 32, 1, 1),  # a thread has 4 rows x 8 columns
        args=("q", "k", "v", *workspaces, problem.seq_q, problem.seq_kv, problem.heads, *layout),
    )
