"""The verifier rejects careful forgeries: records whose digests all fit, and that say else than the arrays."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_sample import Sample, forge, seal
from standalone import verify

from sdpalab.evidence import verify_bundle
from sdpalab.evidence.verifier import cases


def case(record: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """A case of a record."""
    chosen: dict[str, Any] = record["verdict"]["cases"][number]
    return chosen


def build_of(record: dict[str, Any]) -> dict[str, Any]:
    """The first build of a record."""
    first: dict[str, Any] = record["builds"][0]
    return first


def call_it_passed(record: dict[str, Any]) -> None:
    """Flip every status to PASSED, with limits that would allow it."""
    for each in record["verdict"]["cases"]:
        each["limits"].update(dict.fromkeys(verify.LIMITED, 1.0))
        each.update(status="PASSED", reason="")
    record["verdict"].update(status="PASSED", passed=True, reason="")


def drop_the_builds(record: dict[str, Any]) -> None:
    """Say that nothing was built, and that no PTX ran."""
    record["builds"] = []
    for each in record["verdict"]["cases"]:
        del each["run"]["ptx_sha256"]


def shrink_errors(record: dict[str, Any]) -> None:
    """Flip every status to PASSED, with errors that would allow it."""
    for each in record["verdict"]["cases"]:
        each["errors"].update(dict.fromkeys(verify.LIMITED, 1e-09))
        each.update(status="PASSED", reason="")
    record["verdict"].update(status="PASSED", passed=True, reason="")


SPEED = {"name": "time", "value": 3.0, "unit": "us", "kind": "measured", "gpu": "L4", "source": ""}

FORGERIES: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "more code executed than there is": (
        "00-honest",
        lambda record: record["verdict"]["code"][0].update(executed=4),
        "4 of 3 blocks of scale executed",
    ),
    "a limit one per mille wider": (
        "00-honest",
        lambda r: case(r)["limits"].update(rel_l2=case(r)["limits"]["rel_l2"] * 1.001),
        "limits rel_l2",
    ),
    "a new limit wider": (
        "00-honest",
        lambda r: case(r)["limits"].update(rms_row_rel_l2=case(r)["limits"]["rms_row_rel_l2"] * 1.001),
        "limits rms_row_rel_l2",
    ),
    "a rule dropped": ("00-honest", lambda r: case(r)["limits"].pop("rms_row_rel_l2"), "fields of its limits"),
    "an error dropped": ("00-honest", lambda r: case(r)["errors"].pop("rms_row_rel_l2"), "fields of its errors"),
    "the exact elements forgotten": (
        "00-honest",
        lambda r: case(r, 1)["errors"].update(exact=0),
        "errors exact is 0 in the record and",
    ),
    "wrong exact elements excused": (
        "01-wrong-scale",
        lambda r: case(r, 1)["errors"].update(exact_wrong=3),
        "errors exact_wrong is 3 in the record and 0",
    ),
    "rows left out": ("00-honest", lambda r: case(r)["errors"].update(ignored_rows=8), "errors ignored_rows"),
    "the original contract": (
        "01-wrong-scale",
        lambda r: case(r).update(original_contract=not case(r)["original_contract"]),
        "by its errors the original contract is",
    ),
    "the count of the original contract": (
        "00-honest",
        lambda r: r["verdict"].update(original_contract=5),
        "4 of its cases keep the original contract, not 5",
    ),
    "an error halved": ("00-honest", lambda r: case(r)["errors"].update(max_abs=1e-5), "errors max_abs"),
    "the worst row moved": ("00-honest", lambda r: case(r)["errors"].update(worst_row=[0, 0, 1]), "errors worst_row"),
    "the worst element out of range": (
        "00-honest",
        lambda r: case(r)["errors"].update(max_abs_index=[0, 0, -1, 0]),
        "errors max_abs_index",
    ),
    "a size of 0": ("00-honest", lambda r: case(r)["problem"].update(kv_heads=0), "malformed"),
    "a size of no type": ("00-honest", lambda r: case(r)["problem"].update(heads="2"), "malformed"),
    "no errors": ("00-honest", lambda r: case(r).update(errors=None), "malformed"),
    "wrong limits and PASSED": ("01-wrong-scale", call_it_passed, "its arrays say INCORRECT"),
    "wrong errors and PASSED": ("01-wrong-scale", shrink_errors, "its arrays say INCORRECT"),
    "only the verdict flipped": (
        "01-wrong-scale",
        lambda r: r["verdict"].update(status="PASSED", passed=True),
        "the verdict says PASSED, and its cases say INCORRECT",
    ),
    "passed flipped": ("01-wrong-scale", lambda r: r["verdict"].update(passed=True), "the verdict says"),
    "a new status": ("00-honest", lambda r: case(r).update(status="GOOD"), "is not a status"),
    "no reason": ("01-wrong-scale", lambda r: case(r).update(reason=""), "without a reason"),
    "another seed": ("00-honest", lambda r: case(r).update(seed=7), "is not what normal inputs of seed 7 are"),
    "an array gone": ("00-honest", lambda r: case(r)["digests"].pop("yardstick"), "without the array yardstick"),
    "outputs of two cases swapped": (
        "00-honest",
        lambda r: case(r, 3)["digests"].update(o=case(r, 2)["digests"]["o"]),
        "its arrays say INCORRECT",
    ),
    "an output of another shape": (
        "00-honest",
        lambda r: case(r, 0)["digests"].update(o=case(r, 2)["digests"]["o"]),
        "malformed",
    ),
    "the yardstick for the output": (
        "01-wrong-scale",
        lambda r: case(r)["digests"].update(o=case(r)["digests"]["yardstick"]),
        "errors max_abs",
    ),
    "laxer numerics": (
        "00-honest",
        lambda r: case(r)["run"]["numerics"].update(normalise="either"),
        "no rule for the numerics",
    ),
    "coarser numerics": (
        "00-honest",
        lambda r: case(r)["run"]["numerics"].update(probabilities="bfloat16"),
        "declare different numerics",
    ),
    "coarser numerics in every case": (
        "00-honest",
        lambda r: [c["run"]["numerics"].update(probabilities="float8_e4m3fn") for c in r["verdict"]["cases"]],
        "limits intended_rel_l2",
    ),
    "quantised after all": (
        "00-honest",
        lambda r: case(r)["run"]["numerics"].update(quantised={"dtype": "float8_e4m3fn", "rows": 0}),
        "limits intended_rel_l2",
    ),
    "numerics of no rule": (
        "00-honest",
        lambda r: case(r)["run"]["numerics"].update(accumulate="bfloat16"),
        "no rule for the numerics",
    ),
    "another log-sum-exp": (
        "00-honest",
        lambda r: case(r, 2)["digests"].update(lse=case(r, 3)["digests"]["lse"]),
        "its arrays say INCORRECT",
    ),
    "a larger limit on the log-sum-exp": (
        "00-honest",
        lambda r: case(r)["errors"]["lse"].update(limit=1.0),
        "errors lse limit",
    ),
    "a smaller error of the log-sum-exp": (
        "00-honest",
        lambda r: case(r)["errors"]["lse"].update(error=0.0),
        "errors lse error",
    ),
    "another row of the log-sum-exp": (
        "00-honest",
        lambda r: case(r)["errors"]["lse"].update(row=[0, 0, 0] if case(r)["errors"]["lse"]["row"][2] else [0, 0, 1]),
        "errors lse row",
    ),
    "figures of the log-sum-exp dropped": (
        "00-honest",
        lambda r: case(r)["errors"].update(lse=None),
        "a log-sum-exp without figures",
    ),
    "the log-sum-exp dropped": (
        "00-honest",
        lambda r: [case(r)["digests"].pop("lse"), case(r)["errors"].update(lse=None)],
        "some of its cases have a log-sum-exp",
    ),
    "other PTX": ("00-honest", lambda r: case(r)["run"].update(ptx_sha256=["0" * 64]), "ran the PTX in this bundle"),
    "no PTX": ("00-honest", lambda r: case(r)["run"].pop("ptx_sha256"), "ran the PTX in this bundle"),
    "no builds": ("00-honest", drop_the_builds, "ran the PTX in this bundle"),
    "two outputs": ("00-honest", lambda r: case(r)["digests"].update(o_second=case(r)["digests"]["o"]), "two runs"),
    "a case dropped": ("00-honest", lambda r: r["verdict"]["cases"].pop(2), "no record accounts for it"),
    "registers": ("00-honest", lambda r: build_of(r)["resources"].update(registers=4), "in the cubin"),
    "shared memory": ("00-honest", lambda r: build_of(r)["resources"].update(static_shared_bytes=0), "in the cubin"),
    "a gate limit below the value": (
        "00-honest",
        lambda r: build_of(r)["gate"]["rules"][0].update(limit=1),
        "does not match the record",
    ),
    "a gate value": (
        "00-honest",
        lambda r: build_of(r)["gate"]["rules"][0].update(value=1),
        "does not match the record",
    ),
    "a gate rule that fails, called advisory": (
        "00-honest",
        lambda r: build_of(r)["gate"]["rules"][0].update(limit=1, ok=False, advisory=True),
        "gate rule registers is advisory, and 1 is not the limit of one that is",
    ),
    "a gate rule that is advisory and says no": (
        "00-honest",
        lambda r: build_of(r)["gate"]["rules"][0].update(advisory=False),
        "the fields of its rule are not those of the format",
    ),
    "a gate rule dropped": ("00-honest", lambda r: build_of(r)["gate"]["rules"].pop(2), "no rule for spill_bytes"),
    "a gate rule turned round": (
        "00-honest",
        lambda r: build_of(r)["gate"]["rules"][0].update(kind="at least", ok=False),
        "wrong side",
    ),
    "the gate's outcome": ("00-honest", lambda r: build_of(r)["gate"].update(ok=False), "outcome is not that"),
    "a digest of a build": (
        "00-honest",
        lambda r: build_of(r)["files"].update({"kernel.cubin": "0" * 64}),
        "not the file that was built",
    ),
    "another source": (
        "00-honest",
        lambda r: build_of(r)["sources"].update({"scale.cu": "0" * 64}),
        "not the source that was compiled",
    ),
    "a speed without PASSED": ("01-wrong-scale", lambda r: r["figures"].append(SPEED), "a speed without PASSED"),
    "a simulated time": (
        "00-honest",
        lambda r: r["figures"].append({**SPEED, "kind": "simulated"}),
        "what is simulated has no time",
    ),
    "a measurement without a GPU": (
        "00-honest",
        lambda r: r["figures"].append({**SPEED, "gpu": None}),
        "it names neither its GPU nor its source",
    ),
    "a field too many": ("00-honest", lambda r: r.update(speedup="15x"), "fields of its attempt"),
    "a field too many in a case": ("00-honest", lambda r: case(r).update(note="ok"), "fields of its case"),
    "cases left out of a PASSED": (
        "00-honest",
        lambda r: r["verdict"].update(unjudged=["1x1x1x1 seed 0"]),
        "the verdict says PASSED, and its cases say INTERRUPTED",
    ),
    "no unjudged case": ("00-honest", lambda r: r["verdict"].update(unjudged=[]), "fields of its verdict"),
    "a case that is judged and is not": (
        "00-honest",
        lambda r: r["verdict"].update(unjudged=[case(r)["name"]]),
        "judged and left unjudged",
    ),
    "an interrupted case": ("00-honest", lambda r: case(r).update(status="INTERRUPTED"), "not a status of a case"),
    "a source dropped": ("00-honest", lambda r: r["sources"].popitem(), "no record accounts for it"),
    "a source exchanged": (
        "00-honest",
        lambda r: r["sources"].update({"source/00-honest/mine.py": "0" * 64}),
        "is not the source that was judged",
    ),
    "an array for a source": (
        "00-honest",
        lambda r: r["sources"].update({f"arrays/{case(r)['digests']['q']}.raw": case(r)["digests"]["q"]}),
        "is not the source that was judged",
    ),
    "neither verdict nor failure": ("02-never", lambda r: r.update(failure=""), "neither a verdict nor a failure"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_fitting_digests_is_rejected(unpacked: Path, name: str) -> None:
    record, edit, expected = FORGERIES[name]
    forge(unpacked, edit, f"records/{record}.json")
    findings = verify_bundle(unpacked).findings
    assert any(expected in finding for finding in findings), findings


def test_the_number_of_threads_changes_no_finding(
    sample: Sample, unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a machine on which none can be started; each of two cases on the same wrong inputs has its finding."""

    def forged(record: dict[str, Any]) -> None:
        FORGERIES["another seed"][1](record)
        case(record, 1)["errors"].update(rel_l2=1e-9)
        case(record, 2)["digests"].update(o=case(record, 0)["digests"]["o"])  # malformed: what follows is not read

    forge(unpacked, forged)
    forge(unpacked, FORGERIES["another seed"][1], "records/01-wrong-scale.json")
    outcomes = []
    for count in (1, 2, 7):
        monkeypatch.setattr(cases, "thread_count", lambda count=count: count)
        outcomes += [verify_bundle(unpacked), verify_bundle(sample.written.tarball)]
    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    outcomes += [verify_bundle(unpacked), verify_bundle(sample.written.tarball)]
    first, good = outcomes[:2]
    assert outcomes == [first, good] * 4
    assert good.accepted
    for name in ("00-honest", "01-wrong-scale"):
        assert any(name in each and "q is not what normal inputs of seed 7 are" in each for each in first.findings)
    assert any("errors rel_l2 is 1e-09" in finding for finding in first.findings)
    assert any("malformed" in finding for finding in first.findings)


