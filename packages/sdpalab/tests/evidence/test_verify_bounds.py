"""The verifier bounds the work of a bundle by its sizes alone, before any work."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from evidence_sample import Sample, forge
from standalone import verify

from sdpalab.evidence import verify_bundle
from sdpalab.judge.algebra.stage import algebra_problems
from sdpalab.judge.same_code import LARGE_PROBLEMS
from sdpalab.problem import NAMED_PROBLEMS, Problem


def ask(folder: Path, **sizes: int) -> None:
    """Ask for a problem of these sizes in the first case, with arrays of zeros that have them."""

    def edit(record: dict[str, Any]) -> None:
        case = record["verdict"]["cases"][0]
        case["problem"].update(sizes)
        for name in ("q", "k", "v", "o", "yardstick"):
            problem = Problem(**case["problem"])
            content = bytes(2 * math.prod(problem.kv_shape if name in "kv" else problem.q_shape))
            case["digests"][name] = hashlib.sha256(content).hexdigest()
            (folder / f"arrays/{case['digests'][name]}.raw").write_bytes(content)
        case["inputs"] = "zeros"

    forge(folder, edit)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            {"heads": 1, "kv_heads": 1, "seq_q": 10**6, "seq_kv": 10**6, "head_dim": 1},
            "records: its cases ask for 1.0e+12 scores, and at most 6.9e+10 are derived",
        ),
        (
            {"heads": 1, "kv_heads": 1, "seq_q": 4000, "seq_kv": 10**6, "head_dim": 1},
            "records: a case asks for 5.1e+08 scores at once, and at most 2.7e+08 are",
        ),
        (
            {"heads": 4096, "kv_heads": 1, "seq_q": 1, "seq_kv": 10**6, "head_dim": 1},
            "records: its cases ask for 2.6e+11 scores, and at most 6.9e+10 are derived",
        ),
    ],
)
def test_a_record_that_asks_for_too_many_scores_is_refused_before_any_work(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], expected: str
) -> None:
    from sdpalab.evidence.verifier import cases

    def never(*_: Any) -> None:
        raise AssertionError("work was done")

    monkeypatch.setattr(cases, "derived_together", never)
    ask(unpacked, **sizes)
    assert verify_bundle(unpacked).findings == [expected]


def test_exact_arithmetic_is_bounded_too() -> None:
    asked = {"problem": {"batch": 2, "heads": 64, "seq_q": 2048, "seq_kv": 2048, "head_dim": 32}}
    assert verify.excess_of([asked], []) == ""
    assert "scores at once" in verify.excess_of([], [asked])
    assert verify.excess_of([{"problem": None}, {}, 3], []) == ""


def test_what_the_lab_judges_is_far_below_the_bounds() -> None:
    large = [*LARGE_PROBLEMS, *NAMED_PROBLEMS.values(), Problem(1, 32, 16384, 128)]
    small = [each for problem in large for each in algebra_problems(problem)]
    for problem in large:
        assert verify.excess_of([{"problem": problem.to_dict()}] * 4, []) == "", problem.label
    assert verify.excess_of([], [{"problem": problem.to_dict()} for problem in small]) == ""


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify.module_with("MAX_BYTES"), "MAX_BYTES", 1 << 20)
    blob = verify.HEADER + gzip.compress(bytes(64 << 20), 1, mtime=0)[10:]
    assert len(blob) < 1 << 20
    assert verify.unpack(blob)[2] == ["archive: it is larger than 1048576 bytes when it is unpacked"]


def test_a_bundle_larger_than_the_limit_is_not_read(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify.module_with("MAX_BYTES"), "MAX_BYTES", 1000)
    with pytest.raises(verify.NotABundleError, match="larger than 1000 bytes"):
        verify.read(sample.written.tarball)


def test_sizes_of_any_type_are_malformed_and_cost_nothing(unpacked: Path) -> None:
    for value in (1e12, "1000000", None, [10**6], True, -5):
        forge(unpacked, lambda r, value=value: r["verdict"]["cases"][0]["problem"].update(seq_q=value))
        findings = verify_bundle(unpacked).findings
        assert any("malformed" in finding or "scores" in finding for finding in findings), (value, findings)
        assert json.loads((unpacked / "records/00-honest.json").read_text())
