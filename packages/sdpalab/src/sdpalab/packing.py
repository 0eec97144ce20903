"""The buffers of a problem's layout (:mod:`sdpalab.layout`): their shapes, and the logical arrays in them.

Each row of a buffer that belongs to no sequence is padding: NaN, or the values of
:func:`sdpalab.inputs.padding.loud_padding`. A cache in e4m3 is bytes, and its padding NaN: e4m3 has no infinities.
Entries of a block table behind the last page of a sequence are -1, or with
loud padding a page that no sequence uses.

The pages of a cache are shuffled, and pages without an owner lie between them; full pages with the same keys and values
are one page, which several sequences share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sdpalab.problem import Problem

__all__ = ["TAIL", "Packing", "Shapes"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

TAIL = 5
"""Rows of a packed array behind its last sequence."""

Shapes = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of arrays, by name."""

_E4M3_NAN = 0x7F
_QUERIES = ("q", "dq", "o", "do", "lse")
_KEYS = ("k", "v", "dk", "dv")


class Packing:
    """Logical arrays of a problem as the buffers of its layout, and back.

    Parameters
    ----------
    problem : Problem
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._layout = problem.layout_form
        self._q_lengths = problem.q_lengths or (problem.seq_q,) * problem.batch
        self._kv_lengths = problem.kv_lengths or (problem.seq_kv,) * problem.batch

    @cached_property
    def inputs(self) -> Shapes:
        """Shape and dtype of each input buffer of a problem, Q, K and V first."""
        problem, layout, further = self.problem, self._layout, self.problem.array_shapes
        if layout.dense:
            known = {"q": problem.q_shape, "k": problem.kv_shape, "v": problem.v_shape}
            return {**{name: (shape, problem.dtype) for name, shape in known.items()}, **further}
        cache = "uint8" if layout.e4m3 else problem.dtype
        shapes = {name: (self._shape(name), problem.dtype if name == "q" else cache) for name in ("q", "k", "v")}
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
                shapes[name] = (self._shape(name), form[1])
            elif name != "kv_lengths" and (name != "q_lengths" or not layout.packed):
                shapes[name] = form
        return shapes

    @cached_property
    def outputs(self) -> Shapes:
        """Shape and dtype of each output buffer of a problem, and of a forward problem's ``lse``."""
        problem = self.problem
        names = (*problem.outputs, *(() if problem.backward else ("lse",)))
        return {name: (self._shape(name), "float32" if name == "lse" else problem.dtype) for name in names}

    def pack(self, arrays: Mapping[str, Array], *, loud: bool = False) -> dict[str, Array]:
        """The input buffers from logical arrays; with ``loud``, with loud padding.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            As :attr:`sdpalab.inputs.Inputs.arrays`. In a dense layout they are the buffers.
        """
        if self._layout.dense:
            return dict(arrays)
        indices: dict[str, Array] = {}
        if self._layout.page_size:
            indices["block_table"] = self._block_table(arrays, loud=loud)
        if self._layout.packed:
            indices["cu_seqlens_q"] = np.array(_ends(self._q_lengths), np.int32)
            indices["cu_seqlens_k"] = np.array(_ends(self._capacities), np.int32)
        buffers: dict[str, Array] = {}
        for name in self.inputs:
            if name in (*_QUERIES, *_KEYS):
                logical = arrays[name]
                if self._layout.e4m3 and name in _KEYS:
                    logical = _e4m3_bytes(logical, arrays[f"{name}_scale"])
                buffers[name] = self._scattered(name, logical, indices.get("block_table"), loud=loud)
            else:
                buffers[name] = indices[name] if name in indices else arrays[name]
        return buffers

    def unpack(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The logical outputs from output buffers; padding is NaN. An array that is not of its buffer's shape and dtype
        stays as it is."""
        problem = self.problem
        if self._layout.dense:
            return dict(outputs)
        shapes = {**problem.outputs, "lse": problem.q_shape[:3]}
        logical: dict[str, Array] = {}
        for name, buffer in outputs.items():
            logical[name] = buffer
            if (buffer.shape, buffer.dtype.name) not in (self.outputs[name], (self.outputs[name][0], "float64")):
                continue
            flat = _rows_of_lse(buffer) if name == "lse" else buffer.reshape(-1, *buffer.shape[-2:])
            logical[name] = np.full(shapes[name], math.nan, buffer.dtype)
            for entry, places in enumerate(self._places(name)):
                logical[name][entry, :, : len(places)] = flat[places].swapaxes(0, 1)
        return logical

    def first_padding_row(self, arrays: Mapping[str, Array], entry: int) -> str:
        """The first row of K and V behind the keys of a batch entry that holds padding, in words.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            The logical arrays.
        """
        layout, lengths = self._layout, self._kv_lengths
        if layout.dense:
            return f"key {lengths[entry]} of batch {entry}"
        if not layout.page_size:
            if not layout.gaps:
                return f"row {sum(lengths)} of k, behind the end of the last sequence,"
            return f"row {_ends(self._capacities)[entry] + lengths[entry]} of k, behind the end of sequence {entry},"
        number, row = divmod(lengths[entry], layout.page_size)
        if not row:
            return f"entry {number} of row {entry} of the block table, behind the last page of sequence {entry},"
        page = self._block_table(arrays, loud=False)[entry, number]
        return f"row {row} of page {page}, behind the end of sequence {entry},"

    @property
    def _capacities(self) -> tuple[int, ...]:
        """Rows of packed K and V of each sequence: its keys, and 3 to 13 more with gaps."""
        gaps = self._layout.gaps
        return tuple(length + gaps * (3 + 5 * number % 11) for number, length in enumerate(self._kv_lengths))

    def _shape(self, name: str) -> tuple[int, ...]:
        """Shape of the buffer of rows of that name."""
        problem, layout = self.problem, self._layout
        if layout.dense:
            return problem.q_shape[:3] if name == "lse" else problem.outputs[name]
        if name in _QUERIES:
            columns = problem.head_dim if name in ("q", "dq") else problem.dim_v
            if layout.packed:
                total = sum(self._q_lengths) + TAIL
                return (problem.heads, total) if name == "lse" else (total, problem.heads, columns)
            batch, heads, seq = problem.q_shape[:3]
            return (batch, heads, seq) if name == "lse" else (batch, seq, heads, columns)
        columns = problem.head_dim if name in ("k", "dk") else problem.dim_v
        if layout.page_size:
            used = sum(-(-length // layout.page_size) for length in self._kv_lengths)
            return (used + problem.batch + 2, layout.page_size, problem.kv_heads, columns)
        return (sum(self._capacities) + TAIL, problem.kv_heads, columns)

    def _places(self, name: str, table: Array | None = None) -> list[Rows]:
        """Rows of the buffer ``name`` that hold the valid rows of each batch entry, in order."""
        if name in _QUERIES:
            lengths = self._q_lengths
            batched = [self.problem.seq_q * entry for entry in range(self.problem.batch)]
            firsts = _ends(lengths)[:-1] if self._layout.packed else batched
        else:
            lengths = self._kv_lengths
            firsts = _ends(self._capacities)[:-1]
        positions = [np.arange(length) for length in lengths]
        if table is None or name in _QUERIES:
            return [each + first for each, first in zip(positions, firsts, strict=True)]
        size = self._layout.page_size
        pages = zip(positions, table, strict=True)
        return [own[each // size].astype(np.int64) * size + each % size for each, own in pages]

    def _scattered(self, name: str, logical: Array, table: Array | None, *, loud: bool) -> Array:
        """A buffer whose rows of sequences hold the logical array [B, H, S] or [B, H, S, D], and other rows padding."""
        shape, heads, columns = self.inputs[name][0], logical.shape[1], logical.shape[3:]
        total = math.prod(shape) // heads // math.prod(columns)
        if logical.dtype == np.uint8:
            flat = np.full((total, heads, *columns), _E4M3_NAN, np.uint8)
        else:
            flat = np.full((total, heads, *columns), math.inf if loud else math.nan, logical.dtype)
        if loud and name == "k" and logical.dtype != np.uint8:
            flat[...] = 0
            flat[np.arange(total), :, np.arange(total) % columns[0]] = math.inf
        for entry, places in enumerate(self._places(name, table)):
            flat[places] = logical[entry, :, : len(places)].swapaxes(0, 1)
        if name != "lse":
            return flat.reshape(shape)
        return np.ascontiguousarray(flat.T if len(shape) == 2 else flat.reshape(shape[0], -1, heads).swapaxes(1, 2))

    def _block_table(self, arrays: Mapping[str, Array], *, loud: bool) -> Array:
        """The block table [B, pages], int32."""
        pages, size = self.inputs["k"][0][0], self._layout.page_size
        order = np.argsort(np.random.Philox(key=pages).random_raw(pages), kind="stable")
        free = iter(order.tolist())
        spare = next(free)
        table = np.full(self.inputs["block_table"][0], spare if loud else -1, np.int32)
        known: dict[bytes, int] = {}
        for entry, length in enumerate(self._kv_lengths):
            for number in range(-(-length // size)):
                span = slice(number * size, (number + 1) * size)
                held = b"".join(np.ascontiguousarray(arrays[name][entry, :, span]).tobytes() for name in ("k", "v"))
                full = (number + 1) * size <= length
                table[entry, number] = page = known[held] if full and held in known else next(free)
                if full:
                    known[held] = page
        return table


def _e4m3_bytes(array: Array, scales: Array) -> Array:
    """Bytes of the numbers of e4m3 that give ``array`` [B, Hkv, S, D] times ``scales`` [Hkv]; infinities are NaN."""
    numbers: Array = (array.astype(np.float32) / scales[:, None, None]).astype(ml_dtypes.float8_e4m3fn)
    return numbers.view(np.uint8)


def _ends(rows: Sequence[int]) -> list[int]:
    """Cumulative sums from 0: ``cu_seqlens`` of sequences with these rows."""
    sums = [0]
    for each in rows:
        sums.append(sums[-1] + each)
    return sums


def _rows_of_lse(buffer: Array) -> Array:
    """A log-sum-exp [H, Tq] or [B, H, Sq] as [rows, H]."""
    rows: Array = buffer.T if buffer.ndim == 2 else buffer.swapaxes(1, 2).reshape(-1, buffer.shape[1])
    return rows
