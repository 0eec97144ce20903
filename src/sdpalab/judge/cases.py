"""The cases that a candidate is judged on."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS
from sdpalab.judge.layouts import Layout
from sdpalab.problem import HALF_DTYPES, MISSION, TWELVE_CASES, Problem

__all__ = [
    "LEVELS",
    "TILES",
    "TRIALS",
    "CaseSpec",
    "cases_for",
    "cases_named",
    "full_cases",
    "possible",
    "quick_cases",
    "twelve_cases",
]

LEVELS = ("quick", "full")

QUICK_PROBES = (
    *("uniform", "needle", "forbidden", "ramp", "reverse_ramp", "negative", "plateau", "onehot", "constant"),
    *("large_logits", "outlier", "nan_heads", "hidden_rows", "finite_mask"),
)
"""Kinds of inputs that detect bugs which random normal inputs miss; the full level has every kind."""

SMALL_SEQ = 180
"""Longest sequence of a probe: three tiles of 64, the last one ragged, and cheap to simulate."""

SMALL_WINDOW = 70
"""Largest side of a window in a probe: within SMALL_SEQ, and the multiple of no tile."""

TILES = (16, 32, 64, 128, 256)
"""Sizes of tiles whose edges there are cases for; a kernel gets those of the tiles that its configuration has."""

TRIALS = 100
"""Hidden seeds of the full level on one shape, as in KernelBench's evaluation."""


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
        None is hidden: the judge draws it once the candidate is fixed, and records it.
    derived : bool
        The judge's own choice of a problem: skipped for a kernel that does not support it.
    relation : str
        A metamorphic relation of :data:`sdpalab.judge.rule.relations.RELATIONS` that the case is about; empty for none.
    tile : int
        Only for kernels whose configuration has a tile of that many rows; 0 for all.
    trial : bool
        One of the :data:`TRIALS` that the share of correct answers is taken over.
    layout : Layout
        How Q, K and V lie in memory. Only for callables: a kernel that the lab builds gets contiguous buffers.
    """

    name: str
    problem: Problem
    inputs: str = "normal"
    seed: int | None = 0
    derived: bool = False
    relation: str = ""
    tile: int = 0
    trial: bool = False
    layout: Layout = Layout.CONTIGUOUS


def cases_for(
    level: str,
    problems: Iterable[Problem] | None = None,
    *,
    seed: int = 0,
    dtype: str = "float16",
    causal: bool = False,
) -> tuple[CaseSpec, ...]:
    """The cases of a level, on ``problems`` or, without any, on the twelve cases in ``dtype`` and ``causal``.

    Raises
    ------
    UserError
        If there is no such level.
    """
    if level not in LEVELS:
        raise UserError(f"level must be {' or '.join(LEVELS)}, not {level!r}")
    if problems is not None:
        return (quick_cases if level == "quick" else full_cases)(problems, seed=seed)
    mission = MISSION.with_(dtype=dtype, causal=causal)
    known = twelve_cases(dtype=dtype, causal=causal)
    more = _small_cases(mission) if level == "quick" else full_cases([mission], seed=seed)
    return _unique((*known, *more), {mission, *(spec.problem for spec in known)})


def cases_named(specs: Sequence[CaseSpec], words: Iterable[str]) -> tuple[CaseSpec, ...]:
    """The cases of these names; for words that are no case's name, those that have them in theirs, in either case.

    Raises
    ------
    UserError
        If there is none for one of the words.
    """
    chosen: set[str] = set()
    for each in words:
        exact = [spec.name for spec in specs if spec.name == each]
        matching = exact or [spec.name for spec in specs if each.lower() in spec.name.lower()]
        if not matching:
            near = difflib.get_close_matches(each, [spec.name for spec in specs], n=3, cutoff=0.3)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise UserError(f"there is no case {each!r} among the {len(specs)}, such as {specs[0].name!r}{hint}")
        chosen |= set(matching)
    return tuple(spec for spec in specs if spec.name in chosen)


def twelve_cases(*, dtype: str = "float16", causal: bool = False) -> tuple[CaseSpec, ...]:
    """The twelve cases of the original contract, and one more with a hidden seed for each of their four shapes."""
    changed = [(problem.with_(dtype=dtype, causal=causal), seed) for problem, seed in TWELVE_CASES]
    public = [CaseSpec(f"{problem.label} seed {seed}", problem, "normal", seed) for problem, seed in changed]
    hidden = [_hidden(problem) for problem in dict.fromkeys(problem for problem, _ in changed)]
    return (*public, *hidden)


def quick_cases(problems: Iterable[Problem], *, seed: int = 0) -> tuple[CaseSpec, ...]:
    """For each problem: normal inputs with ``seed`` and with a hidden seed; and on small versions of it the probes, the
    relations, the layouts, a single row, and the edges of the kernel's own tiles."""
    problems = tuple(problems)
    return _unique((spec for problem in problems for spec in _quick(problem, seed)), problems)


