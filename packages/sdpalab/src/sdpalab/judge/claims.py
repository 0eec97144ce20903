"""Cases on a candidate's claims beyond the requested problems.

A kernel with ``supports`` claims everything that neither ``supports`` nor ``reject`` excludes: a causal mask, both
16-bit types, head dimensions, shared K/V heads; and each of its ``features``. A callable claims the features
that its parameters name (:data:`sdpalab.judge.parameters.PARAMETERS`); no parameter names types or head dimensions.
Claims are judged on small problems, so a mask that is off by one fails even if no mask was requested.
Features that a candidate does not claim are skipped, and float32 is judged only on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from sdpalab.inputs import INPUT_KINDS
from sdpalab.judge.small_cases import (
    CaseSpec,
    append_cases,
    layout_edges,
    length_edges,
    normal_case,
    possible,
    small_version,
    window_edges,
)
from sdpalab.layout import PAGE_SIZES
from sdpalab.problem import FEATURES, HALF_DTYPES, Problem

__all__ = ["CLAIMED_HEAD_DIMS", "claim_cases", "claimed_by"]

CLAIMED_HEAD_DIMS = (32, 64, 96, 128, 256)
"""Head dimensions on which a kernel's claims are judged."""

VALUE_DIMS = ((64, 32), (64, 128), (128, 64), (192, 128))
"""Head dimensions D and Dv on which a claim of ``head_dim_v`` is judged."""

SHORT_SEQ = 100
"""Longest sequence of a case on a head dimension or a group of heads; each such case is a separate build."""

Changes = Mapping[str, Any]

_PLAIN: Changes = {
    "window_size": None,
    "kv_lengths": None,
    "softcap": 0.0,
    "attn_mask": "",
    "alibi_slopes": False,
    "sinks": False,
    "q_lengths": None,
    "bottom_right": False,
    "head_dim_v": None,
}
"""A problem without features."""

_OF_FEATURES: Mapping[str, tuple[tuple[Changes, tuple[str, ...]], ...]] = {
    "window_size": (
        ({"window_size": (0.28, 0.12)}, ("normal", "forbidden", "uniform")),
        ({"window_size": (0.28, 0.0), "causal": True}, ("normal", "forbidden")),
    ),
    "softcap": (({"softcap": 15.0}, ("normal", "large_logits")),),
    "kv_lengths": (({"batch": 2, "kv_lengths": (1.0, 0.4)}, ("normal", "forbidden", "uniform")),),
    "attn_mask": (
        ({"attn_mask": "bool:1,1"}, ("normal", "hidden_rows")),
        ({"batch": 2, "attn_mask": "float:B,H"}, ("normal", "finite_mask")),
    ),
    "alibi_slopes": (({"alibi_slopes": True}, ("normal",)),),
    "sinks": (({"sinks": True}, ("normal", "large_logits")),),
    "q_lengths": (({"batch": 2, "q_lengths": (1.0, 0.4)}, ("normal", "needle", "uniform")),),
    "bottom_right": (
        ({"bottom_right": True, "causal": True, "seq_q": 0.3}, ("normal", "forbidden", "uniform")),
        ({"bottom_right": True, "causal": True, "seq_kv": 0.7}, ("normal", "uniform")),
        ({"bottom_right": True, "window_size": (0.28, 0.0), "causal": True, "seq_q": 0.6}, ("normal", "forbidden")),
        (
            {"bottom_right": True, "causal": True, "seq_q": 0.1, "batch": 2, "kv_lengths": (1.0, 0.4)},
            ("normal", "forbidden"),
        ),
    ),
    "head_dim_v": tuple(({"head_dim": d, "head_dim_v": dv}, ("normal", "onehot")) for d, dv in VALUE_DIMS),
    "varlen": (
        (
            {"layout": "varlen", "batch": 4, "q_lengths": (0.6, 0.0, 1.0, 0.2), "kv_lengths": (1.0, 0.3, 0.0, 0.4)},
            ("normal", "uniform", "onehot"),
        ),
        (
            {
                "layout": "varlen",
                "batch": 3,
                "q_lengths": (0.6, 0.1, 1.0),
                "kv_lengths": (0.6, 0.1, 1.0),
                "causal": True,
            },
            ("normal", "uniform"),
        ),
    ),
    "paged": tuple(
        ({"layout": f"paged:{size}", "batch": 3, "seq_q": 0.1, "kv_lengths": (1.0, 0.4, 0.0)}, kinds)
        for size, kinds in ((16, ("normal", "uniform")), (64, ("normal",)))
    ),
    "e4m3_cache": (
        (
            {"layout": "paged:16:e4m3", "batch": 3, "seq_q": 0.1, "kv_lengths": (1.0, 0.4, 0.0)},
            ("normal", "large_logits"),
        ),
    ),
}
"""Fields of the problems for each extra, and the inputs on them. Windows, lengths and sequences are shares: of the
queries for ``q_lengths`` and ``seq_q``, otherwise of the keys."""


