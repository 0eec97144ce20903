"""The yardstick: torch's own output is within its bound, and one that would widen a limit beyond it is rejected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence_sample import PROBLEMS as SAMPLED
from evidence_sample import seal
from standalone import verify
from test_verify_rule import PROBLEMS, decoded, given

from sdpalab.errors import UserError
from sdpalab.evidence import verify_bundle
from sdpalab.inputs import INPUT_KINDS, make_inputs
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.problem import Problem

LONGER = (Problem(1, 1, 512, 64), Problem(1, 1, 300, 128, causal=True, dtype="bfloat16"))


@pytest.mark.sample(12)
@pytest.mark.parametrize("problem", [*PROBLEMS, *LONGER], ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", sorted(INPUT_KINDS))
def test_torchs_own_output_needs_half_of_the_bound(problem: Problem, kind: str) -> None:
    try:
        inputs = make_inputs(problem, kind, 5)
    except UserError:
        pytest.skip("this kind cannot be made for this problem")
    own_inputs = given(problem, inputs)
    exact = verify.Exact(verify.reference_of(own_inputs), problem.dtype)
    declared = [{**verify.UNDECLARED, "normalise": order} for order in ("after", "before")]
    intended = [verify.errors_of(verify.intended_of(own_inputs, each), exact) for each in declared]
    worst = {name: max(errors[name] for errors in intended) for name in verify.LIMITED}
    most = verify.limits_of(exact, {"max_abs": 0.0}, worst, problem.dtype)["max_abs"]
    yardstick = torch_output(*inputs.qkv, **problem.scoring_with(inputs.arrays))
    assert verify.errors_of(decoded(yardstick, problem.dtype), exact)["max_abs"] <= 0.6 * most


def forge_yardstick(folder: Path, change: Callable[[Any], None]) -> None:
    """Change torch's output of the first case, and recompute limits and digests as an expert attacker would."""
    path = folder / "records/00-honest.json"
    record = json.loads(path.read_text())
    case = record["verdict"]["cases"][0]
    old = folder / f"arrays/{case['digests']['yardstick']}.raw"
    array = np.frombuffer(old.read_bytes(), np.float16).reshape(SAMPLED[0].q_shape).copy()
    change(array)
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    (folder / f"arrays/{digest}.raw").write_bytes(array.tobytes())
    case["digests"]["yardstick"] = digest
    members, _ = verify.read_directory(folder)
    together = verify.SameInputs(case, members)
    exact = verify.Exact(verify.reference_of(together.inputs), "float16")
    case["limits"] = together.limits_for(case, verify.decode(array.tobytes(), array.shape, "float16"), exact)
    path.write_bytes(verify.canonical(record))
    seal(folder)


def one_element(array: Any) -> None:
    array[0, 1, 7, 3] += np.float16(0.25)


def zeros(array: Any) -> None:
    array[:] = 0


def not_finite(array: Any) -> None:
    array[0, 1, 7, 3] = np.nan


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (one_element, "its yardstick, torch's output, errs by 0.25, and its precision allows"),
        (zeros, "its yardstick, torch's output, errs by"),
        (not_finite, "its yardstick, torch's output, is not finite"),
    ],
)
def test_a_forged_yardstick_widens_no_limit(unpacked: Path, change: Callable[[Any], None], expected: str) -> None:
    forge_yardstick(unpacked, change)
    findings = verify_bundle(unpacked, report=False).findings
    assert any(finding.startswith("records/00-honest.json") and expected in finding for finding in findings), findings


def test_a_yardstick_that_widens_nothing_is_no_finding(unpacked: Path) -> None:
    def half_an_ulp(array: Any) -> None:
        array[0, 1, 7, 3] = np.nextafter(array[0, 1, 7, 3], np.float16(0))

    forge_yardstick(unpacked, half_an_ulp)
    findings = verify_bundle(unpacked, report=False).findings
    assert not any("yardstick" in finding for finding in findings), findings
