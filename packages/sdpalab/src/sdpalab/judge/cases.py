"""Cases that a candidate is judged on."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS
from sdpalab.judge.claims import claim_cases
from sdpalab.judge.signatures import SIGNATURES, Signature
from sdpalab.judge.small_cases import (
    SMALL_WINDOW,
    TILES,
    CaseSpec,
    edges,
    layout_edges,
    length_edges,
    normal_case,
    possible,
    probes,
    small_version,
    stride_cases,
    window_edges,
)
from sdpalab.layout import Layout
from sdpalab.problem import HALF_DTYPES, MISSION, TWELVE_CASES, Problem

__all__ = [
    "LEVELS",
    "SMALL_WINDOW",
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

TRIALS = 100
"""Hidden seeds of the full level on one shape, as in KernelBench's evaluation."""


def cases_for(
    level: str,
    problems: Iterable[Problem] | None = None,
    *,
    seed: int = 0,
    dtype: str = "float16",
    causal: bool = False,
    task: str = "forward",
    claims: bool = True,
    signature: Signature | None = None,
    layout: str = "dense",
) -> tuple[CaseSpec, ...]:
    """Cases of a level on ``problems``, or by default on the twelve cases in ``dtype``, ``causal`` and ``task``.

    For a function with a peer's ``signature`` the default problems are those of the signature, if it has any, and masks
    have its alignment except in the given problems; a ``layout`` has ragged default problems. With ``claims``, cases on
    the candidate's claims beyond the first problem follow (:mod:`sdpalab.judge.claims`); without, only the requested
    problems are judged.

    Raises
    ------
    UserError
        If the level is unknown.
    """
    if level not in LEVELS:
        raise UserError(f"level must be {' or '.join(LEVELS)}, not {level!r}")
    asked: tuple[Problem, ...]
    specs: tuple[CaseSpec, ...]
    form = Layout.parse(layout)
    defaults = signature.problems if signature else ()
    if not form.dense and not defaults:
        defaults = SIGNATURES["flash_attn_varlen_func" if form.packed else "flash_attn_with_kvcache"].problems[:1]
    if problems is None and defaults:
        changes = {"dtype": dtype, "task": task} | ({"causal": True} if causal else {})
        changes |= {} if form.dense else {"layout": layout}
        problems = [each.with_(**changes) for each in defaults]
        problems = [signature.in_form(each) for each in problems] if signature else problems
    if problems is not None:
        asked = tuple(problems)
        specs = (quick_cases if level == "quick" else full_cases)(asked, seed=seed)
    else:
        mission = MISSION.with_(dtype=dtype, causal=causal, task=task)
        known = twelve_cases(dtype=dtype, causal=causal, task=task)
        more = _small_cases(mission) if level == "quick" else full_cases([mission], seed=seed)
        asked, specs = (mission, *(spec.problem for spec in known)), (*known, *more)
    further = claim_cases(asked[0], level) if claims and asked else ()
    specs = _unique((*specs, *further), frozenset(asked))
    return specs if signature is None else _unique((_in_form(each, signature) for each in specs), frozenset(asked))


def _in_form(spec: CaseSpec, signature: Signature) -> CaseSpec:
    """A case that the judge chose, with the alignment of a signature."""
    problem = signature.in_form(spec.problem) if spec.derived else spec.problem
    return replace(spec, problem=problem, name=spec.name.replace(spec.problem.label, problem.label))


def cases_named(specs: Sequence[CaseSpec], words: Iterable[str]) -> tuple[CaseSpec, ...]:
    """Cases with these names; a word that is not a name selects all cases whose name contains it, ignoring case.

    Raises
    ------
    UserError
        If a word selects no case.
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


def twelve_cases(*, dtype: str = "float16", causal: bool = False, task: str = "forward") -> tuple[CaseSpec, ...]:
    """The twelve cases of the original contract, and one case with a hidden seed for each of their four shapes."""
    changed = [(problem.with_(dtype=dtype, causal=causal, task=task), seed) for problem, seed in TWELVE_CASES]
    public = [normal_case(problem, seed) for problem, seed in changed]
    hidden = [normal_case(problem) for problem in dict.fromkeys(problem for problem, _ in changed)]
    return (*public, *hidden)


def quick_cases(problems: Iterable[Problem], *, seed: int = 0) -> tuple[CaseSpec, ...]:
    """Quick cases per problem: normal inputs with ``seed`` and with a hidden seed; and on small versions of it the
    probes, the relations, the strides, a single row, and the edges of the kernel's tiles."""
    problems = tuple(problems)
    return _unique(chain.from_iterable(_quick(problems, seed)), problems)


