"""The verifier accepts an honest bundle, and nothing else: not a flipped bit, and not a careful forgery."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_sample import Sample

from sdpalab.errors import UserError
from sdpalab.evidence import verify, verify_bundle


def seal(folder: Path) -> None:
    """Recompute every digest of the manifest, as somebody would who knows how."""
    manifest = json.loads((folder / "manifest.yaml").read_text())
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    contents = {name: (folder / name).read_bytes() for name in names if name != "manifest.yaml"}
    manifest["files"] = {n: {"sha256": hashlib.sha256(c).hexdigest(), "size": len(c)} for n, c in contents.items()}
    manifest["digest"] = verify.manifest_digest(manifest)
    (folder / "manifest.yaml").write_bytes(verify.canonical(manifest))


def forge(folder: Path, edit: Callable[[dict[str, Any]], None], record: str = "records/00-honest.json") -> None:
    """Edit a record and make every digest fit again."""
    value = json.loads((folder / record).read_text())
    edit(value)
    (folder / record).write_bytes(verify.canonical(value))
    seal(folder)


def test_an_honest_bundle_is_accepted_packed_and_unpacked(sample: Sample, unpacked: Path) -> None:
    for path in (sample.written.tarball, unpacked):
        outcome = verify_bundle(path)
        assert outcome.findings == []
        assert "honest BLOCK_M=64: PASSED" in outcome.summary[0]
        assert "4 of 4 cases re-derived" in outcome.summary[0]
        assert "1 of the 12 contract cases passed" in outcome.summary[0]
        assert "wrong-scale BLOCK_M=64: INCORRECT" in outcome.summary[1]
        assert "not judged (it does not compile)" in outcome.summary[2]


def test_the_copy_in_the_bundle_runs_alone(sample: Sample, unpacked: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-I", str(unpacked / "verify.py")]
    good = subprocess.run([*command, str(sample.written.tarball)], capture_output=True, text=True, cwd=tmp_path)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "accepted")
    (unpacked / "report.html").write_text("all is well")
    bad = subprocess.run([*command, str(unpacked)], capture_output=True, text=True, cwd=tmp_path)
    assert (bad.returncode, bad.stdout.splitlines()[-1]) == (1, "rejected: 1 findings")
    assert "REJECTED report.html" in bad.stdout


def test_it_imports_nothing_of_the_lab() -> None:
    tree = ast.parse(Path(verify.__file__).read_text())
    found = {
        (name.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert found <= set(sys.stdlib_module_names) | {"numpy"}


def test_any_flipped_byte_of_the_tarball_is_rejected(sample: Sample, tmp_path: Path) -> None:
    blob = sample.written.tarball.read_bytes()
    rng = random.Random(1)
    ends = [*range(100), *range(len(blob) - 30, len(blob))]
    for position in [*ends, *(rng.randrange(len(blob)) for _ in range(200))]:
        for bit in (0x01, 0x80):
            spoiled = bytearray(blob)
            spoiled[position] ^= bit
            _, _, findings = verify.unpack(bytes(spoiled))
            assert findings, f"byte {position}, bit {bit:#x}"
    path = tmp_path / sample.written.tarball.name
    path.write_bytes(blob[:-1])
    assert not verify_bundle(path).accepted
    path.write_bytes(blob + b"\0")
    assert not verify_bundle(path).accepted


def test_any_flipped_byte_of_any_file_is_rejected(unpacked: Path) -> None:
    members, _ = verify.read_directory(unpacked)
    assert verify.check_manifest(members) == []
    for name, content in members.items():
        step = max(1, len(content) // (400 if name == "manifest.yaml" else 7))
        for position in {*range(0, len(content), step), len(content) - 1}:
            spoiled = bytearray(content)
            spoiled[position] ^= 0x04  # turns a blank into a dollar and a line feed into a shift out
            assert verify.check_manifest({**members, name: bytes(spoiled)}), f"{name}, byte {position}"


@pytest.mark.parametrize(("old", "new"), [(b"\n", b"\r"), (b": ", b":\t"), (b'"name"', b'"n\\u0061me"')])
def test_the_manifest_has_one_form_only(unpacked: Path, old: bytes, new: bytes) -> None:
    path = unpacked / "manifest.yaml"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert "canonical" in verify_bundle(unpacked).findings[0]


def test_a_missing_or_added_file_is_rejected(unpacked: Path) -> None:
    for path in sorted(p for p in unpacked.rglob("*") if p.is_file() and p.name != "manifest.yaml"):
        kept = path.read_bytes()
        path.unlink()
        assert any("missing" in finding for finding in verify_bundle(unpacked).findings), path.name
        path.write_bytes(kept)
    assert verify_bundle(unpacked).accepted
    (unpacked / "records" / "hidden.json").write_text("{}")
    assert verify_bundle(unpacked).findings == ["records/hidden.json: not in the manifest"]
    (unpacked / "records" / "hidden.json").unlink()
    (unpacked / "notes.txt").write_text("trust me")
    seal(unpacked)
    assert verify_bundle(unpacked).findings == ["notes.txt: no record accounts for it"]
    (unpacked / "notes.txt").unlink()
    seal(unpacked)
    (unpacked / "empty").mkdir()
    assert "empty directory" in verify_bundle(unpacked).findings[0]
    (unpacked / "empty").rmdir()
    (unpacked / "link").symlink_to("/etc/passwd")
    assert "not a plain file" in verify_bundle(unpacked).findings[0]


def test_the_side_car_must_fit(sample: Sample, tmp_path: Path) -> None:
    for path in (sample.written.tarball, sample.written.side_car):
        shutil.copy(path, tmp_path)
    assert verify_bundle(tmp_path / sample.written.tarball.name).accepted
    side_car = tmp_path / sample.written.side_car.name
    side_car.write_text("0" * 64 + f"  {sample.written.tarball.name}\n")
    assert "does not hold the digest" in verify_bundle(tmp_path / sample.written.tarball.name).findings[0]


def case(record: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """A case of a record."""
    found: dict[str, Any] = record["verdict"]["cases"][number]
    return found


def build_of(record: dict[str, Any]) -> dict[str, Any]:
    """The first build of a record."""
    found: dict[str, Any] = record["builds"][0]
    return found


def call_it_passed(record: dict[str, Any]) -> None:
    """Flip every status to PASSED, with limits that would allow it."""
    for found in record["verdict"]["cases"]:
        found["limits"].update(dict.fromkeys(verify.LIMITED, 1.0))
        found.update(status="PASSED", reason="")
    record["verdict"].update(status="PASSED", passed=True, reason="")


def drop_the_builds(record: dict[str, Any]) -> None:
    """Say that nothing was built, and that no PTX ran."""
    record["builds"] = []
    for found in record["verdict"]["cases"]:
        del found["run"]["ptx_sha256"]


def shrink_errors(record: dict[str, Any]) -> None:
    """Flip every status to PASSED, with errors that would allow it."""
    for found in record["verdict"]["cases"]:
        found["errors"].update(dict.fromkeys(verify.LIMITED, 1e-09))
        found.update(status="PASSED", reason="")
    record["verdict"].update(status="PASSED", passed=True, reason="")


SPEED = {"name": "time", "value": 3.0, "unit": "us", "kind": "measured", "gpu": "L4", "source": ""}

FORGERIES: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
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
    "a new status": ("00-honest", lambda r: case(r).update(status="GOOD"), "is no status"),
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
        "is not what the record says",
    ),
    "a gate value": (
        "00-honest",
        lambda r: build_of(r)["gate"]["rules"][0].update(value=1),
        "is not what the record says",
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
        "does not say where it was measured",
    ),
    "a field too many": ("00-honest", lambda r: r.update(speedup="15x"), "fields of its attempt"),
    "a field too many in a case": ("00-honest", lambda r: case(r).update(note="ok"), "fields of its case"),
    "neither verdict nor failure": ("02-never", lambda r: r.update(failure=""), "neither a verdict nor a failure"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_fitting_digests_is_rejected(unpacked: Path, name: str) -> None:
    record, edit, expected = FORGERIES[name]
    forge(unpacked, edit, f"records/{record}.json")
    findings = verify_bundle(unpacked).findings
    assert any(expected in finding for finding in findings), findings


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("environment.json", {}),
        ("environment.json", {"harness": None}),
        ("floors.json", {}),
        ("floors.json", {"gpus": [1]}),
        ("records/00-honest.json", {}),
        ("records/00-honest.json", {"builds": 1}),
    ],
)
def test_a_record_of_any_shape_is_a_finding_and_no_crash(unpacked: Path, name: str, value: Any) -> None:
    (unpacked / name).write_bytes(verify.canonical(value))
    seal(unpacked)
    assert any("malformed" in finding for finding in verify_bundle(unpacked).findings)


@pytest.mark.parametrize("files", [[], 3, {"a": 1}, None])
def test_a_manifest_of_any_shape_is_a_finding_and_no_crash(unpacked: Path, files: Any) -> None:
    manifest = json.loads((unpacked / "manifest.yaml").read_text())
    manifest["files"] = files
    manifest["digest"] = verify.manifest_digest(manifest)
    (unpacked / "manifest.yaml").write_bytes(verify.canonical(manifest))
    assert not verify_bundle(unpacked).accepted


def test_a_bundle_of_another_format_is_sent_to_its_own_verifier(unpacked: Path) -> None:
    manifest = json.loads((unpacked / "manifest.yaml").read_text())
    manifest["format"] = 1
    manifest["digest"] = verify.manifest_digest(manifest)
    (unpacked / "manifest.yaml").write_bytes(verify.canonical(manifest))
    said = "manifest.yaml: format 1, and this verifier knows 2 and 3; the verify.py in the bundle"
    assert [finding.startswith(said) for finding in verify_bundle(unpacked).findings] == [True]


def test_a_bundle_of_format_2_is_one_without_a_log_sum_exp(unpacked: Path) -> None:
    def older(record: dict[str, Any]) -> None:
        for each in (record["verdict"] or {"cases": ()})["cases"]:
            del each["errors"]["lse"]
            each["digests"].pop("lse", None)

    manifest = json.loads((unpacked / "manifest.yaml").read_text())
    (unpacked / "manifest.yaml").write_bytes(verify.canonical({**manifest, "format": 2}))
    for name in ("00-honest", "01-wrong-scale"):
        lse = [
            each["digests"].get("lse")
            for each in json.loads((unpacked / f"records/{name}.json").read_text())["verdict"]["cases"]
        ]
        for digest in filter(None, lse):
            (unpacked / "arrays" / f"{digest}.raw").unlink()
        forge(unpacked, older, f"records/{name}.json")
    assert verify_bundle(unpacked).findings == []


def test_of_equal_errors_any_place_is_the_worst() -> None:
    import numpy as np

    values = np.array([[1.0, 3.0], [3.0 * (1 + 1e-15), 2.0]])
    assert verify._is_at(values, [0, 1], 3.0, 1.0)
    assert verify._is_at(values, [1, 0], 3.0, 1.0)
    for place in ([1, 1], [0, -1], [0, 2], [0], [0, 1, 0]):
        assert not verify._is_at(values, place, 3.0, 1.0)


def packed(members: dict[str, bytes], spoil: Callable[[tarfile.TarFile], None] | None = None) -> bytes:
    """An archive with a fitting digest in its header, into which ``spoil`` has put something more."""
    original = verify._tar

    def with_more(top: str, inside: Any) -> bytes:
        import io

        buffer = io.BytesIO(original(top, inside))
        with tarfile.open(fileobj=buffer, mode="a", format=tarfile.USTAR_FORMAT) as archive:
            if spoil:
                spoil(archive)
        return buffer.getvalue()

    verify._tar = with_more
    try:
        return verify.pack("sdpalab-x", members)
    finally:
        verify._tar = original


def test_what_is_hidden_in_the_archive_is_found() -> None:
    def link(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("sdpalab-x/link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)

    def outside(archive: tarfile.TarFile) -> None:
        archive.addfile(tarfile.TarInfo("sdpalab-x/../../evil"))

    def absolute(archive: tarfile.TarFile) -> None:
        archive.addfile(tarfile.TarInfo("/evil"))

    def twice(archive: tarfile.TarFile) -> None:
        archive.addfile(tarfile.TarInfo("sdpalab-x/a"))

    assert verify.unpack(packed({"a": b"1"}))[1:] == ({"a": b"1"}, [])
    for spoil, expected in ((link, "plain file"), (outside, "leaves"), (absolute, "leaves"), (twice, "canonical")):
        assert expected in verify.unpack(packed({"a": b"1"}, spoil))[2][0]


def test_what_is_no_bundle_is_said_to_be_none(sample: Sample, unpacked: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.tar.gz"
    text.write_text("no archive")
    other = tmp_path / "other.tar.gz"
    with tarfile.open(other, "w:gz") as archive:
        archive.add(unpacked, "bundle")
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "nothing.tar.gz").touch()
    for path in (text, other, empty, tmp_path / "nothing.tar.gz", tmp_path / "absent.tar.gz"):
        with pytest.raises(UserError, match=r"it is not a bundle|cannot be read"):
            verify_bundle(path)
        assert verify.main([str(path)]) == 2
    assert verify.main([]) == 2
    assert verify.main([str(sample.written.tarball)]) == 0
