"""A bundle of probes: exact elements, heads of NaN and quantised numerics are re-derived, and cannot be talked away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from evidence_sample import MODULE, honest, judged
from standalone import verify

from sdpalab.compile import build
from sdpalab.evidence import BundleWriter, built_module, verify_bundle
from sdpalab.inputs import Inputs
from sdpalab.judge.rule.numerics import intended_output
from sdpalab.judge.verdict import Errors, Status, Verdict, keeps_original_contract
from sdpalab.kernels.kernel import Numerics, Quantisation
from sdpalab.problem import Problem

Array = npt.NDArray[Any]
Edit = Callable[[dict[str, Any]], object]
PROBLEM = Problem(1, 2, 20, 64)
KINDS = ("needle", "uniform", "nan_heads")
QUANTISED = Numerics(probabilities="float8_e4m3fn", probability_scale=256.0, quantised=Quantisation(rows=8))


def in_float8(problem: Problem, inputs: Inputs) -> Array:
    """Output that declared float8 allows."""
    return intended_output(*inputs.qkv, **problem.scoring, numerics=QUANTISED)


def one_ulp_off(problem: Problem, inputs: Inputs) -> Array:
    """Right but for the last bit of one element of median size, in the last head."""
    out = honest(problem, inputs)
    head = np.abs(out[0, -1].astype(np.float64))
    place = np.unravel_index(np.argsort(np.where(head > 0, head, 9.0), axis=None)[head.size // 2], head.shape)
    out[(0, -1, *place)] = np.nextafter(out[(0, -1, *place)], np.float16(0))
    return out


def nan_everywhere(problem: Problem, inputs: Inputs) -> Array:
    """Lets the NaN of one head into all."""
    return np.full_like(inputs.q, np.nan) if np.isnan(inputs.k).any() else honest(problem, inputs)


ATTEMPTS: tuple[tuple[str, Callable[..., Array], Numerics, Sequence[Status]], ...] = (
    ("honest", honest, Numerics(), [Status.PASSED] * 3),
    ("float8", in_float8, QUANTISED, [Status.PASSED] * 3),
    ("one-ulp", one_ulp_off, Numerics(), [Status.INCORRECT, Status.INCORRECT, Status.PASSED]),
    ("leaky", nan_everywhere, Numerics(), [Status.PASSED, Status.PASSED, Status.NOT_FINITE]),
    ("float8-undeclared", in_float8, Numerics(), [Status.INCORRECT] * 3),
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All attempts, judged by the judge, as a directory."""
    built = build(MODULE)
    module_record = built_module(MODULE, built)
    with BundleWriter(tmp_path_factory.mktemp("probes"), command=["sdpalab", "repro"]) as writer:
        for name, compute, numerics, expected in ATTEMPTS:
            cases = tuple(
                judged(PROBLEM, 0, writer.arrays, compute, built.ptx_sha256, kind=kind, numerics=numerics)
                for kind in KINDS
            )
            assert [case.status for case in cases] == list(expected), [case.reason for case in cases]
            verdict = Verdict(name, "BLOCK_M=64", "simulator sm_89", "quick", 0, cases)
            writer.add(name, config="BLOCK_M=64", builds=[module_record], verdict=verdict)
        tarball = writer.write().tarball
    shutil.unpack_archive(tarball, tarball.parent / "unpacked", filter="data")
    return next((tarball.parent / "unpacked").iterdir())


def test_everything_is_re_derived(bundle: Path) -> None:
    outcome = verify_bundle(bundle)
    assert outcome.findings == []
    assert [line.partition(" ")[0] for line in outcome.summary] == [name for name, *_ in ATTEMPTS]
    assert all("3 of 3 cases re-derived" in line for line in outcome.summary)
    record = json.loads((bundle / "records/00-honest.json").read_text())
    needle, uniform, nan_heads = (case["errors"] for case in record["verdict"]["cases"])
    assert needle["exact"] == 2 * 20 * 64
    assert 0 < uniform["exact"] < 2 * 20 * 64  # any number of keys, where the mean is not near a tie
    assert (nan_heads["exact"], nan_heads["ignored_rows"]) == (0, 20)
    float8 = json.loads((bundle / "records/01-float8.json").read_text())["verdict"]["cases"][0]["errors"]
    assert 0 < float8["exact"] < 100  # where e4m3 holds what is read of V


def call_it_passed(record: dict[str, Any]) -> None:
    """Every case PASSED, with nothing wrong in its errors."""
    for case in record["verdict"]["cases"]:
        case["errors"].update(exact_wrong=0, not_finite=0)
        case.update(
            status="PASSED", reason="", original_contract=keeps_original_contract(Errors.from_dict(case["errors"]))
        )
    contract = sum(case["original_contract"] for case in record["verdict"]["cases"])
    record["verdict"].update(status="PASSED", passed=True, reason="", original_contract=contract)


def declare_float8(record: dict[str, Any]) -> None:
    """The numerics that would have allowed it, with the limits left as they were."""
    honest_numerics = {"probabilities": "float8_e4m3fn", "probability_scale": 256.0}
    for case in record["verdict"]["cases"]:
        case["run"]["numerics"].update(honest_numerics, quantised={"dtype": "float8_e4m3fn", "rows": 8})


def rename(kind: str) -> Edit:
    return lambda record: record["verdict"]["cases"][2].update(inputs=kind)


FORGERIES: dict[str, tuple[str, Edit, str]] = {
    "a wrong bit forgiven": ("02-one-ulp", call_it_passed, "its arrays say INCORRECT"),
    "exact elements not counted": (
        "02-one-ulp",
        lambda r: [c["errors"].update(exact=0, exact_wrong=0) for c in r["verdict"]["cases"]],
        "errors exact_wrong is 0 in the record and 1 from the arrays",
    ),
    "NaN in a head of its own right": ("03-leaky", call_it_passed, "its arrays say NOT_FINITE"),
    "rows ignored that are judged": (
        "03-leaky",
        lambda r: r["verdict"]["cases"][2]["errors"].update(ignored_rows=40),
        "errors ignored_rows is 40 in the record and 20",
    ),
    "declared afterwards": ("04-float8-undeclared", declare_float8, "limits intended_rel_l2"),
    "coarser blocks declared": (
        "01-float8",
        lambda r: [c["run"]["numerics"]["quantised"].update(rows=0) for c in r["verdict"]["cases"]],
        "limits intended_rel_l2",
    ),
    "another scale of P": (
        "01-float8",
        lambda r: [c["run"]["numerics"].update(probability_scale=1.0) for c in r["verdict"]["cases"]],
        "limits intended_rel_l2",
    ),
    "probes that are called normal": ("00-honest", rename("normal"), "is not what normal inputs of seed 0 are"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_fitting_digests_is_rejected(bundle: Path, tmp_path: Path, name: str) -> None:
    record, edit, expected = FORGERIES[name]
    members, _ = verify.read_directory(bundle)
    path = f"records/{record}.json"
    value = json.loads(members[path])
    edit(value)
    checker = verify.Checker({**members, path: verify.canonical(value)})
    checker.run()
    assert any(expected in finding for finding in checker.outcome.findings), checker.outcome.findings
