"""Which cases there are, what becomes of them for one kernel or another, and the relations between outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention import online

from sdpalab.errors import UserError
from sdpalab.inputs import INPUT_KINDS, Inputs, make_inputs
from sdpalab.judge.cases import TRIALS, CaseSpec, cases_for, full_cases, quick_cases, twelve_cases
from sdpalab.judge.rule.relations import RELATIONS, broken_relation
from sdpalab.judge.session import judge_candidate
from sdpalab.judge.verdict import Status
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import MISSION, TWELVE_CASES, Problem

SMALL = Problem(2, 4, 50, 32, kv_heads=2)

FORWARD = [name for name, relation in RELATIONS.items() if relation.applies(SMALL)]
"""Relations between outputs of the forward pass."""


def test_quick_cases_have_a_public_and_a_hidden_seed_probes_relations_and_edges() -> None:
    problem = Problem(2, 8, 4096, 64, kv_heads=2, causal=True)
    specs = quick_cases([problem], seed=7)
    assert [(spec.problem, spec.inputs, spec.seed) for spec in specs[:2]] == [
        (problem, "normal", 7),
        (problem, "normal", None),
    ]
    assert all(spec.derived for spec in specs[2:])
    assert {"uniform", "needle", "forbidden", "ramp", "nan_heads", "large_logits"} < {spec.inputs for spec in specs}
    assert {spec.relation for spec in specs} == {"", *FORWARD}
    gradients = quick_cases([problem.with_(task="backward", dtype="bfloat16")])
    assert {spec.relation for spec in gradients} == {"", "scaled_do", *FORWARD} - {"scaled_v"}
    assert {spec.problem.seq_q for spec in specs if spec.tile == 64} == {63, 64, 65}
    assert 1 in {spec.problem.seq_q for spec in specs}
    assert {spec.problem.group for spec in specs} == {4}
    assert {spec.problem.causal for spec in specs} == {True}
    assert max(spec.problem.seq_q for spec in specs[2:]) == 257
    assert len({spec.name for spec in quick_cases([problem, MISSION])}) == len(quick_cases([problem, MISSION]))


def test_a_kind_that_cannot_be_made_is_left_out() -> None:
    assert not {"needle", "forbidden"} & {spec.inputs for spec in quick_cases([Problem(1, 2, 64, 4)])}
    assert "nan_heads" not in {spec.inputs for spec in quick_cases([Problem(1, 2, 64, 64, kv_heads=1)])}


def test_the_full_level_has_every_kind_both_dtypes_and_masks_and_all_shapes() -> None:
    specs = full_cases([MISSION])
    for dtype in ("float16", "bfloat16"):
        for causal in (False, True):
            mine = {spec.inputs for spec in specs if (spec.problem.dtype, spec.problem.causal) == (dtype, causal)}
            assert mine == set(INPUT_KINDS) - {"hidden_rows", "finite_mask"}
    assert {spec.inputs for spec in full_cases([MISSION.with_(attn_mask="float:1,1")])} == set(INPUT_KINDS)
    assert {spec.problem.dtype for spec in full_cases([MISSION.with_(dtype="float32")])} == {"float32"}
    assert {(True, True), (True, False), (False, True)} <= {
        (spec.problem.seq_q < spec.problem.seq_kv, spec.problem.causal) for spec in specs
    }
    assert {spec.problem.head_dim for spec in specs} >= {32, 64, 128, 256}
    assert max(spec.problem.seq_q for spec in specs) == 4096
    assert sum(spec.trial for spec in specs) == TRIALS
    assert all(spec.seed is None for spec in specs if spec.trial)
    assert all(spec.derived for spec in specs if spec.problem != MISSION)


def test_without_problems_the_twelve_come_first() -> None:
    for level in ("quick", "full"):
        specs = cases_for(level, dtype="bfloat16", causal=True)
        wanted = [(problem.with_(dtype="bfloat16", causal=True), seed) for problem, seed in TWELVE_CASES]
        assert [(spec.problem, spec.seed) for spec in specs[:12]] == wanted
        assert {spec.seed for spec in specs[12:16]} == {None}
    assert {spec.problem.dtype for spec in twelve_cases(dtype="bfloat16")} == {"bfloat16"}
    with pytest.raises(UserError, match="quick or full, not 'max'"):
        cases_for("max")


def test_a_kernel_gets_the_edges_of_its_own_tiles() -> None:
    specs = [CaseSpec(f"edge of {tile}", Problem(1, 1, 8, 32), tile=tile, derived=True) for tile in (0, 16, 32, 64)]
    verdict = judge_candidate("flash", specs, config={"BLOCK_M": "32", "BLOCK_N": "64"}, workers=1)
    assert [case.name for case in verdict.cases] == ["edge of 0", "edge of 32", "edge of 64"]
    assert verdict.passed


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("causal", [False, True])
def test_relations_hold_for_a_right_implementation(name: str, causal: bool) -> None:
    relation, problem = RELATIONS[name], SMALL.with_(causal=causal)
    inputs = make_inputs(problem, "normal", 2)
    out = online(problem, inputs, tile=16)
    changed, related = relation.inputs(problem, inputs)
    assert relation.applies(problem)
    broken, differs = broken_relation(
        relation, problem, {"o": out}, changed, related, {"o": online(changed, related, tile=16)}, Numerics()
    )
    assert (broken, differs) == ("", 0)


def test_a_broken_relation_fails_only_if_it_always_holds() -> None:
    inputs = make_inputs(SMALL, "normal", 2)
    out = online(SMALL, inputs, tile=16)
    for relation in map(RELATIONS.get, FORWARD):
        assert relation is not None
        changed, related = relation.inputs(SMALL, inputs)
        again = online(changed, related, tile=16)
        again[0, 0, 3, :2] = np.nextafter(again[0, 0, 3, :2], np.float16(9))
        broken, differs = broken_relation(relation, SMALL, {"o": out}, changed, related, {"o": again}, Numerics())
        assert differs == 2
        assert bool(broken) == relation.decides
        assert not relation.decides or broken.startswith("2 of")


def test_what_is_wrong_on_related_inputs_is_said() -> None:
    inputs = make_inputs(SMALL, "normal", 2)
    relation = RELATIONS["scaled_v"]
    changed, related = relation.inputs(SMALL, inputs)
    out = online(SMALL, inputs, tile=16)
    broken, _ = broken_relation(relation, SMALL, {"o": out}, changed, related, {"o": out}, Numerics())
    assert broken.startswith("right on its inputs, but wrong on related ones (four times V gives four times O")
    broken, _ = broken_relation(relation, SMALL, {"o": out}, changed, related, {"o": out[:, :1]}, Numerics())
    assert "the output is float16 (2, 1, 50, 32)" in broken


def test_small_numbers_are_left_out_of_the_scaling() -> None:
    problem = Problem(1, 1, 1, 8)
    tiny = np.full(problem.q_shape, 2.0**-20, np.float16)
    assert RELATIONS["scaled_v"].differs({"o": tiny}, {"o": tiny}, problem) == 0
    assert RELATIONS["scaled_v"].differs({"o": tiny * np.float16(256)}, {"o": tiny}, problem) == 8
    rounded_up = np.float64(2.0**-14 - 3 * 2.0**-27)  # to the least normal number, from among the others
    once, four = (np.full_like(tiny, factor * rounded_up) for factor in (1, 4))
    assert (once * np.float16(4) != four).all()
    assert RELATIONS["scaled_v"].differs({"o": once}, {"o": four}, problem) == 0
    ones = Inputs(tiny, tiny, tiny)
    assert RELATIONS["scaled_v"].inputs(problem, ones)[1].v[0, 0, 0, 0] == np.float16(2.0**-18)


def counts_to_ten(q: object, k: object, v: object, *, scale: float, causal: bool) -> object:
    """Right on positive Q[0], and zeros otherwise: right in about half of the trials."""
    import torch

    assert isinstance(q, torch.Tensor)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)
    return out if float(q.flatten()[0]) > 0 else out * 0


def test_the_share_of_trials_that_are_right() -> None:
    specs = [CaseSpec(f"trial {n}", Problem(1, 1, 4, 32), seed=n, trial=True) for n in range(20)]
    verdict = judge_candidate(counts_to_ten, [CaseSpec("no trial", Problem(1, 1, 4, 32)), *specs], workers=1)
    right = sum(make_inputs(spec.problem, "normal", spec.seed or 0).q[0, 0, 0, 0] > 0 for spec in specs)
    assert 0 < right < 20
    assert verdict.fast_0 == right / 20
    assert replace(verdict, cases=verdict.cases[:1]).fast_0 is None
    assert verdict.status is Status.INCORRECT
