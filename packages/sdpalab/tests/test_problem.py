"""Problem: what it accepts, what it refuses, and the numbers that follow from it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpalab.errors import UserError
from sdpalab.problem import MISSION, NAMED_PROBLEMS, TWELVE_CASES, Problem, parse_shape

small = st.integers(1, 9)


@given(b=small, group=small, hkv=small, sq=small, skv=small, d=small, causal=st.booleans())
def test_counts_are_those_of_the_mask(b: int, group: int, hkv: int, sq: int, skv: int, d: int, causal: bool) -> None:
    problem = Problem(b, hkv * group, sq, d, kv_heads=hkv, seq_kv=skv, causal=causal)
    visible = np.ones((sq, skv), bool)
    if causal:
        visible = np.arange(skv) <= np.arange(sq)[:, None]
    pairs = b * hkv * group * int(visible.sum())
    assert problem.scores == problem.exponentials == pairs
    assert problem.flops == 4 * d * pairs
    rows, keys = int(visible.any(axis=1).sum()) + sq, 2 * int(visible.any(axis=0).sum())
    assert problem.least_bytes == 2 * b * hkv * d * (group * rows + keys)
    assert problem.group == group


sides = st.integers(-1, 9)


@given(b=small, sq=small, skv=small, left=sides, right=sides, causal=st.booleans())
def test_counts_follow_the_window(b: int, sq: int, skv: int, left: int, right: int, causal: bool) -> None:
    problem = Problem(b, 2, sq, 8, seq_kv=skv, causal=causal, window_size=(left, right))
    rows, keys = np.arange(sq)[:, None], np.arange(skv)
    visible = np.ones((sq, skv), bool)
    visible &= (left < 0) | (keys >= rows - left)
    visible &= (right < 0) | (keys <= rows + right)
    visible &= (not causal) | (keys <= rows)
    assert problem.scores == problem.exponentials == 2 * b * int(visible.sum())
    read = int(visible.any(axis=1).sum()) + sq + 2 * int(visible.any(axis=0).sum())
    assert problem.least_bytes == 2 * 2 * b * 8 * read


def test_a_window_has_one_form() -> None:
    assert MISSION.with_(window_size=(-1, -1)) == MISSION
    causal = MISSION.with_(causal=True)
    assert causal.with_(window_size=(-1, 7)) == causal
    assert causal.with_(window_size=(5, 7)) == causal.with_(window_size=[5, -1])
    assert causal.with_(window_size=(5, 7)).window_size == (5, 0)


def test_extras_are_in_the_label_and_the_json_only_where_they_are_set() -> None:
    problem = MISSION.with_(window_size=(128, 0), softcap=30.0)
    assert problem.label == "1x8x512x64 window=128,0 softcap=30"
    assert Problem(**json.loads(json.dumps(problem.to_dict()))) == problem
    assert set(problem.to_dict()) - set(MISSION.to_dict()) == {"window_size", "softcap"}
    assert problem.features == ("window_size", "softcap")
    assert problem.scoring == {"scale": 0.125, "causal": False, "window_size": (128, 0), "softcap": 30.0}
    assert MISSION.scoring == {"scale": 0.125, "causal": False}
    assert "window" not in MISSION.label + json.dumps(MISSION.to_dict())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"window_size": (3,)}, "window_size must be two integers"),
        ({"window_size": (3, -2)}, "window_size must be two integers"),
        ({"window_size": (3.0, 2)}, "window_size must be two integers"),
        ({"window_size": 3}, "window_size must be two integers"),
        ({"softcap": -1.0}, "softcap must be a positive number"),
        ({"softcap": math.inf}, "softcap must be a positive number"),
        ({"softcap": True}, "softcap must be a positive number"),
    ],
)
def test_bad_windows_and_caps_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        MISSION.with_(**fields)


def test_mission_numbers() -> None:
    assert MISSION.flops == 4 * 8 * 512 * 512 * 64 == 536870912
    assert MISSION.least_bytes == 4 * 8 * 512 * 64 * 2 == 2097152
    assert MISSION.exponentials == 2097152
    assert MISSION.scale == 0.125


def test_defaults_follow_the_fields_they_depend_on() -> None:
    wide = MISSION.with_(heads=4, seq_q=100, head_dim=128)
    assert (wide.kv_heads, wide.seq_kv, wide.scale) == (4, 100, 1.0 / math.sqrt(128))
    changed = Problem(1, 8, 512, 64, kv_heads=2, seq_kv=9, scale=0.5).with_(seq_q=7, head_dim=32)
    assert (changed.kv_heads, changed.seq_kv, changed.scale) == (2, 9, 0.5)


def test_frozen_hashable_and_json() -> None:
    problem = Problem(2, 8, 333, 64, kv_heads=2, seq_kv=400, dtype="bfloat16", causal=True, scale=0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.batch = 3
    again = Problem(**json.loads(json.dumps(problem.to_dict())))
    assert again == problem
    assert hash(again) == hash(problem)
    assert problem.label == "2x8x333x64/kv2x400 causal bfloat16 scale=0.5"


def test_the_twelve_cases_are_four_shapes_with_three_seeds() -> None:
    assert len(TWELVE_CASES) == len(set(TWELVE_CASES)) == 12
    shapes = {problem.q_shape for problem, _ in TWELVE_CASES}
    assert shapes == {(1, 2, 64, 64), (1, 4, 128, 64), (1, 8, 512, 64), (2, 2, 64, 64)}
    assert {seed for _, seed in TWELVE_CASES} == {0, 1, 2}
    assert NAMED_PROBLEMS["mission"] is MISSION


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"batch": 0}, "batch"),
        ({"heads": -1}, "heads"),
        ({"seq_q": 1.5}, "seq_q"),
        ({"seq_q": True}, "seq_q"),
        ({"head_dim": "64"}, "head_dim"),
        ({"seq_kv": 0}, "seq_kv"),
        ({"kv_heads": 3}, "divide"),
        ({"dtype": "float8"}, "dtype"),
        ({"causal": 1}, "causal"),
        ({"scale": float("inf")}, "scale"),
        ({"scale": "1"}, "scale"),
    ],
)
def test_what_cannot_be_a_problem(changes: dict[str, Any], word: str) -> None:
    fields: dict[str, Any] = {"batch": 1, "heads": 8, "seq_q": 16, "head_dim": 64}
    with pytest.raises(UserError, match=word):
        Problem(**(fields | changes))


def test_parse_shape() -> None:
    assert parse_shape("1,8,512,64") == (1, 8, 512, 64)
    for text in ("1,8,512", "1,8,512,64,1", "1,8,0,64", "1,-8,512,64", "1,8,x,64", "", "1,8,512,64.0"):
        with pytest.raises(UserError, match="shape"):
            parse_shape(text)
