"""A user's kernel leaves evidence: judge and repro, also for one that fails; in bundles that verify on their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpalab.cli import main
from sdpalab.evidence import ReportData, verify_bundle

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "my_kernel.cu"
CASE = ("--shape", "1,1,33,32", "--only", "seed 0")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as it is and with a lost rescale, and a function."""
    folder = tmp_path_factory.mktemp("user")
    text = (ROOT / "examples" / "my_kernel.py").read_text()
    (folder / "wrong.py").write_text(text.replace("my_kernel", "wrong"))
    lost = "sum *= rescale;"
    assert EXAMPLE.read_text().count(lost) == 1
    (folder / "wrong.cu").write_text(EXAMPLE.read_text().replace(lost, ""))
    (folder / "function.py").write_text((ROOT / "examples" / "my_callable.py").read_text())
    return folder


@pytest.mark.slow
def test_a_failing_kernel_leaves_a_bundle_with_its_source_and_the_reason(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["judge", str(files / "wrong.py"), *CASE, "--bundle", str(tmp_path), "--json", str(tmp_path / "v.json")]
    )
    printed = capsys.readouterr()
    assert code == 1, printed.err
    result = json.loads((tmp_path / "v.json").read_text())
    assert (result["status"], [case["name"] for case in result["cases"]]) == ("INCORRECT", ["1x1x33x32 seed 0"])
    assert verify_bundle(result["bundle"]).findings == []
    data = ReportData.read(result["bundle"])
    (attempt,) = data.attempts
    assert data.sources["source/00-wrong/wrong.cu"] == (files / "wrong.cu").read_text()
    assert data.sources["source/00-wrong/wrong.py"] == (files / "wrong.py").read_text()
    assert attempt.builds[0].ptx_sha256 in result["cases"][0]["run"]["ptx_sha256"]
    assert attempt.builds[0].resources is not None
    page = Path(result["report"]).read_text()
    assert "wrong: INCORRECT in 1 of 1 cases" in page
    assert result["reason"].partition(";")[0].replace("'", "&#39;") in page
    assert main(["report", result["bundle"], "--out", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == page
    assert {path.name for path in tmp_path.iterdir()} == {
        "v.json", "again.html", Path(result["bundle"]).name, Path(result["report"]).name,
        f"{Path(result['bundle']).name}.sha256",
    }  # fmt: skip


@pytest.mark.slow
def test_a_function_leaves_one_too(files: Path, tmp_path: Path) -> None:
    assert main(["judge", str(files / "function.py"), *CASE, "--bundle", str(tmp_path)]) == 0
    (bundle,) = tmp_path.glob("*.tar.gz")
    assert verify_bundle(bundle).findings == []
    (attempt,) = ReportData.read(bundle).attempts
    assert (attempt.builds, list(attempt.sources)) == ((), ["source/00-blocked_attention/function.py"])


@pytest.mark.slow
def test_repro_takes_a_users_file(files: Path, tmp_path: Path) -> None:
    out, record = tmp_path / "out", tmp_path / "repro.json"
    names = ["--kernel", f"{files / 'wrong.py'}:MY_KERNEL"]
    code = main(["repro", str(files / "function.py"), *names, "--out", str(out), "--json", str(record)])
    assert code == 1
    result = json.loads(record.read_text())
    assert [each["passed"] for each in result["attempts"]] == [True, False]
    assert verify_bundle(result["bundle"]).findings == []
    function, wrong = ReportData.read(result["bundle"]).attempts
    assert function.passed
    assert (wrong.gate_ok, wrong.passed, len(wrong.sources)) == (True, False, 2)


def test_without_a_verdict_there_is_no_bundle(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "fails.py").write_text("raise RuntimeError('no luck')\n")
    for command in (["judge", "--bundle", str(tmp_path)], ["repro", "--out", str(tmp_path)]):
        assert main([command[0], str(files / "fails.py"), *command[1:]]) == 2
        assert "no luck (line 1)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
