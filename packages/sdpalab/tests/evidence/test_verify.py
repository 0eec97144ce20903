"""The verifier accepts an honest bundle, and nothing else: no flipped bit, no other shape, nothing hidden."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from evidence_sample import Sample, forge, seal
from standalone import verify

from sdpalab.errors import UserError
from sdpalab.evidence import ReportData, verify_bundle
from sdpalab.evidence.verifier import assemble, facts
from sdpalab.evidence.verifier.archive import HEADER, pack, tarred
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
    assert "not checked here: report.html and signatures" in good.stdout.splitlines()[-2]
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


def test_the_assembled_file_carries_the_rule_as_it_is() -> None:
    """Every module that the verifier loads is in the file, word for word but for the name of the package."""
    modules = assemble.carried_modules()
    assert {"sdpalab.judge.rule.limits", "sdpalab.judge.rule.exact", "sdpalab.inputs.reference"} <= set(modules)
    for name, text in modules.items():
        if name not in ("sdpalab.record", facts.__name__):
            lines, own = text.splitlines(), Path(find_spec(name).origin).read_text().splitlines()
            assert [line for line in own if "from warpsan." not in line] == [
                line for line in lines if "from warpsan." not in line
            ]
        renamed = text
        for package, other in (("sdpalab", assemble.PACKAGE), ("warpsan", f"{assemble.PACKAGE}_warpsan")):
            renamed = re.sub(rf"^(\s*(?:from|import) ){package}\b", rf"\1{other}", renamed, flags=re.MULTILINE)
        package, _, module = name.partition(".")
        carried = f"{assemble.PACKAGE}{'_warpsan' if package == 'warpsan' else ''}.{module}"
        assert f"MODULES['{carried}'] = r'''{renamed}'''" in assembled()
    assert not any("warpsan.exports" in text for text in modules.values())
    assert all(getattr(verify, name) == getattr(facts, name) for name in facts.__all__)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\n", "builds imports torch, which the assembled file has not"),
        ("from pydantic import BaseModel\n", "builds imports pydantic"),
        ("TEXT = \"'''\"\n", "three single quotes"),
    ],
)
def test_modules_that_cannot_be_one_file_are_refused(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    read = assemble._text
    monkeypatch.setattr(assemble, "_text", lambda name: text if name.endswith(".builds") else read(name))
    with pytest.raises(ValueError, match=message):
        assembled.__wrapped__()


def test_a_bundle_of_an_older_commit_ends_with_a_sentence() -> None:
    """Made before the format had this number, by the code of the commit in its name."""
    (path,) = (Path(__file__).parent / "bundles").glob("*.tar.gz")
    assert verify_bundle(path).findings == [
        f"manifest.yaml: the bundle is of format 3, and this sdpalab reads {verify.FORMAT}: install an older sdpalab"
    ]


def test_it_needs_numpy_and_ml_dtypes_alone(sample: Sample, tmp_path: Path) -> None:
    """Every other package that the lab needs cannot be imported; which modules were loaded is compared."""
    (tmp_path / "verify.py").write_text(assembled())
    needs = ("sdpalab", "torch", "pydantic", "jinja2", "matplotlib", "llvmlite", "cryptography", "typer", "rich")
    alone = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({needs!r})); runpy.run_path('verify.py', run_name='x')"
    )
    loaded = "print(*{name.partition('.')[0] for name, each in sys.modules.items() if each})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{alone}; {loaded}"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    outside = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"__main__", "_distutils_hack"}
    assert {"numpy", "ml_dtypes", assemble.PACKAGE} <= outside
    assert not outside & set(needs)


def test_no_flipped_byte_of_the_tarball_changes_what_is_read(sample: Sample, tmp_path: Path) -> None:
    """Each is a finding, or another deflate code of the same bytes; the digest beside the archive covers those, too."""
    blob = sample.written.tarball.read_bytes()
    original, rng, same = verify.unpack(blob), random.Random(1), 0
    ends = [*range(100), *range(len(blob) - 30, len(blob))]
    for position in [*ends, *(rng.randrange(len(blob)) for _ in range(200))]:
        for bit in (0x01, 0x80):
            spoiled = bytearray(blob)
            spoiled[position] ^= bit
            again = verify.unpack(bytes(spoiled))
            assert again[2] or again == original, f"byte {position}, bit {bit:#x}"
            same += not again[2]
    assert same <= 30
    for path in (sample.written.tarball, sample.written.side_car):
        shutil.copy(path, tmp_path)
    path = tmp_path / sample.written.tarball.name
    for spoiled in (blob[:-9] + bytes([blob[-9] ^ 0x80]) + blob[-8:], blob[:-1], blob + b"\0"):
        path.write_bytes(spoiled)
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


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "the bundle is of format 1, and this sdpalab reads 8: install an older sdpalab"),
        (9, "the bundle is of format 9, and this sdpalab reads 8: install a newer sdpalab"),
        ("8", "its format is not a number"),
        (True, "its format is not a number"),
        (None, "its format is not a number"),
    ],
)
def test_no_bundle_of_another_format_sends_a_reader_to_the_code_in_it(
    unpacked: Path, number: object, expected: str
) -> None:
    manifest = json.loads((unpacked / "manifest.yaml").read_text())
    manifest["format"] = number
    manifest["digest"] = verify.manifest_digest(manifest)
    (unpacked / "manifest.yaml").write_bytes(verify.canonical(manifest))
    assert verify_bundle(unpacked).findings == [f"manifest.yaml: {expected}"]


def test_neither_a_report_nor_a_page_runs_the_verifier_of_its_own_bundle(sample: Sample) -> None:
    page = sample.written.report.read_text()
    assert f"sdpalab verify {sample.written.name}.tar.gz" in page
    assert f"{sample.written.name}/verify.py" not in page


def lying(page: str) -> str:
    return page.replace("INCORRECT", "PASSED")


def scripted(page: str) -> str:
    return page.replace("</body>", "<script>alert(1)</script></body>")


def emptied(page: str) -> str:
    return ""


@pytest.mark.parametrize("change", [lying, scripted, emptied])
def test_a_report_that_does_not_follow_from_the_records_is_rejected(
    unpacked: Path, change: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = unpacked / "report.html"
    page = path.read_text()
    assert change(page) != page
    path.write_text(change(page))
    seal(unpacked)
    assert verify_bundle(unpacked).findings == ["report.html: it is not the report of these records"]
    assert verify_bundle(unpacked, report=False).accepted
    # The file that a bundle carries has no templates, and says so.
    assert main([str(unpacked)]) == 0
    assert "not checked here: report.html and signatures" in capsys.readouterr().out


def test_a_report_of_another_matplotlib_is_rejected_with_the_likely_reason(unpacked: Path) -> None:
    environment = json.loads((unpacked / "environment.json").read_text())
    environment["packages"]["matplotlib"] = "3.1.0"
    (unpacked / "environment.json").write_bytes(verify.canonical(environment))
    seal(unpacked)
    (finding,) = verify_bundle(unpacked).findings
    assert "it names matplotlib 3.1.0, and here is matplotlib" in finding
    assert "--no-report" in finding


def test_the_report_is_the_same_in_another_process_and_under_another_style(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.grid: True\nlines.linewidth: 9\n")
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-m", "sdpalab", "verify", str(sample.written.tarball)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "accepted"), done.stdout


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
    outcome = verify_bundle(unpacked, report=False)
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
    """An archive into which ``spoil`` has put something more."""
    with_more = io.BytesIO(tarred("sdpalab-x", members))
    with tarfile.open(fileobj=with_more, mode="a", format=tarfile.PAX_FORMAT) as archive:
        spoil(archive)
    return HEADER + gzip.compress(with_more.getvalue(), 1, mtime=0)[len(HEADER) :]


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

    def with_a_comment(archive: tarfile.TarFile) -> None:
        archive.addfile(tarfile.TarInfo("sdpalab-x/b"))
        archive.fileobj.write(b"hidden")  # type: ignore[union-attr]

    members = {"a": b"1", "manifest.yaml": b"1"}
    assert pack("sdpalab-x", members) == packed(members, nothing)
    assert verify.unpack(packed(members, nothing))[1:] == (members, [])
    for spoil, expected in (
        (link, "plain file"),
        (outside, "leaves"),
        (absolute, "leaves"),
        (twice, "canonical"),
        (with_a_comment, "canonical"),
    ):
        assert expected in verify.unpack(packed(members, spoil))[2][0]
    with_time = gzip.compress(tarred("sdpalab-x", members), 6, mtime=7)
    assert "canonical" in verify.unpack(with_time)[2][0]
    assert "ends" in verify.unpack(pack("sdpalab-x", members) + b"\0")[2][0]


def test_what_is_no_bundle_is_said_to_be_none(sample: Sample, unpacked: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.tar.gz"
    text.write_text("no archive")
    other = tmp_path / "other.tar.gz"
    with tarfile.open(other, "w:gz") as archive:
        archive.add(unpacked / "records", "records")
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "nothing.tar.gz").touch()
    for path in (text, other, empty, tmp_path / "nothing.tar.gz", tmp_path / "absent.tar.gz"):
        with pytest.raises(UserError, match=r"it is not a bundle|cannot be read"):
            verify_bundle(path)
        assert verify.main([str(path)]) == 2
    assert verify.main([]) == 2
    assert verify.main([str(sample.written.tarball)]) == 0