def full_cases(problems: Iterable[Problem], *, seed: int = 0) -> tuple[CaseSpec, ...]:
    """What :func:`quick_cases` has, and for each problem also

    - every kind of inputs, in both dtypes, with and without the causal mask, on a small version of it;
    - sequences of every edge: 1, 2, primes, each of the kernel's tile sizes and one less and one more, 4096;
    - Sq != Skv both ways, grouped and shared K/V heads, more than one batch; other head_dims;
    - :data:`TRIALS` hidden seeds.
    """
    problems = tuple(problems)
    specs = (spec for problem in problems for spec in (*_quick(problem, seed), *_full(problem), *_trials(problem)))
    return _unique(specs, problems)


def _quick(problem: Problem, seed: int) -> Iterator[CaseSpec]:
    yield CaseSpec(f"{problem.label} seed {seed}", problem, "normal", seed)
    yield _hidden(problem)
    yield from _small_cases(problem)


def _small_cases(problem: Problem) -> Iterator[CaseSpec]:
    small = _small(problem)
    yield from _probes(small)
    yield from _layouts(small)
    yield from _edges(_narrowed(problem).with_(batch=1, heads=problem.group, kv_heads=1), (1,))
    if problem.window_size is not None:
        yield from _windows(small)
    if problem.kv_lengths is not None:
        yield from _lengths(small)


def _full(problem: Problem) -> Iterator[CaseSpec]:
    small = _small(problem)
    for dtype in HALF_DTYPES if problem.dtype in HALF_DTYPES else (problem.dtype,):
        for causal in (False, True):
            yield from _probes(small.with_(dtype=dtype, causal=causal), tuple(INPUT_KINDS))
    yield from _edges(_narrowed(problem).with_(batch=1, heads=problem.group, kv_heads=1), (1, 2, 37, 257, 500, 512))
    one = problem.with_(batch=1, heads=1, kv_heads=1)
    for changes in ({"seq_q": 4096, "seq_kv": 4096}, {"seq_q": 4096, "seq_kv": 1}, {"seq_q": 1, "seq_kv": 4096}):
        yield _hidden(one.with_(**changes))
    for seq_q, seq_kv in ((70, 200), (200, 70), (1, 130), (130, 1)):
        for causal in (False, True):
            yield _hidden(small.with_(seq_q=seq_q, seq_kv=seq_kv, causal=causal))
    if (form := problem.mask_form) is not None:
        for axes in ("1,1", "B,1", "1,H", "B,H"):
            yield _hidden(small.with_(batch=2, attn_mask=f"{form.type}:{axes}"))
    for batch, heads, kv_heads in ((3, 2, 2), (2, 6, 2), (1, 4, 1), (2, 5, 5)):
        yield _hidden(small.with_(batch=batch, heads=heads, kv_heads=kv_heads, seq_q=100, seq_kv=100))
    for head_dim in (32, 64, 96, 128, 256):
        yield _hidden(small.with_(head_dim=head_dim, scale=None))
    for scale in (1.0, -0.125, 0.0):
        yield _hidden(small.with_(scale=scale))


def _probes(small: Problem, kinds: tuple[str, ...] = QUICK_PROBES) -> Iterator[CaseSpec]:
    """Each kind of inputs on a small problem, and the metamorphic relations on it."""
    from sdpalab.judge.rule.relations import RELATIONS

    for kind in kinds:
        if kind != "normal" and possible(small, kind):
            yield CaseSpec(f"{small.label} {kind}", small, kind)
    even = small.with_(seq_kv=1 << (small.seq_kv.bit_length() - 1))  # a count of keys that divides exactly
    yield CaseSpec(f"{even.label} uniform", even, "uniform")
    for relation in RELATIONS.values():
        if relation.applies(small):
            name = f"{small.label} {relation.name}"
            yield CaseSpec(name, small, seed=None, relation=relation.name)


def _windows(small: Problem) -> Iterator[CaseSpec]:
    """The window of one key, rows that see none, and sides at the edges of the kernel's own tiles."""
    left, right = small.window_size or (-1, -1)
    yield _hidden(small.with_(window_size=(min(left, 0), min(right, 0))))
    for tile in TILES[:-1]:
        for side in (tile - 1, tile) if tile < small.seq_kv else ():
            edge = _hidden(small.with_(window_size=tuple(side if each > 0 else each for each in (left, right))))
            yield replace(edge, name=f"{edge.problem.label} edge of {tile}", tile=tile)
    if left >= 0:
        none = small.with_(seq_q=SMALL_SEQ, seq_kv=20, window_size=(min(left, 30), right))
        yield _hidden(none)
        yield CaseSpec(f"{none.label} uniform", none, "uniform")