def cannot_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_an_output_exchanged_for_a_better_one_is_rejected(unpacked: Path) -> None:
    """The forger puts the yardstick's bytes where the wrong kernel's output was, and keeps the rest."""
    record = json.loads((unpacked / "records/01-wrong-scale.json").read_text())
    digests = case(record)["digests"]
    shutil.copy(unpacked / f"arrays/{digests['yardstick']}.raw", unpacked / f"arrays/{digests['o']}.raw")
    seal(unpacked)
    assert any("array's name is the digest" in finding for finding in verify_bundle(unpacked).findings)


def test_records_of_another_bundle_are_rejected(sample: Sample, unpacked: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(unpacked, foreign)
    shutil.rmtree(foreign / "arrays")
    shutil.rmtree(foreign / "build")
    shutil.copytree(foreign / "records", unpacked / "records", dirs_exist_ok=True)
    (unpacked / "arrays" / sorted(os.listdir(unpacked / "arrays"))[0]).unlink()
    seal(unpacked)
    assert not verify_bundle(unpacked).accepted


def test_a_bundle_whose_environment_does_not_fit_its_name_is_rejected(unpacked: Path) -> None:
    environment = json.loads((unpacked / "environment.json").read_text())
    environment["harness"]["commit"] = "0" * 40
    (unpacked / "environment.json").write_bytes(verify.canonical(environment))
    seal(unpacked)
    assert any("name does not begin" in finding for finding in verify_bundle(unpacked).findings)
