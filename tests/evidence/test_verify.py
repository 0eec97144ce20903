"""The verifier accepts an honest bundle, and nothing else: no flipped bit, no other shape, nothing hidden."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_sample import Sample, forge, seal
from standalone import verify

from sdpalab.errors import UserError
from sdpalab.evidence import ReportData, render_report, verify_bundle
from sdpalab.evidence.packing import pack
from sdpalab.evidence.verifier import assemble, facts
from sdpalab.evidence.verifier.archive import MAGIC
from sdpalab.evidence.verifier.assemble import assembled
from sdpalab.evidence.verifier.main import main


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


def test_the_parts_say_what_the_assembled_file_says(
    sample: Sample, unpacked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line for line, of bundles that are accepted, rejected and none."""
    assert (unpacked / "verify.py").read_text() == assembled()
    edited = tmp_path / "edited"
    shutil.copytree(unpacked, edited)
    forge(edited, lambda record: record["verdict"]["cases"][0]["limits"].update(max_abs=1.0))
    (tmp_path / "empty").mkdir()
    for path, code in ((sample.written.tarball, 0), (edited, 1), (tmp_path / "empty", 2)):
        # A module that is None in sys.modules cannot be imported, wherever it lies.
        alone = "import runpy, sys; sys.modules['sdpalab'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
        command = [sys.executable, "-I", "-c", alone, str(unpacked / "verify.py"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert (main([str(path)]), *capsys.readouterr()) == (done.returncode, done.stdout, done.stderr)
        assert done.returncode == code


def test_the_assembled_file_has_every_definition_of_the_parts_once() -> None:
    whole = [ast.dump(node) for node in ast.parse(assembled()).body]
    folder = Path(assemble.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} == {*assemble.PARTS, "__init__", "assemble"}
    for part in assemble.PARTS:
        for node in ast.parse((folder / f"{part}.py").read_text()).body if part != "facts" else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                assert whole.count(ast.dump(node)) == 1, f"{part}: {node.name}"
    assert all(getattr(verify, name) == getattr(facts, name) for name in facts.__all__)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from sdpalab.judge.rule.limits import measure\n", "builds imports sdpalab.judge.rule"),
        (
            "from sdpalab.evidence.verifier.arrays import near as close\n",
            "builds imports sdpalab.evidence.verifier.arrays",
        ),
        ("def near():\n    pass\n", "builds and arrays both define near"),
    ],
)
def test_parts_that_cannot_be_one_file_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str
) -> None:
    shutil.copytree(Path(assemble.__file__).parent, tmp_path / "verifier")
    (tmp_path / "verifier" / "builds.py").write_text(f'"""A part."""\n{text}')
    monkeypatch.setattr(assemble, "_FOLDER", tmp_path / "verifier")
    with pytest.raises(ValueError, match=message):
        assembled.__wrapped__()


OLD_BUNDLES = sorted((Path(__file__).parent / "bundles").glob("*.tar.gz"))
assert OLD_BUNDLES


@pytest.mark.parametrize("path", OLD_BUNDLES, ids=lambda path: path.name)
def test_bundles_of_older_commits_are_accepted_and_read(path: Path, tmp_path: Path) -> None:
    """Made by the code of the commit in their name; what their own verifier says is said here, too."""
    assert verify_bundle(path).findings == []
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    own = subprocess.run([sys.executable, "-I", str(folder / "verify.py"), str(path)], capture_output=True, text=True)
    assert own.stdout.splitlines() == [*verify_bundle(path).summary, "accepted"]
    data = ReportData.read(path)
    assert [attempt.verdict and attempt.verdict.status for attempt in data.attempts] == ["PASSED", "INCORRECT", None]
    assert "log-sum-exp" in render_report(data)


