"""A bundle with windows, soft caps, masks, lengths, ALiBi and sinks: re-derived by the verifier, and none of them can
be talked away."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence_sample import MODULE, honest, judged
from standalone import verify

from sdpalab.compile import build
from sdpalab.evidence import BundleWriter, built_module, verify_bundle
from sdpalab.inputs import make_inputs
from sdpalab.judge.verdict import Status, Verdict
from sdpalab.problem import Problem

WINDOW = Problem(1, 2, 33, 32, window_size=(9, 4))
TALL = Problem(1, 2, 30, 32, seq_kv=12, window_size=(9, 3), softcap=20.0)  # the last rows see no key
PADDED = Problem(2, 2, 20, 32, seq_kv=33, kv_lengths=(0, 21), attn_mask="float:B,1")
SINK = Problem(1, 2, 20, 32, alibi_slopes=True, sinks=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five cases with the log-sum-exp, as a directory."""
    built = build(MODULE)
    with BundleWriter(tmp_path_factory.mktemp("windows"), command=["sdpalab", "repro"]) as writer:
        cases = tuple(
            judged(problem, 0, writer.arrays, honest, built.ptx_sha256, kind=kind, lse=True)
            for problem, kind in (
                (WINDOW, "normal"),
                (TALL, "normal"),
                (WINDOW, "needle"),
                (PADDED, "normal"),
                (SINK, "uniform"),
            )
        )
        assert [case.status for case in cases] == [Status.PASSED] * 5, [case.reason for case in cases]
        verdict = Verdict("honest", "BLOCK_M=64", "simulator sm_89", "quick", 0, cases)
        writer.add("honest", config="BLOCK_M=64", builds=[built_module(MODULE, built)], verdict=verdict)
        tarball = writer.write().tarball
    shutil.unpack_archive(tarball, tarball.parent / "unpacked", filter="data")
    return next((tarball.parent / "unpacked").iterdir())


def test_every_case_is_re_derived(bundle: Path) -> None:
    outcome = verify_bundle(bundle)
    assert outcome.findings == []
    assert "5 of 5 cases re-derived" in outcome.summary[0]
    record = json.loads((bundle / "records/00-honest.json").read_text())
    first, tall, needle, padded, sink = (case["problem"] for case in record["verdict"]["cases"])
    assert padded["kv_lengths"] == [0, 21]
    assert padded["attn_mask"] == "float:B,1"
    assert sink["sinks"] is sink["alibi_slopes"] is True
    assert first["window_size"] == needle["window_size"] == [9, 4]
    assert "softcap" not in first
    assert tall["softcap"] == 20.0


def problem_of(number: int, **changes: Any) -> Callable[[dict[str, Any]], object]:
    """Changes the problem of a case; None takes a field away."""

    def edit(record: dict[str, Any]) -> None:
        problem = record["verdict"]["cases"][number]["problem"]
        problem.update(changes)
        for name, value in changes.items():
            if value is None:
                del problem[name]

    return edit


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (problem_of(0, window_size=[10, 4]), "is not what normal inputs of seed 0 are"),
        (problem_of(0, window_size=[9, 5]), "the record says PASSED, and its arrays say INCORRECT"),
        (problem_of(2, window_size=[8, 4]), "the record says PASSED, and its arrays say INCORRECT"),
        (problem_of(0, window_size=None), "the record says PASSED, and its arrays say INCORRECT"),
        (problem_of(1, softcap=None), "the record says PASSED, and its arrays say INCORRECT"),
        (problem_of(1, softcap=0.0), "the fields of its problem are not those of the format"),
        (problem_of(0, sinks=1), "PASSED without the array sinks that shows it"),
        (problem_of(0, drop=1), "the fields of its problem are not those of the format"),
        (problem_of(3, kv_lengths=[0, 22]), "its array of kv_lengths is not that of its problem"),
        (problem_of(3, kv_lengths=None), "malformed (ValueError: no row is judged"),
        (problem_of(3, attn_mask=None), "it names arrays that it cannot have: attn_mask"),
        (problem_of(3, attn_mask="bool:B,1"), "malformed"),
        (problem_of(4, sinks=None), "the record says PASSED, and its arrays say INCORRECT"),
        (problem_of(4, alibi_slopes=None), "the record says PASSED, and its arrays say INCORRECT"),
    ],
)
def test_a_forged_problem_is_rejected(bundle: Path, edit: Callable[[dict[str, Any]], object], expected: str) -> None:
    members, _ = verify.read_directory(bundle)
    record = json.loads(members["records/00-honest.json"])
    edit(record)
    checker = verify.Checker({**members, "records/00-honest.json": verify.canonical(record)})
    checker.run()
    assert any(expected in finding for finding in checker.outcome.findings), checker.outcome.findings


def test_padding_is_nan_since_format_8(bundle: Path) -> None:
    """A record with numbers in K behind the lengths does not show that its kernel does not read them."""
    members, _ = verify.read_directory(bundle)
    record = json.loads(members["records/00-honest.json"])
    padded = record["verdict"]["cases"][3]
    k, path = make_inputs(PADDED).k, f"arrays/{padded['digests']['k']}.raw"
    assert members[path] == k.tobytes()
    assert np.isnan(k[0]).all()
    assert np.isnan(k[1, :, 21:]).all()
    clean = np.nan_to_num(k).tobytes()
    del members[path]
    padded["digests"]["k"] = hashlib.sha256(clean).hexdigest()
    members[f"arrays/{padded['digests']['k']}.raw"] = clean
    checker = verify.Checker({**members, "records/00-honest.json": verify.canonical(record)})
    checker.run()
    findings = [finding.partition(": ")[2] for finding in checker.outcome.findings]
    assert findings == ["the padding of k is not NaN", "k is not what normal inputs of seed 0 are"]
