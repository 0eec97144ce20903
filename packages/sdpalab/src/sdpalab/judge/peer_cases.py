"""Named sets of cases: the parametrisations of the peers' own test files, as data.

``flash-attn``
    tests/test_flash_attn.py of Dao-AILab/flash-attention at 0251105a (2026-08-15).
``torch``
    SDPA in test/test_transformers.py of pytorch/pytorch: ``flash_attention_vs_math_ref_grads``,
    ``mem_efficient_attention(_attn_mask)_vs_math_ref_grads``, ``fused_attention_mask_vs_math``.

Each test keeps its list of lengths, with and without the causal mask. Its other parameters are no full product: they
take turns, so that every value occurs. Batches and heads are fewer, with the same forms (MHA, MQA, GQA), and inputs are
those of the judge. :data:`LEFT_OUT` has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from sdpalab.errors import UserError
from sdpalab.judge.small_cases import CaseSpec, normal_case
from sdpalab.judge.strides import Strides
from sdpalab.problem import HALF_DTYPES, Problem

__all__ = ["CASE_SETS", "LEFT_OUT", "peer_cases"]

LEFT_OUT: Mapping[str, str] = {
    "flash-attn": "dropout, rotary embeddings, leftpad and cache_batch_idx (a problem has none of them); 100000 and "
    "131072 keys (minutes a case on the simulator); packed QKV (the same problem)",
    "torch": "dropout; two thirds of the pairs of lengths; 2016 rows and more with a mask per batch entry "
    "(too many scores for the simulator); nested tensors",
}
"""Parametrisations that a set leaves out, and why."""

_MOST_SCORES = 1 << 20
"""Scores of a head above which a case has one head and one batch entry."""

_DIMS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
_SHAPES = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256))
_LONG = ((1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048))
_CAUSAL = ((1, 239), (3, 799), (127, 512), (127, 513), *_SHAPES[:5], (1023, 1024))
_SPLIT = ((3, 1024), (1, 339), (64, 800), (3, 799), (64, 2048), (16, 20000), (128, 128), (256, 256))
_CACHE = ((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000), (128, 128))
_RACE = ((1, 239), (239, 1), (3, 799), (799, 3), (1024, 128), (97, 97), (200, 200), (257, 257), (384, 384), (768, 768))
_PACKED = (97, 128, 200, 257, 384, 512, 768, 1025)
_OF_TORCH = (4, 8, 64, 128, 256, 512, 1024, 2048)
_WITH_MASK = (4, 8, 64, 65, 128, 256, 312, 408, 512, 1024, 2048)
_MASK_PER_ENTRY = ((576, 576, 64), (576, 77, 64), (144, 144, 64), (144, 77, 64), (1, 32, 128), (32, 32, 128))

MHA, MQA, GQA = (2, 2), (3, 1), (6, 2)
"""Query heads, and heads of K and V."""


class _Test(NamedTuple):
    """A test of a peer: pairs of lengths, head dimensions, and parameters that take turns.

    ``kind`` is dense, varlen or cache; ``only`` is the task if the test has one only, ``gradients`` whether it also
    checks those of the forward problems.
    """

    name: str
    kind: str
    lengths: Sequence[tuple[int, int]]
    dims: Sequence[int] = _DIMS
    heads: Sequence[tuple[int, int]] = (MHA,)
    causal: Sequence[bool] = (False, True)
    turns: Mapping[str, Sequence[Any]] = {}
    gradients: bool = True
    only: str = ""
    inputs: str = "normal"
    strides: Strides = Strides.CONTIGUOUS


_HALF = {"dtype": HALF_DTYPES}
_FLASH = {**_HALF, "window_size": (None, "local"), "alibi_slopes": (False, True)}
_LOCAL = {**_HALF, "window_size": (None, "local")}
_ALL_HEADS = (MHA, MQA, GQA)


def _square(*lengths: int) -> tuple[tuple[int, int], ...]:
    return tuple((length, length) for length in lengths)


def _swapped(shapes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(dict.fromkeys((*shapes, *(shape[::-1] for shape in shapes))))


CASE_SETS: Mapping[str, tuple[_Test, ...]] = {
    "flash-attn": (
        _Test("output", "dense", (*_SHAPES, *_LONG), _DIMS, _ALL_HEADS, turns={**_FLASH, "softcap": (0.0, 50.0)}),
        _Test(
            *("varlen_output", "varlen", ((1, 147), *_SHAPES, *_LONG), _DIMS, _ALL_HEADS),
            turns={**_FLASH, "softcap": (0.0, 50.0)},
        ),
        _Test("varlen_qkvpacked", "varlen", _square(*_PACKED), turns=_FLASH),
        _Test("causal", "dense", _swapped(_CAUSAL), causal=(True,), turns=_LOCAL),
        _Test(
            *("varlen_causal", "varlen", _swapped(_CAUSAL)),
            causal=(True,),
            turns={**_LOCAL, "layout": ("varlen", "varlen,paged:256", "varlen,paged:512")},
            gradients=False,
        ),
        _Test("splitkv", "dense", _swapped(_SPLIT), turns=_FLASH, gradients=False),
        _Test(
            *("kvcache", "cache", _CACHE, (32, 59, 64, 80, 128, 256), (MHA, MQA, (4, 2))),
            turns={
                "layout": ("dense", "paged:256"),
                "window_size": (None, "local"),
                "alibi_slopes": (False, True),
                "strides": (Strides.CONTIGUOUS, Strides.APPENDED),
            },
            gradients=False,
        ),
        _Test("race_condition", "dense", _RACE),
        _Test("bwd_overflow", "dense", _square(1, 2, 5, 17, 128), (16, 32, 64), only="backward", inputs="large_logits"),
        _Test(
            *("bwd_transpose", "dense", _square(97, 128, 200, 256), (64, 128)),
            turns=_HALF,
            only="backward",
            strides=Strides.BSHD,
        ),
    ),
    "torch": (
        _Test(
            *("flash", "dense", [pair for n, pair in enumerate(product(_OF_TORCH, _OF_TORCH)) if n % 3 == 0]),
            *((8, 16, 32, 64, 96, 128), (MHA, GQA)),
            turns={**_HALF, "scale": (None, "l1")},
        ),
        _Test(
            *("mem_efficient_mask", "dense"),
            [pair for n, pair in enumerate(product(_WITH_MASK, _WITH_MASK)) if n % 3 == 0],
            (8, 16, 32, 64, 72, 96, 128),
            causal=(False,),
            turns={"dtype": ("float16", "bfloat16", "float32"), "scale": (None, "l1"), "attn_mask": ("float:1,1",)},
        ),
        *(
            _Test(
                *("mask_vs_math", "dense", ((rows, keys),), (dim,)),
                causal=(False,),
                turns={"attn_mask": (form,)},
                gradients=False,
            )
            for (rows, keys, dim), form in product(_MASK_PER_ENTRY, ("float:B,1", "bool:B,1"))
        ),
    ),
}
"""The tests of each set."""


def peer_cases(name: str, task: str = "forward") -> tuple[CaseSpec, ...]:
    """The cases of a set for a task; each is skipped for a candidate that does not support it.

    Raises
    ------
    UserError
        If there is no such set.
    """
    if name not in CASE_SETS:
        raise UserError(f"--cases is {' or '.join(CASE_SETS)}, not {name!r}")
    chosen: dict[str, CaseSpec] = {}
    for test in CASE_SETS[name]:
        if test.only == task or (not test.only and (task == "forward" or test.gradients)):
            chosen |= {spec.name: spec for spec in _cases(test, task, bottom_right=name == "flash-attn")}
    return tuple(chosen.values())


def _cases(test: _Test, task: str, *, bottom_right: bool) -> Iterator[CaseSpec]:
    for turn, ((rows, keys), causal) in enumerate(product(test.lengths, test.causal)):
        # Each parameter takes turns at another pace, so that pairs of values occur, too.
        paced = enumerate(test.turns.items(), start=2)
        fields = {each: values[turn // pace % len(values)] for pace, (each, values) in paced}
        strides = fields.pop("strides", test.strides)
        heads, kv_heads = test.heads[turn % len(test.heads)]
        batch = 3 if test.kind == "varlen" else 2
        if rows * keys > _MOST_SCORES // 2:
            batch, heads, kv_heads = 1, 1, 1
        if fields.get("window_size"):
            fields["window_size"] = (keys // 3, 0 if causal else keys // 5)
        if fields.get("scale"):
            fields["scale"] = 1.0 / test.dims[turn % len(test.dims)]
        fields |= _lengths(test.kind, batch, rows, keys)
        if test.kind == "varlen":
            fields.setdefault("layout", "varlen")
        problem = Problem(
            *(batch, heads, rows, test.dims[turn % len(test.dims)]),
            kv_heads=kv_heads,
            seq_kv=keys,
            causal=causal,
            bottom_right=bottom_right,
            task=task,
            **fields,
        )
        how = "" if strides is Strides.CONTIGUOUS else f" {strides.value}"
        spec = replace(normal_case(problem), inputs=test.inputs, strides=strides, derived=True)
        yield replace(spec, name=f"{test.name} {problem.label}{how}", seed=0)


def _lengths(kind: str, batch: int, rows: int, keys: int) -> dict[str, tuple[int, ...]]:
    """Lengths of sequences: the longest, 20 less at most, and a third, as the random ones of the tests."""
    if kind == "dense":
        return {}
    if kind == "cache":
        return {"kv_lengths": (keys, max(rows, keys * 2 // 5))[:batch]}
    queries = (rows, max(1, rows // 3), max(1, rows - 11))
    return {"q_lengths": queries[:batch], "kv_lengths": (keys, max(1, keys - 17), max(1, keys // 3))[:batch]}
