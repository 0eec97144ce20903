"""The yardstick: torch's own output is within its bound, and one that would widen a limit beyond it is rejected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence_sample import PROBLEMS as SAMPLED
from evidence_sample import seal
from standalone import verify

from sdpalab.errors import UserError
from sdpalab.evidence import verify_bundle
from sdpalab.evidence.verifier.cases import SameInputs
from sdpalab.inputs import INPUT_KINDS, make_inputs
from sdpalab.judge.rule.limits import measure
from sdpalab.judge.rule.yardstick import torch_output
from sdpalab.kernels.kernel import Numerics
from sdpalab.problem import Problem

PROBLEMS = (
    Problem(1, 2, 31, 32),
    Problem(2, 4, 9, 64, kv_heads=2, seq_kv=23, causal=True),
    Problem(1, 2, 33, 64, dtype="bfloat16", causal=True, scale=0.5),
    Problem(1, 2, 30, 32, seq_kv=12, window_size=(9, 3)),
    Problem(1, 2, 31, 64, causal=True, window_size=(6, 0), softcap=20.0),
    Problem(2, 2, 20, 32, seq_kv=33, kv_lengths=(0, 21), attn_mask="bool:B,1"),
    Problem(2, 4, 12, 32, kv_heads=2, attn_mask="float:1,H", causal=True, dtype="bfloat16"),
    Problem(1, 3, 26, 32, alibi_slopes=True, sinks=True, window_size=(9, 4)),
    Problem(1, 4, 21, 32, kv_heads=2, causal=True, dtype="float32"),
    Problem(2, 2, 9, 32, kv_lengths=(0, 7), attn_mask="float:1,H", softcap=9.0, sinks=True, dtype="float32"),
    Problem(1, 1, 2, 16, dtype="float32"),
    Problem(1, 1, 512, 64),
    Problem(1, 1, 300, 128, causal=True, dtype="bfloat16"),
)


@pytest.mark.sample(12)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", sorted(INPUT_KINDS))
def test_torchs_own_output_is_well_within_the_bound(problem: Problem, kind: str) -> None:
    try:
        inputs = make_inputs(problem, kind, 5)
    except UserError:
        pytest.skip("this kind cannot be made for this problem")
    names = dict(zip("qkv", inputs.qkv, strict=True)) | {name: getattr(inputs, name) for name in problem.array_shapes}
    members = {f"arrays/{name}.raw": array.tobytes() for name, array in names.items()}
    together = SameInputs({"problem": problem.to_dict(), "digests": {name: name for name in names}}, members)
    yardstick = torch_output(*inputs.qkv, **problem.scoring_with(inputs.arrays))
    error = measure(yardstick, together.reference, problem.dtype).max_abs
    assert error <= 0.6 * together.most_of_yardstick()


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
    with suppress(ValueError):  # what is not finite gives no limits
        case["limits"] = asdict(SameInputs(case, members).limits_for(digest, array, Numerics()))
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
        (not_finite, "the yardstick is not finite on these inputs"),
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