def test_it_imports_nothing_of_the_lab() -> None:
    tree = ast.parse(assembled())
    imported = {
        (name.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert imported <= set(sys.stdlib_module_names) | {"numpy"}


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
        original = path.read_bytes()
        path.unlink()
        assert any("missing" in finding for finding in verify_bundle(unpacked).findings), path.name
        path.write_bytes(original)
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
    message = "manifest.yaml: format 1, and this verifier reads 2, 3, 4, 5, 6, 7 and 8; the verify.py in the bundle"
    assert [finding.startswith(message) for finding in verify_bundle(unpacked).findings] == [True]


def test_a_bundle_of_format_2_is_one_without_a_log_sum_exp(unpacked: Path) -> None:
    def older(record: dict[str, Any]) -> None:
        record.pop("sources", None)
        (record["verdict"] or {}).pop("covers", None)
        for each in (record["verdict"] or {"cases": ()})["cases"]:
            del each["errors"]["lse"]
            each["digests"].pop("lse", None)

    manifest = json.loads((unpacked / "manifest.yaml").read_text())
    shutil.rmtree(unpacked / "source")
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


def test_a_bundle_of_format_3_has_no_sources(unpacked: Path) -> None:
    def older(record: dict[str, Any]) -> None:
        record["verdict"].pop("covers", None)

    manifest = json.loads((unpacked / "manifest.yaml").read_text())
    (unpacked / "manifest.yaml").write_bytes(verify.canonical({**manifest, "format": 3}))
    for name in ("00-honest", "01-wrong-scale"):
        forge(unpacked, older, f"records/{name}.json")
    (finding,) = verify_bundle(unpacked).findings
    assert finding == "records/00-honest.json: the fields of its attempt are not those of the format"


def test_a_verdict_with_cases_left_unjudged_is_interrupted(unpacked: Path) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        verdict = record["verdict"]
        verdict["unjudged"] = [verdict["cases"].pop()["name"]]
        verdict.update(status="INTERRUPTED", passed=False, original_contract=3)
        verdict.pop("covers")
        verdict["reason"] = "judging was interrupted after 3 of 4 cases"

    record = json.loads((unpacked / "records/00-honest.json").read_text())
    last, others = record["verdict"]["cases"][-1], record["verdict"]["cases"][:-1]
    used = {digest for each in others for digest in each["digests"].values()}
    other = json.loads((unpacked / "records/01-wrong-scale.json").read_text())["verdict"]["cases"]
    used |= {digest for each in other for digest in each["digests"].values()}
    for digest in set(last["digests"].values()) - used:
        (unpacked / "arrays" / f"{digest}.raw").unlink()
    forge(unpacked, interrupt)
    outcome = verify_bundle(unpacked)
    assert outcome.findings == []
    assert (
        "INTERRUPTED on simulator sm_89; 3 of 3 cases re-derived from raw arrays, 1 left unjudged" in outcome.summary[0]
    )
    assert ReportData.read(unpacked).attempts[0].verdict.unjudged  # type: ignore[union-attr]


def test_of_equal_errors_any_place_is_the_worst() -> None:
    import numpy as np

    values = np.array([[1.0, 3.0], [3.0 * (1 + 1e-15), 2.0]])
    assert verify.is_at(values, [0, 1], 3.0, 1.0)
    assert verify.is_at(values, [1, 0], 3.0, 1.0)
    for place in ([1, 1], [0, -1], [0, 2], [0], [0, 1, 0]):
        assert not verify.is_at(values, place, 3.0, 1.0)


def packed(members: dict[str, bytes], spoil: Callable[[tarfile.TarFile], None]) -> bytes:
    """An archive with a fitting digest in its header, into which ``spoil`` has put something more."""
    with_more = io.BytesIO(zlib.decompress(pack("sdpalab-x", members), 31))
    with tarfile.open(fileobj=with_more, mode="a", format=tarfile.USTAR_FORMAT) as archive:
        spoil(archive)
    tar, packer = with_more.getvalue(), zlib.compressobj(wbits=-15)
    body = packer.compress(tar) + packer.flush() + struct.pack("<II", zlib.crc32(tar), len(tar))
    return MAGIC + hashlib.sha256(body).digest() + body


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

    def nothing(archive: tarfile.TarFile) -> None:
        pass

    assert verify.unpack(packed({"a": b"1"}, nothing))[1:] == ({"a": b"1"}, [])
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