def claim_cases(problem: Problem, level: str) -> Iterator[CaseSpec]:
    """Cases on small versions of ``problem`` with features that it lacks; each case names its claim.

    At level full each extra is judged on every kind of inputs, and on the edges of windows and lengths.
    """
    plain = small_version(problem.with_(**_PLAIN))
    masked = plain.with_(causal=not plain.causal)
    claim = "causal" if masked.causal else ""
    yield from _on(masked, ("normal", "forbidden", "uniform", "uniform_e4m3"), claim)
    yield from _on(masked.with_(seq_q=-(-plain.seq_q * 3 // 5), seq_kv=plain.seq_kv), ("normal",), claim)
    for dtype in HALF_DTYPES:
        if dtype != plain.dtype:
            yield from _on(plain.with_(dtype=dtype), ("normal", "uniform", "large_logits"), "dtype")
    short = plain.with_(seq_q=min(plain.seq_q, SHORT_SEQ), seq_kv=min(plain.seq_kv, SHORT_SEQ))
    for head_dim in CLAIMED_HEAD_DIMS:
        if head_dim != plain.head_dim:
            yield from _on(short.with_(head_dim=head_dim, scale=None), ("normal", "large_logits"), "head_dim")
    if problem.group == 1:
        for batch, heads, kv_heads in ((2, 4, 2), (1, 3, 1)):
            yield from _on(short.with_(batch=batch, heads=heads, kv_heads=kv_heads), ("normal",), "enable_gqa")
    for name, further in _OF_FEATURES.items():
        if name not in problem.features and _exists(name, plain):
            for changes, kinds in further:
                yield from _of_feature(plain, name, changes, tuple(INPUT_KINDS) if level == "full" else kinds, level)
    yield from (replace(spec, claim="append") for spec in append_cases(plain))


def _exists(name: str, plain: Problem) -> bool:
    """Whether problems like this one can have the feature: masks are dense, and gradients have no pages."""
    if name in ("paged", "e4m3_cache"):
        return not plain.paged and not plain.backward
    return name not in ("varlen", "attn_mask") or plain.layout_form.dense


def _of_feature(plain: Problem, name: str, changes: Changes, kinds: tuple[str, ...], level: str) -> Iterator[CaseSpec]:
    sizes = {"seq_q": plain.seq_q, "seq_kv": plain.seq_kv}
    if plain.varlen and name in ("paged", "e4m3_cache", "kv_lengths"):
        layout = f"varlen,{changes['layout']}" if "layout" in changes else "varlen:gaps"
        changes = {**changes, "layout": layout}
    problem = plain.with_(**sizes | {field: _of_share(plain, field, share) for field, share in changes.items()})
    yield from _on(problem, kinds, name)
    if level == "full":
        if name == "window_size":
            further = window_edges(problem)
        elif name.endswith("_lengths"):
            further = length_edges(problem, name)
        else:
            form = problem.layout_form
            layouts = [str(form._replace(page_size=size)) for size in PAGE_SIZES] if name == "paged" else [str(form)]
            further = chain.from_iterable(layout_edges(problem.with_(layout=layout)) for layout in layouts)
        yield from (replace(spec, claim=name) for spec in further)


def _of_share(plain: Problem, field: str, share: Any) -> Any:
    """The value of a field; sizes are shares of the sequence."""
    if field not in ("window_size", "kv_lengths", "q_lengths", "seq_q", "seq_kv"):
        return share
    seq = plain.seq_q if field in ("q_lengths", "seq_q") else plain.seq_kv
    return max(1, int(share * seq)) if isinstance(share, float) else tuple(int(each * seq) for each in share)


def _on(problem: Problem, kinds: tuple[str, ...], claim: str) -> Iterator[CaseSpec]:
    """One case for each kind that exists for the problem: normal inputs from a hidden seed, other kinds from a public
    seed."""
    for kind in kinds:
        if kind == "normal":
            yield replace(normal_case(problem), claim=claim)
        elif possible(problem, kind):
            yield CaseSpec(f"{problem.label} {kind}", problem, kind, claim=claim)


def claimed_by(claim: str, about: Mapping[str, Any]) -> str:
    """Place where a candidate with this description makes the claim, as part of a sentence."""
    if about.get("signature"):
        return f"the form {about['signature']} has {claim}"
    if about["kind"] == "callable":
        return f"its parameter {claim} claims it"
    if claim in FEATURES:
        return f"its features name {claim}"
    return "its supports does not refuse it"
