"""The campaign in exact arithmetic: its mutants, and its committed record against what the lab ships."""

from __future__ import annotations

import json

import pytest

from lab import ROOT
from lab.algebra_bugs import NO_FORM, SAME_CODE, bug_entry, excluded, quick_problems
from lab.float_mutants import float_sites, probes, reaches_only
from sdpalab.bugs.catalogue import BUGS
from sdpalab.kernels.registry import KERNELS
from warpsan.ptx.parser import parse

RECORDS = ROOT / "evidence" / "campaigns"
BODY = """.version 8.0
.target sm_89
.address_size 64
.visible .entry k(.param .u64 out) {
 .reg .f32 %f<9>; .reg .b32 %r<9>; .reg .b64 %rd<2>; .reg .pred %p<3>;
 ld.param.u64 %rd1, [out];
 mov.f32 %f1, 0f40000000;
 add.f32 %f2, %f1, %f1;
 @%p1 max.f32 %f3, %f2, %f1;
 fma.rn.f32 %f4, %f1, %f2, %f3;
 ex2.approx.ftz.f32 %f5, %f4;
 setp.gt.f32 %p2, %f3, %f1;
 cvt.rn.f16x2.f32 %r1, %f5, %f4;
 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};
 st.global.f32 [%rd1], %f5;
 ret;
}
"""


def test_each_floating_point_instruction_has_a_wrong_one() -> None:
    mutants = {site.opcode: site.mutant for site in float_sites(BODY, "k")}
    assert mutants == {
        "add.f32": "sub.f32 %f2, %f1, %f1;",
        "max.f32": "@%p1 min.f32 %f3, %f2, %f1;",
        "fma.rn.f32": "fma.rn.f32 %f4, %f2, %f3, %f1;",
        "ex2.approx.ftz.f32": "mov.b32 %f5, %f4;",
        "setp.gt.f32": "setp.le.f32 %p2, %f3, %f1;",
        "cvt.rn.f16x2.f32": "cvt.rn.f16x2.f32 %r1, %f4, %f5;",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r6, %r5}, "
            "{%f1,%f2,%f3,%f4};"
        ),
    }
    for site in float_sites(BODY, "k"):
        for text in (site.apply(BODY), *(site.apply(BODY, statement) for statement in probes(site).values())):
            assert text != BODY
            parse(text)


def test_what_reaches_only_a_comparison() -> None:
    text = BODY.replace("fma.rn.f32 %f4, %f1, %f2, %f3;", "mul.f32 %f4, %f1, %f1;").replace(
        "{%f1,%f2,%f3,%f4};", "{%f1,%f1,%f1,%f1};"
    )
    code = parse(text).entries["k"]
    reasons = {site.opcode: reaches_only(code, site) for site in float_sites(text, "k")}
    assert reasons["max.f32"] == "it reaches only a comparison"
    assert reasons["ex2.approx.ftz.f32"] == ""


def test_the_record_is_of_every_shipped_kernel_and_bug() -> None:
    records = [json.loads(path.read_text()) for path in RECORDS.glob("algebra-*.json")]
    assert records, "run: python -m lab algebra"
    record = max(records, key=lambda each: str(each["when"]))
    assert {kernel["kernel"]: kernel["outcome"] for kernel in record["kernels"]} == dict.fromkeys(KERNELS, "equal")
    for kernel in record["kernels"]:
        assert kernel["mutants"]
        for mutant in kernel["mutants"]:
            assert mutant["outcome"] != "equal" or mutant["reason"], mutant
    outcomes, reasons = ({each["bug"]: each[field] for each in record["bugs"]} for field in ("outcome", "reason"))
    planted = {bug.id for bug in BUGS.values() if bug.in_source}
    wanted = {name for name in planted if name in outcomes or not excluded(BUGS[name])}
    asked = planted & set(outcomes)
    assert len(asked) > 0.85 * max(len(wanted), len(outcomes)), "the record is too old: python -m lab algebra"
    for name in sorted(asked):
        outcome = outcomes[name]
        missed = outcome in ("equal", "not algebraic", "not run", "left out")
        because = excluded(BUGS[name]) or (outcome == "left out" and reasons[name] in (NO_FORM, SAME_CODE))
        assert not missed or because, f"{name}: {outcome}, and there is no reason for it"


def test_bugs_are_asked_on_what_the_kernel_claims() -> None:
    asked = [*quick_problems(BUGS["flash: unasked: query head h reads K/V head h mod Hkv"])]
    assert any(each.group > 1 for each in asked)
    assert {128, 64, 32} <= {each.head_dim for each in asked}
    assert {each.dtype for each in asked} == {"float16", "bfloat16"}
    assert {name for each in asked for name in each.features} >= {"window_size", "kv_lengths"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("scalar: unasked: query head h reads K/V head h mod Hkv", "unequal"),
        ("flash: unasked: the window is one key too wide on the left", "unequal"),
        ("flash: unasked: of O, columns from 64 on are not rescaled", "unequal"),
        ("flash: unasked: the soft cap is half of what it should be", "left out"),
    ],
)
def test_bugs_that_show_only_on_claims(name: str, outcome: str) -> None:
    entry = bug_entry(BUGS[name])
    assert entry["outcome"] == outcome
    assert (entry["reason"] == SAME_CODE) is (outcome == "left out")


@pytest.mark.parametrize("words", ["the maximum starts at 0", "the sign of the scale ignored"])
def test_bugs_that_exact_arithmetic_cannot_show_have_a_reason(words: str) -> None:
    reasons = [excluded(bug) for bug in BUGS.values() if words in bug.id]
    assert reasons
    assert all(reasons)