def full_cases(problems: Iterable[Problem], *, seed: int = 0) -> tuple[CaseSpec, ...]:
    """The cases of :func:`quick_cases`, and for each problem also

    - every kind of inputs, in both dtypes, with and without the causal mask, on a small version of it;
    - sequence lengths at every edge: 1, 2, primes, each of the kernel's tile sizes, one less and one more, 4096;
    - Sq != Skv both ways, grouped and shared K/V heads, more than one batch; other head_dims;
    - :data:`TRIALS` hidden seeds.
    """
    problems = tuple(problems)
    specs = (
        (*quick, *_full(each), *_trials(each)) for quick, each in zip(_quick(problems, seed), problems, strict=True)
    )
    return _unique(chain.from_iterable(specs), problems)


def _quick(problems: Iterable[Problem], seed: int) -> Iterator[tuple[CaseSpec, ...]]:
    for problem in problems:
        yield normal_case(problem, seed), normal_case(problem), *_small_cases(problem)


def _small_cases(problem: Problem) -> Iterator[CaseSpec]:
    small = small_version(problem)
    yield from probes(small)
    yield from stride_cases(small)
    yield from edges(problem.narrowed(SMALL_WINDOW).with_(batch=1, heads=problem.group, kv_heads=1), (1,))
    if problem.window_size is not None:
        yield from window_edges(small)
    yield from layout_edges(small)
    for name in ("kv_lengths", "q_lengths"):
        if name in problem.features:
            yield from length_edges(small, name)


def _full(problem: Problem) -> Iterator[CaseSpec]:
    small = small_version(problem)
    one_head = problem.narrowed(SMALL_WINDOW).with_(batch=1, heads=problem.group, kv_heads=1)
    for dtype in HALF_DTYPES if problem.dtype in HALF_DTYPES else (problem.dtype,):
        for causal in (False, True):
            yield from probes(small.with_(dtype=dtype, causal=causal), tuple(INPUT_KINDS))
    yield from edges(one_head, (1, 2, 37, 257, 500, 512))
    one = problem.with_(batch=1, heads=1, kv_heads=1)
    for changes in ({"seq_q": 4096, "seq_kv": 4096}, {"seq_q": 4096, "seq_kv": 1}, {"seq_q": 1, "seq_kv": 4096}):
        yield normal_case(one.with_(**changes))
    for seq_q, seq_kv in ((70, 200), (200, 70), (1, 130), (130, 1)):
        for causal in (False, True):
            yield normal_case(small.with_(seq_q=seq_q, seq_kv=seq_kv, causal=causal))
    if (form := problem.mask_form) is not None:
        for axes in ("1,1", "B,1", "1,H", "B,H"):
            yield normal_case(small.with_(batch=2, attn_mask=f"{form.type}:{axes}"))
    for batch, heads, kv_heads in ((3, 2, 2), (2, 6, 2), (1, 4, 1), (2, 5, 5)):
        yield normal_case(small.with_(batch=batch, heads=heads, kv_heads=kv_heads, seq_q=100, seq_kv=100))
    for head_dim in (32, 64, 96, 128, 256):
        yield normal_case(small.with_(head_dim=head_dim, scale=None))
    for scale in (1.0, -0.125, 0.0):
        yield normal_case(small.with_(scale=scale))


def _trials(problem: Problem) -> Iterator[CaseSpec]:
    for trial in range(TRIALS):
        yield CaseSpec(f"{problem.label} trial {trial}", problem, seed=None, trial=True)


def _unique(specs: Iterable[CaseSpec], asked: Collection[Problem]) -> tuple[CaseSpec, ...]:
    """The first spec of each name, marked as derived if its problem was not requested."""
    first: dict[str, CaseSpec] = {}
    for spec in specs:
        first.setdefault(spec.name, replace(spec, derived=spec.problem not in asked))
    return tuple(first.values())
