"""Cases on small versions of a problem: probes, relations, layouts, and the edges of tiles, windows and lengths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sdpalab.inputs import E4M3_KINDS
from sdpalab.judge.strides import Strides
from sdpalab.problem import Problem

__all__ = [
    "QUICK_PROBES",
    "SMALL_SEQ",
    "SMALL_WINDOW",
    "TILES",
    "CaseSpec",
    "append_cases",
    "edges",
    "hidden_seed",
    "layout_edges",
    "length_edges",
    "normal_case",
    "possible",
    "probes",
    "small_version",
    "stride_cases",
    "window_edges",
]

QUICK_PROBES = (
    *("uniform", "needle", "forbidden", "ramp", "reverse_ramp", "negative", "plateau", "onehot", "constant"),
    *("large_logits", "outlier", "nan_heads", "hidden_rows", "finite_mask", *E4M3_KINDS),
)
"""Kinds of inputs that detect bugs which random normal inputs miss; the full level uses every kind."""

SMALL_SEQ = 180
"""Longest sequence of a probe: three tiles of 64 with a ragged last one, and cheap to simulate."""

SMALL_WINDOW = 70
"""Largest side of a window in a probe: below SMALL_SEQ, and not a multiple of any tile."""

TILES = (16, 32, 64, 128, 256)
"""Tile sizes with edge cases; a kernel gets the edge cases of its configuration's tiles."""


@dataclass(frozen=True)
class CaseSpec:
    """One case to judge.

    Attributes
    ----------
    name : str
    problem : Problem
    inputs : str
        A kind of :data:`sdpalab.inputs.INPUT_KINDS`.
    seed : int, optional
        None for a hidden seed, which the judge draws and records after the candidate is fixed.
    derived : bool
        Whether the judge chose the problem; it is skipped for a kernel that does not support it.
    relation : str
        A metamorphic relation of :data:`sdpalab.judge.rule.relations.RELATIONS` that the case checks; empty for none.
    tile : int
        Only for kernels whose configuration has a tile of that many rows; 0 for all.
    trial : bool
        Whether the case is one of the :data:`TRIALS` of the success rate.
    strides : Strides
        Memory strides of Q, K and V. Only for callables: a kernel that the lab builds gets contiguous buffers.
    claim : str
        Feature beyond the request that the candidate must claim to be judged on this case
        (:mod:`sdpalab.judge.claims`); empty for none.
    """

    name: str
    problem: Problem
    inputs: str = "normal"
    seed: int | None = 0
    derived: bool = False
    relation: str = ""
    tile: int = 0
    trial: bool = False
    strides: Strides = Strides.CONTIGUOUS
    claim: str = ""


def hidden_seed() -> int:
    """A hidden seed of inputs: 48 bits from the operating system, unknown when the candidate was written."""
    return int.from_bytes(os.urandom(6), "little")


def probes(small: Problem, kinds: tuple[str, ...] = QUICK_PROBES) -> Iterator[CaseSpec]:
    """Each kind of inputs on a small problem, and the metamorphic relations."""
    from sdpalab.judge.rule.relations import RELATIONS

    for kind in kinds:
        if kind != "normal" and possible(small, kind):
            yield CaseSpec(f"{small.label} {kind}", small, kind)
    even = small.with_(seq_kv=1 << (small.seq_kv.bit_length() - 1))  # count of keys that divides exactly
    yield CaseSpec(f"{even.label} uniform", even, "uniform")
    for relation in RELATIONS.values():
        if relation.applies(small):
            name = f"{small.label} {relation.name}"
            yield CaseSpec(name, small, seed=None, relation=relation.name)


def window_edges(small: Problem) -> Iterator[CaseSpec]:
    """Windows of one key, windows without keys, and sides at the edges of the kernel's tiles."""
    left, right = small.window_size or (-1, -1)
    yield normal_case(small.with_(window_size=(min(left, 0), min(right, 0))))
    for tile in TILES[:-1]:
        for side in (tile - 1, tile) if tile < small.seq_kv else ():
            edge = normal_case(small.with_(window_size=tuple(side if each > 0 else each for each in (left, right))))
            yield replace(edge, name=f"{edge.problem.label} edge of {tile}", tile=tile)
    if left >= 0:
        none = small.with_(seq_q=SMALL_SEQ, seq_kv=20, window_size=(min(left, 30), right))
        yield normal_case(none)
        yield CaseSpec(f"{none.label} uniform", none, "uniform")


def length_edges(small: Problem, name: str = "kv_lengths") -> Iterator[CaseSpec]:
    """A batch entry without keys (or queries), one with one, one with all, and lengths at the edges of the kernel's
    tiles."""
    seq = small.seq_kv if name == "kv_lengths" else small.seq_q
    for pair in ((0, seq), (seq, 1)):
        yield normal_case(small.with_(**{name: pair}))
    all_but_one = small.with_(**{name: (seq - 1, seq)})
    yield CaseSpec(f"{small.label} all but one {'key' if name == 'kv_lengths' else 'query'}", all_but_one, "uniform")
    for tile in TILES[:-1]:
        for pair in ((tile - 1, tile), (tile, tile + 1)) if tile < seq else ():
            edge = normal_case(small.with_(**{name: pair}))
            yield replace(edge, name=f"{edge.problem.label} edge of {tile}", tile=tile)