def _lengths(small: Problem) -> Iterator[CaseSpec]:
    """A batch entry without keys, one with one, one with all, and lengths at the edges of the kernel's own tiles."""
    keys = small.seq_kv
    for pair in ((0, keys), (keys, 1)):
        yield _hidden(small.with_(kv_lengths=pair))
    yield CaseSpec(f"{small.label} all but one key", small.with_(kv_lengths=(keys - 1, keys)), "uniform")
    for tile in TILES[:-1]:
        for pair in ((tile - 1, tile), (tile, tile + 1)) if tile < keys else ():
            edge = _hidden(small.with_(kv_lengths=pair))
            yield replace(edge, name=f"{edge.problem.label} edge of {tile}", tile=tile)


def _layouts(small: Problem) -> Iterator[CaseSpec]:
    """Normal inputs in memory that is not contiguous."""
    for layout in (Layout.BSHD, Layout.PADDED) if small.heads > 1 else (Layout.PADDED,):
        yield replace(_hidden(small), name=f"{small.label} {layout.value}", layout=layout)


def _edges(one: Problem, lengths: Iterable[int]) -> Iterator[CaseSpec]:
    """With one K/V head: sequences of these lengths, and of the kernel's own tile and one row more and less."""
    for length in lengths:
        yield _hidden(one.with_(seq_q=length, seq_kv=length))
    for tile in TILES:
        for length in (tile - 1, tile, tile + 1):
            edge = one.with_(seq_q=length, seq_kv=length)
            yield replace(_hidden(edge), name=f"{edge.label} edge of {tile}", tile=tile)


def _trials(problem: Problem) -> Iterator[CaseSpec]:
    for trial in range(TRIALS):
        yield CaseSpec(f"{problem.label} trial {trial}", problem, seed=None, trial=True)


def _hidden(problem: Problem) -> CaseSpec:
    return CaseSpec(f"{problem.label} hidden seed", problem, "normal", None)


def _small(problem: Problem) -> Problem:
    """Same head_dim, dtype, scale, group and way of scoring; one batch, at most two K/V heads, at most SMALL_SEQ long.

    Each side of a window is at most SMALL_WINDOW, so that it hides keys. What is of a batch entry, lengths or a mask,
    needs two to be mixed up; the first length is the problem's least, as a share, and the second hides keys, too."""
    kv_heads, batch = min(problem.kv_heads, 2), 1
    small = _narrowed(problem)
    if problem.mask_form is not None and problem.mask_form.per_batch:
        batch = min(problem.batch, 2)
    if problem.kv_lengths is not None:
        batch, least = 2, min(problem.kv_lengths)
        small = small.with_(batch=2, kv_lengths=(least, least // 2 or problem.seq_kv // 2))
    return small.with_(
        batch=batch,
        heads=kv_heads * problem.group,
        kv_heads=kv_heads,
        seq_q=min(problem.seq_q, SMALL_SEQ),
        seq_kv=min(problem.seq_kv, SMALL_SEQ),
    )


def _narrowed(problem: Problem) -> Problem:
    if problem.window_size is None:
        return problem
    left, right = (min(side, SMALL_WINDOW) for side in problem.window_size)
    return problem.with_(window_size=(left, right))


def possible(problem: Problem, kind: str) -> bool:
    """Whether there are such inputs for the problem.

    A needle needs room in head_dim to tell the keys apart, and a scale; heads beside each other need to be two. Hidden
    rows need a mask, and one that hides by a finite number needs an additive one."""
    if kind in ("hidden_rows", "finite_mask"):
        return problem.mask_form is not None and (kind == "hidden_rows" or problem.mask_form.type == "float")
    if kind == "nan_heads":
        return problem.batch * problem.kv_heads > 1
    keys = {"needle": problem.seq_kv, "forbidden": problem.batch * problem.kv_heads * problem.seq_kv + 1}
    return kind not in keys or (problem.scale != 0.0 and 1 << problem.head_dim >= keys[kind])


def _unique(specs: Iterable[CaseSpec], asked: Collection[Problem]) -> tuple[CaseSpec, ...]:
    """The first spec of each name, marked as derived where its problem was not asked for."""
    first: dict[str, CaseSpec] = {}
    for spec in specs:
        first.setdefault(spec.name, replace(spec, derived=spec.problem not in asked))
    return tuple(first.values())
