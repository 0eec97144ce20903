"""A bundle with gradients: re-derived by the verifier, and none of their figures can be talked away."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence_sample import MODULE, forge, judged, seal

from sdpalab.compile import build
from sdpalab.evidence import BundleWriter, built_module, verify_bundle
from sdpalab.inputs import Inputs
from sdpalab.judge.rule.gradients import intended_gradients
from sdpalab.judge.verdict import Status, Verdict
from sdpalab.kernels.declarations import Numerics
from sdpalab.problem import Problem

PLAIN = Problem(1, 4, 20, 16, kv_heads=2, task="backward")
RAGGED = Problem(
    2, 2, 20, 16, seq_kv=30, causal=True, bottom_right=True, q_lengths=(20, 7), kv_lengths=(11, 30), task="backward"
)


def gradients(problem: Problem, inputs: Inputs) -> dict[str, Any]:
    """A correct kernel: P and dS rounded to 16 bits, everything else in float32 or better."""
    clean = inputs.padded(0.0)
    scoring = problem.scoring_with(inputs.arrays)
    return intended_gradients(*clean.qkv, clean.arrays["do"], clean.arrays["o"], numerics=Numerics(), **scoring)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cases of a backward kernel, as a directory."""
    built = build(MODULE)
    with BundleWriter(tmp_path_factory.mktemp("gradients"), command=["sdpalab", "repro"]) as writer:
        cases = tuple(
            judged(problem, 0, writer.arrays, gradients, built.ptx_sha256, kind=kind)
            for problem, kind in ((PLAIN, "normal"), (RAGGED, "normal"), (PLAIN, "uniform"))
        )
        assert [case.status for case in cases] == [Status.PASSED] * 3, [case.reason for case in cases]
        verdict = Verdict("honest", "BLOCK_M=64", "simulator sm_89", "quick", 0, cases)
        writer.add("honest", config="BLOCK_M=64", builds=[built_module(MODULE, built)], verdict=verdict)
        tarball = writer.write().tarball
    shutil.unpack_archive(tarball, tarball.parent / "unpacked", filter="data")
    return next((tarball.parent / "unpacked").iterdir())


def test_every_gradient_is_re_derived(bundle: Path) -> None:
    outcome = verify_bundle(bundle)
    assert outcome.findings == []
    assert "3 of 3 cases re-derived" in outcome.summary[0]
    first, *_ = json.loads((bundle / "records/00-honest.json").read_text())["verdict"]["cases"]
    assert first["problem"]["task"] == "backward"
    assert set(first["figures"]) == {"dq", "dk", "dv"}
    assert {"q", "k", "v", "do", "o", "lse", "dq", "yardstick_dq"} < set(first["digests"])


def figure(name: str, part: str, field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Changes a figure of a gradient of the first case."""

    def edit(record: dict[str, Any]) -> None:
        record["verdict"]["cases"][0]["figures"][name][part][field] = value

    return edit


def dropped(record: dict[str, Any]) -> None:
    """Leaves out the figures of dK."""
    del record["verdict"]["cases"][0]["figures"]["dk"]


def best_instead_of_worst(record: dict[str, Any]) -> None:
    """Puts the figures of another gradient in the place of the worst."""
    case = record["verdict"]["cases"][0]
    other = next(each for each in case["figures"].values() if each["errors"] != case["errors"])
    case["errors"], case["limits"] = other["errors"], other["limits"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (figure("dk", "errors", "max_abs", 1e-9), "errors of dk max_abs is 1e-09 in the record"),
        (figure("dv", "limits", "rel_l2", 0.5), "limits of dv rel_l2 is 0.5 in the record"),
        (dropped, "malformed"),
        (best_instead_of_worst, "which uses most of a limit"),
    ],
)
def test_forged_figures_are_rejected(
    edit: Callable[[dict[str, Any]], None], words: str, bundle: Path, tmp_path: Path
) -> None:
    forged = Path(shutil.copytree(bundle, tmp_path / bundle.name))
    forge(forged, edit)
    assert any(words in finding for finding in verify_bundle(forged).findings)


@pytest.mark.parametrize("name", ["o", "lse"])
def test_inputs_that_are_not_of_the_forward_pass_are_rejected(name: str, bundle: Path, tmp_path: Path) -> None:
    """With another O or log-sum-exp a wrong gradient could look right."""
    forged = Path(shutil.copytree(bundle, tmp_path / bundle.name))
    case = json.loads((forged / "records/00-honest.json").read_text())["verdict"]["cases"][0]
    kind = np.float16 if name == "o" else np.float32
    old = forged / "arrays" / f"{case['digests'][name]}.raw"
    array = np.frombuffer(old.read_bytes(), kind).copy()
    array[3] *= kind(1.25)
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    (forged / "arrays" / f"{digest}.raw").write_bytes(array.tobytes())

    def edit(record: dict[str, Any]) -> None:
        record["verdict"]["cases"][0]["digests"][name] = digest

    forge(forged, edit)
    seal(forged)
    assert any(f"its input {name} is not that of the forward pass" in each for each in verify_bundle(forged).findings)
