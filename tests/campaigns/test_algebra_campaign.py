"""The campaign in exact arithmetic: its mutants, and its committed record against what the lab ships."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpalab.bugs.catalogue import BUGS
from sdpalab.campaigns.algebra import excluded
from sdpalab.campaigns.float_mutants import float_sites, probes, reaches_only
from sdpalab.kernels.registry import KERNELS
from sdpalab.sim.parser import parse

RECORDS = Path(__file__).parents[2] / "evidence" / "campaigns"
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
    paths = sorted(RECORDS.glob("algebra-*.json"))
    assert paths, "run: sdpalab campaign algebra"
    record = json.loads(paths[-1].read_text())
    assert {kernel["kernel"]: kernel["outcome"] for kernel in record["kernels"]} == dict.fromkeys(KERNELS, "equal")
    for kernel in record["kernels"]:
        assert kernel["mutants"]
        for mutant in kernel["mutants"]:
            assert mutant["outcome"] != "equal" or mutant["reason"], mutant
    outcomes = {each["bug"]: each["outcome"] for each in record["bugs"]}
    planted = {bug.id for bug in BUGS.values() if bug.in_source}
    assert set(outcomes) <= planted
    wanted = {name for name in planted if name in outcomes or not excluded(BUGS[name])}
    assert len(outcomes) > 0.9 * len(wanted), "the record is too old: sdpalab campaign algebra"
    for name, outcome in outcomes.items():
        missed = outcome in ("left out", "equal", "not algebraic", "not run")
        assert not missed or excluded(BUGS[name]), f"{name}: {outcome}, and there is no reason for it"


@pytest.mark.parametrize("words", ["the maximum starts at 0", "the sign of the scale ignored"])
def test_bugs_that_exact_arithmetic_cannot_show_have_a_reason(words: str) -> None:
    reasons = [excluded(bug) for bug in BUGS.values() if words in bug.id]
    assert reasons
    assert all(reasons)