def layout_edges(small: Problem) -> Iterator[CaseSpec]:
    """Sequences of a layout that is not dense: empty ones at the head, in the middle and at the tail, one key, one long
    among many short, and lengths at the edges of pages and of the kernel's tiles; queries and keys differ in number."""
    form = small.layout_form
    if form.dense:
        return
    if form.page_size >= SMALL_SEQ // 2:
        small = small.with_(seq_kv=form.page_size + SMALL_SEQ // 4, kv_lengths=None)
    seq = small.seq_kv
    for lengths in ((0, seq, 1, 0), (seq, 1, 3, 2, 1, 0), (seq - 1, 0, 0, 2, seq)):
        yield _sequences(small, lengths)
    for size in (form.page_size,) if form.page_size else ():
        yield _sequences(small, tuple(min(each, seq) for each in (size - 1, size, size + 1, 2 * size, seq)))
    for tile in TILES[:-1]:
        if tile < seq:
            yield replace(_sequences(small, (tile - 1, tile, tile + 1)), tile=tile)


def _sequences(small: Problem, lengths: tuple[int, ...]) -> CaseSpec:
    """Normal inputs on sequences with these keys; packed queries have the same lengths in another order."""
    queries = tuple(min(each, small.seq_q) for each in (*lengths[1:], lengths[0])) if small.varlen else None
    return normal_case(small.with_(batch=len(lengths), kv_lengths=lengths, q_lengths=queries))


def stride_cases(small: Problem) -> Iterator[CaseSpec]:
    """Normal inputs in memory that is not contiguous, for the dense layout."""
    if not small.layout_form.dense:
        return
    single, double = small.with_(batch=1, heads=small.group, kv_heads=1), small.with_(batch=2)
    chosen = [(Strides.PADDED, small), (Strides.SINGLE, single)]
    chosen += [(Strides.BSHD, small), (Strides.ONE_HEAD, small)] if small.heads > 1 else []
    chosen += [(Strides.ONE_ENTRY, double)] if small.kv_lengths is None else []
    for strides, problem in chosen:
        if strides is not Strides.ONE_HEAD or problem.kv_heads > 1:
            name = f"{problem.label} {strides.value}"
            yield replace(normal_case(problem), name=name, strides=strides)


def append_cases(small: Problem) -> Iterator[CaseSpec]:
    """Caches to which the call itself appends the last keys of each batch entry, one and several: to an empty cache, to
    a page that they fill, and across the edge of a page."""
    if small.varlen or small.backward:
        return
    last = small.with_(q_lengths=None, causal=True, bottom_right=True)
    for layout, lengths in (("dense", (70, 3, 64)), ("paged:16", (80, 70, 3, 48)), ("paged:64", (65, 3, 64))):
        cache = last.with_(layout=layout, batch=len(lengths), seq_kv=max(lengths), kv_lengths=lengths)
        for count in (1, 3):
            problem = cache.with_(seq_q=count)
            name = f"{problem.label} {Strides.APPENDED.value}"
            yield replace(normal_case(problem), name=name, strides=Strides.APPENDED)


def edges(one: Problem, lengths: Iterable[int]) -> Iterator[CaseSpec]:
    """Edge cases with one K/V head: sequences of these lengths, and of the kernel's tile size, one row more and one
    less."""
    for length in lengths:
        yield normal_case(_of_length(one, length))
    for tile in TILES:
        for length in (tile - 1, tile, tile + 1):
            edge = _of_length(one, length)
            yield replace(normal_case(edge), name=f"{edge.label} edge of {tile}", tile=tile)


def _of_length(one: Problem, length: int) -> Problem:
    """The problem on one sequence of this length, all of it valid."""
    full = {name: (length,) for name in ("kv_lengths", "q_lengths") if getattr(one, name) is not None}
    return one.with_(batch=1, seq_q=length, seq_kv=length, **full)


def normal_case(problem: Problem, seed: int | None = None) -> CaseSpec:
    """Normal inputs with a public or a hidden seed."""
    return CaseSpec(f"{problem.label} {'hidden seed' if seed is None else f'seed {seed}'}", problem, "normal", seed)


def small_version(problem: Problem) -> Problem:
    """The problem with the same head_dim, dtype, scale, group and score modifiers; one batch, at most two K/V heads, at
    most SMALL_SEQ long.

    Each side of a window is at most SMALL_WINDOW, so that it hides keys. With lengths or a mask per batch entry the
    batch is two, to detect mixed-up entries; the first length is the problem's smallest above 0, as a share, and the
    second also hides keys.
    """
    kv_heads, batch = min(problem.kv_heads, 2), 1
    small = problem.narrowed(SMALL_WINDOW)
    if problem.mask_form is not None and problem.mask_form.per_batch:
        batch = min(problem.batch, 2)
    for name, seq in (("kv_lengths", problem.seq_kv), ("q_lengths", problem.seq_q)):
        if lengths := getattr(problem, name):
            batch, least = 2, min(filter(None, lengths), default=0)
            small = small.with_(batch=2, **{name: (least, least // 2 or seq // 2)})
    return small.with_(
        batch=batch,
        heads=kv_heads * problem.group,
        kv_heads=kv_heads,
        seq_q=min(problem.seq_q, SMALL_SEQ),
        seq_kv=min(problem.seq_kv, SMALL_SEQ),
    )


def possible(problem: Problem, kind: str) -> bool:
    """Whether this kind of inputs exists for the problem.

    Needles need a head_dim that can encode the keys, and a nonzero scale; kinds with neighbouring heads need at least
    two heads. Hidden rows need a mask, and finite mask values need an additive mask.
    """
    if kind in ("hidden_rows", "finite_mask"):
        return problem.mask_form is not None and (kind == "hidden_rows" or problem.mask_form.type == "float")
    if kind == "nan_heads":
        return problem.batch * problem.kv_heads > 1
    elsewhere = problem.batch * problem.kv_heads * problem.seq_kv
    keys = {"needle": problem.seq_kv, "needle_e4m3": problem.seq_kv, "forbidden": elsewhere + 1}
    return kind not in keys or (problem.scale != 0.0 and 1 << problem.head_dim >= keys[kind])
