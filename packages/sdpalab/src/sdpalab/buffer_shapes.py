"""Shapes and types of the buffers of a launch plan, by the problem's layout (:mod:`sdpalab.layout`)."""

from __future__ import annotations

from collections.abc import Sequence

from sdpalab.problem import Problem

__all__ = ["TAIL", "Shapes", "capacities", "ends", "input_buffers", "output_buffers"]

TAIL = 5
"""Rows of a packed array behind its last sequence."""

Shapes = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of arrays, by name."""


def input_buffers(problem: Problem) -> Shapes:
    """Shape and dtype of each input buffer of a problem, Q, K and V first."""
    layout, further = problem.layout_form, problem.array_shapes
    if layout.dense:
        known = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.v_shape}
        return {**{name: (shape, problem.dtype) for name, shape in known.items()}, **further}
    shapes = {name: (_rows(problem, name), problem.dtype) for name in ("q", "k", "v")}
    if layout.packed:
        shapes["cu_seqlens_q"] = ((problem.batch + 1,), "int32")
    if layout.page_size:
        pages = -(-problem.seq_kv // layout.page_size) + 1
        shapes |= {"block_table": ((problem.batch, pages), "int32"), "kv_lengths": ((problem.batch,), "int32")}
    else:
        shapes["cu_seqlens_k"] = ((problem.batch + 1,), "int32")
        shapes |= {"kv_lengths": ((problem.batch,), "int32")} if layout.gaps else {}
    for name, form in further.items():
        if name in ("do", "o", "lse"):
            shapes[name] = (_rows(problem, name), form[1])
        elif name != "kv_lengths" and (name != "q_lengths" or not layout.packed):
            shapes[name] = form
    return shapes


def output_buffers(problem: Problem) -> Shapes:
    """Shape and dtype of each output buffer of a problem, and of a forward problem's ``lse``."""
    layout = problem.layout_form
    if layout.dense:
        shapes: Shapes = {name: (shape, problem.dtype) for name, shape in problem.outputs.items()}
        return shapes if problem.backward else {**shapes, "lse": (problem.q_shape[:3], "float32")}
    names = (*problem.outputs, *(() if problem.backward else ("lse",)))
    return {name: (_rows(problem, name), "float32" if name == "lse" else problem.dtype) for name in names}


def _rows(problem: Problem, name: str) -> tuple[int, ...]:
    """Shape of the buffer of rows of that name."""
    layout = problem.layout_form
    if name in ("q", "dq", "o", "do", "lse"):
        columns = problem.head_dim if name in ("q", "dq") else problem.dim_v
        if layout.packed:
            total = sum(problem.q_lengths or ()) + TAIL
            return (problem.heads, total) if name == "lse" else (total, problem.heads, columns)
        batch, heads, seq = problem.q_shape[:3]
        return (batch, heads, seq) if name == "lse" else (batch, seq, heads, columns)
    columns = problem.head_dim if name in ("k", "dk") else problem.dim_v
    if layout.page_size:
        used = sum(-(-length // layout.page_size) for length in problem.kv_lengths or ())
        return (used + problem.batch + 2, layout.page_size, problem.kv_heads, columns)
    return (sum(capacities(problem)) + TAIL, problem.kv_heads, columns)


def capacities(problem: Problem) -> tuple[int, ...]:
    """Rows of packed K and V of each sequence: its keys, and 3 to 13 more with gaps."""
    gaps = problem.layout_form.gaps
    lengths = problem.kv_lengths or ()
    return tuple(length + gaps * (3 + 5 * number % 11) for number, length in enumerate(lengths))


def ends(rows: Sequence[int]) -> list[int]:
    """Cumulative sums from 0: ``cu_seqlens`` of sequences with these rows."""
    sums = [0]
    for each in rows:
        sums.append(sums[-1] + each)
    return sums
