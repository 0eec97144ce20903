"""Logical arrays of a problem as the buffers of its layout, and back (:mod:`sdpalab.layout`).

Each row of a buffer that belongs to no sequence is padding: NaN, or the values of
:func:`sdpalab.inputs.padding.loud_padding`. Entries of a block table behind the last page of a sequence are -1, or with
loud padding a page that no sequence uses.

The pages of a cache are shuffled, and pages without an owner lie between them; full pages with the same keys and values
are one page, which several sequences share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sdpalab.buffer_shapes import capacities, ends, input_buffers
from sdpalab.problem import Problem

__all__ = ["first_padding_row", "pack", "unpack"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_QUERIES = ("q", "dq", "o", "do", "lse")
_KEYS = ("k", "v", "dk", "dv")


def pack(problem: Problem, arrays: Mapping[str, Array], *, loud: bool = False) -> dict[str, Array]:
    """The input buffers of a problem from its logical arrays; with ``loud``, with loud padding.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        As :attr:`sdpalab.inputs.Inputs.arrays`. In a dense layout they are the buffers.
    """
    layout = problem.layout_form
    if layout.dense:
        return dict(arrays)
    indices: dict[str, Array] = {}
    if layout.page_size:
        indices["block_table"] = _block_table(problem, arrays, loud=loud)
    if layout.packed:
        indices["cu_seqlens_q"] = np.array(ends(problem.q_lengths or ()), np.int32)
        indices["cu_seqlens_k"] = np.array(ends(capacities(problem)), np.int32)
    buffers: dict[str, Array] = {}
    for name, (shape, _) in input_buffers(problem).items():
        if name in (*_QUERIES, *_KEYS):
            buffers[name] = _scattered(problem, name, arrays[name], shape, indices.get("block_table"), loud=loud)
        else:
            buffers[name] = indices[name] if name in indices else arrays[name]
    return buffers


def unpack(problem: Problem, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The logical outputs of a problem from its output buffers; padding is NaN."""
    if problem.layout_form.dense:
        return dict(outputs)
    shapes = {**problem.outputs, "lse": problem.q_shape[:3]}
    logical: dict[str, Array] = {}
    for name, buffer in outputs.items():
        flat = _rows_of_lse(buffer) if name == "lse" else buffer.reshape(-1, *buffer.shape[-2:])
        logical[name] = np.full(shapes[name], math.nan, buffer.dtype)
        for entry, places in enumerate(_places(problem, name)):
            logical[name][entry, :, : len(places)] = flat[places].swapaxes(0, 1)
    return logical


def first_padding_row(problem: Problem, arrays: Mapping[str, Array], entry: int) -> str:
    """The first row of K and V behind the keys of a batch entry that holds padding, in words.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The logical arrays.
    """
    layout, lengths = problem.layout_form, problem.kv_lengths or ()
    if layout.dense:
        return f"key {lengths[entry]} of batch {entry}"
    if not layout.page_size:
        if not layout.gaps:
            return f"row {sum(lengths)} of k, behind the end of the last sequence,"
        return f"row {ends(capacities(problem))[entry] + lengths[entry]} of k, behind the end of sequence {entry},"
    number, row = divmod(lengths[entry], layout.page_size)
    if not row:
        return f"entry {number} of row {entry} of the block table, behind the last page of sequence {entry},"
    page = _block_table(problem, arrays, loud=False)[entry, number]
    return f"row {row} of page {page}, behind the end of sequence {entry},"


def _places(problem: Problem, name: str, table: Array | None = None) -> list[Rows]:
    """Rows of the buffer ``name`` that hold the valid rows of each batch entry, in order."""
    layout, batch = problem.layout_form, problem.batch
    if name in _QUERIES:
        lengths = problem.q_lengths or (problem.seq_q,) * batch
        firsts = ends(lengths) if layout.packed else [problem.seq_q * entry for entry in range(batch)]
    else:
        lengths = problem.kv_lengths or (problem.seq_kv,) * batch
        firsts = [] if table is not None else ends(capacities(problem))
    positions = [np.arange(length) for length in lengths]
    if table is None or name in _QUERIES:
        return [each + first for each, first in zip(positions, firsts, strict=False)]
    size = layout.page_size
    return [own[each // size].astype(np.int64) * size + each % size for each, own in zip(positions, table, strict=True)]


def _scattered(
    problem: Problem, name: str, logical: Array, shape: tuple[int, ...], table: Array | None, *, loud: bool
) -> Array:
    """A buffer whose rows of sequences hold the logical array [B, H, S] or [B, H, S, D], and whose others padding."""
    heads, columns = logical.shape[1], logical.shape[3:]
    total = math.prod(shape) // heads // math.prod(columns)
    flat = np.full((total, heads, *columns), math.inf if loud else math.nan, logical.dtype)
    if loud and name == "k":
        flat[...] = 0
        flat[np.arange(total), :, np.arange(total) % columns[0]] = math.inf
    for entry, places in enumerate(_places(problem, name, table)):
        flat[places] = logical[entry, :, : len(places)].swapaxes(0, 1)
    if name != "lse":
        return flat.reshape(shape)
    return np.ascontiguousarray(flat.T if len(shape) == 2 else flat.reshape(shape[0], -1, heads).swapaxes(1, 2))


def _rows_of_lse(buffer: Array) -> Array:
    """A log-sum-exp [H, Tq] or [B, H, Sq] as [rows, H]."""
    rows: Array = buffer.T if buffer.ndim == 2 else buffer.swapaxes(1, 2).reshape(-1, buffer.shape[1])
    return rows


def _block_table(problem: Problem, arrays: Mapping[str, Array], *, loud: bool) -> Array:
    """The block table [B, pages], int32."""
    layout = problem.layout_form
    pages, size = input_buffers(problem)["k"][0][0], layout.page_size
    order = np.argsort(np.random.Philox(key=pages).random_raw(pages), kind="stable")
    free = iter(order.tolist())
    spare = next(free)
    table = np.full(input_buffers(problem)["block_table"][0], spare if loud else -1, np.int32)
    known: dict[bytes, int] = {}
    for entry, length in enumerate(problem.kv_lengths or ()):
        for number in range(-(-length // size)):
            span = slice(number * size, (number + 1) * size)
            held = b"".join(np.ascontiguousarray(arrays[name][entry, :, span]).tobytes() for name in ("k", "v"))
            full = (number + 1) * size <= length
            table[entry, number] = page = known[held] if full and held in known else next(free)
            if full:
                known[held] = page
    return table
