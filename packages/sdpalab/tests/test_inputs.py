"""Inputs: the same bytes for the same arguments, and each kind does what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, Inputs, dtype_of, make_inputs
from sdpalab.problem import MISSION, Problem

SMALL = Problem(1, 4, 96, 64, kv_heads=2)
BOTH = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def scores(problem: Problem, inputs: Inputs) -> npt.NDArray[np.float64]:
    """Visible scores in float64, [B, H, Sq, Skv], -inf where the mask hides the key."""
    k = np.repeat(inputs.k.astype(np.float64), problem.group, axis=1)
    s: npt.NDArray[np.float64] = inputs.q.astype(np.float64) @ k.swapaxes(-1, -2) * problem.scale
    if problem.causal:
        s[..., np.arange(problem.seq_kv) > np.arange(problem.seq_q)[:, None]] = -np.inf
    return s


@BOTH
@pytest.mark.parametrize("kind", list(INPUT_KINDS))
def test_shapes_dtypes_and_repeatability(kind: str, dtype: str) -> None:
    problem = SMALL.with_(dtype=dtype)
    inputs = make_inputs(problem, kind, 3)
    for name, shape in (("q", problem.q_shape), ("k", problem.kv_shape), ("v", problem.kv_shape)):
        array: npt.NDArray[Any] = getattr(inputs, name)
        assert array.shape == shape
        assert array.dtype == dtype_of(problem.dtype)
        assert array.flags.c_contiguous
        assert np.isfinite(array.astype(np.float64)).all() or (kind == "nan_heads" and name != "q")
    assert make_inputs(problem, kind, 3).digests() == inputs.digests()
    assert make_inputs(problem, kind, 4).digests()["v"] != inputs.digests()["v"]
    assert len(INPUT_KINDS[kind]) > 40


def test_the_bytes_are_those_of_every_platform() -> None:
    # Recorded once; a change of NumPy, platform or code that changes a bit of any inputs fails here.
    expected = {
        "float16": "aca5acdb6851aefd2bb25d8bf523637725e4a31a59985967c88ff4bca1ca050a",
        "bfloat16": "185f52cadbbb4bbf21f4e54d271af0fc86df9623f9687ca140f456ecd30133d4",
    }
    for dtype, digest in expected.items():
        assert make_inputs(MISSION.with_(dtype=dtype), "normal", 0).digests()["q"] == digest


def test_normal_is_standard_normal_and_independent() -> None:
    inputs = make_inputs(MISSION, "normal", 0)
    q, k, v = (array.astype(np.float64).ravel() for array in (inputs.q, inputs.k, inputs.v))
    for array in (q, k, v):
        assert abs(array.mean()) < 0.01
        assert abs(array.std() - 1.0) < 0.01
        assert abs((array**4).mean() - 3.0) < 0.1
    assert max(abs(np.corrcoef(pair)[0, 1]) for pair in ((q, k), (q, v), (k, v), (q[1:], q[:-1]))) < 0.01


def test_each_tensor_and_problem_has_its_own_stream() -> None:
    one = make_inputs(Problem(1, 2, 64, 64), "normal", 0)
    assert len(set(one.digests().values())) == 3
    assert make_inputs(Problem(2, 1, 64, 64), "normal", 0).digests()["q"] != one.digests()["q"]


def test_uniform_weighs_all_keys_alike() -> None:
    inputs = make_inputs(SMALL, "uniform", 0)
    assert not inputs.k.any()
    assert (inputs.v == np.round(inputs.v)).all()
    assert set(np.unique(inputs.v)) == set(range(-8, 9))


@BOTH
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "problem", [SMALL, Problem(1, 2, 5, 32, seq_kv=300), Problem(1, 1, 64, 8), Problem(1, 1, 1, 64)]
)
def test_a_needle_dominates_every_row(problem: Problem, causal: bool, dtype: str) -> None:
    problem = problem.with_(causal=causal, dtype=dtype)
    s = np.sort(scores(problem, make_inputs(problem, "needle", 1)), axis=-1)
    assert np.isfinite(s[..., -1]).all()
    if problem.seq_kv > 1:
        assert (s[..., -1] - s[..., -2]).min() >= 64.0


def test_every_key_is_a_needle_once() -> None:
    problem = Problem(1, 2, 96, 64, scale=-0.3)
    needles = scores(problem, make_inputs(problem, "needle", 0)).argmax(axis=-1)
    assert (np.sort(needles, axis=-1) == np.arange(96)).all()


@BOTH
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("problem", [SMALL, Problem(2, 2, 40, 32, seq_kv=70), Problem(1, 2, 70, 64, seq_kv=33)])
def test_a_forbidden_key_would_dominate_every_row(problem: Problem, causal: bool, dtype: str) -> None:
    problem = problem.with_(causal=causal, dtype=dtype)
    inputs = make_inputs(problem, "forbidden", 1)
    best = scores(problem, inputs).max(axis=-1)
    q = inputs.q.astype(np.float64)
    k = np.repeat(inputs.k.astype(np.float64), problem.group, axis=1)
    i = np.arange(problem.seq_q)
    own = np.einsum("bhid,bhid->bhi", q, k[:, :, (i + 1) % problem.seq_kv]) * problem.scale
    heads = inputs.k.astype(np.float64).reshape(-1, *inputs.k.shape[2:])
    following = np.roll(heads, -1, axis=0).reshape(inputs.k.shape).repeat(problem.group, axis=1)
    other = np.einsum("bhid,bhid->bhi", q, following[:, :, i % problem.seq_kv]) * problem.scale
    forbidden = np.where((i + 1 < problem.seq_kv) & causal, own, other)
    assert (forbidden - best).min() >= 8.0


def test_onehot_constant_and_negative_are_what_they_are_called() -> None:
    assert (make_inputs(SMALL, "onehot", 0).v.astype(np.float64).sum(axis=-1) == 1.0).all()
    v = make_inputs(SMALL, "constant", 0).v
    assert (v == v[:, :, :1]).all()
    s = scores(SMALL, make_inputs(SMALL, "negative", 0))
    assert -130.0 < s.min() < s.max() < -110.0


def test_a_plateau_shares_the_weight_with_one_key() -> None:
    s = scores(SMALL, make_inputs(SMALL, "plateau", 0))
    weights = np.exp(s - s.max(axis=-1, keepdims=True))
    assert 0.25 < (1.0 / weights.sum(axis=-1)).min() < (1.0 / weights.sum(axis=-1)).max() < 0.75


def test_every_other_head_is_nan() -> None:
    problem = Problem(3, 2, 5, 8)
    inputs = make_inputs(problem, "nan_heads", 0)
    for array in (inputs.k, inputs.v):
        bad = np.isnan(array.astype(np.float64)).reshape(6, -1)
        assert (bad.all(axis=1) == bad.any(axis=1)).all()
        assert np.diff(bad.all(axis=1).astype(int)).all()
    with pytest.raises(UserError, match="one K/V head only"):
        make_inputs(Problem(1, 2, 5, 8, kv_heads=1), "nan_heads")


def test_needle_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UserError, match="head_dim >= 7"):
        make_inputs(Problem(1, 1, 1, 4, seq_kv=100), "needle")
    with pytest.raises(UserError, match="scale 0"):
        make_inputs(Problem(1, 1, 4, 64, scale=0.0), "needle")


@pytest.mark.parametrize(("kind", "sign"), [("ramp", 1.0), ("reverse_ramp", -1.0)])
def test_a_ramp_moves_the_maximum_in_every_tile_of_every_row(kind: str, sign: float) -> None:
    problem = Problem(1, 2, 32, 64, seq_kv=512)
    tiles = scores(problem, make_inputs(problem, kind, 0)).reshape(1, 2, 32, 8, 64).max(axis=-1)
    assert (sign * np.diff(tiles, axis=-1)).min() > 0.5


def test_the_other_kinds_do_what_they_say() -> None:
    plain, big = make_inputs(SMALL, "normal", 0), make_inputs(SMALL, "large_logits", 0)
    assert big.q.astype(np.float64).std() / plain.q.astype(np.float64).std() == pytest.approx(8.0, rel=0.05)
    means = make_inputs(SMALL, "outlier", 0).k.astype(np.float64).mean(axis=(0, 1, 2))
    assert (means > 9.0).sum() == 1
    assert np.abs(np.sort(means)[:-1]).max() < 1.0
    s = scores(SMALL, make_inputs(SMALL, "equal", 0))
    assert np.ptp(s, axis=-1).max() < 1e-12
    assert np.abs(s).max() > 1.0
    assert np.abs(make_inputs(SMALL, "tiny", 0).v.astype(np.float64)).mean() < 2.0**-14
    huge = make_inputs(SMALL, "huge", 0)
    assert np.abs(huge.v.astype(np.float64)).max() > 60000.0
    assert np.abs(huge.q.astype(np.float64)).max() > 4096.0


@pytest.mark.parametrize("seed", [-1, 1.0, True, "0"])
def test_a_seed_that_is_none(seed: Any) -> None:
    with pytest.raises(UserError, match="seed"):
        make_inputs(SMALL, "normal", seed)


def test_an_unknown_kind_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"normal.*not 'gaussian'"):
        make_inputs(SMALL, "gaussian")
