"""``sdpalab audit``: submissions in four public formats, each with its status, and the format's own check beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from cuda_submissions import FORWARD, FORWARD_DECLARED, inline
from written_submissions import SUBMISSIONS, Written, write_all

from sdpalab.cli import main
from sdpalab.errors import UserError
from sdpalab.formats import submissions_in

pytest.importorskip("triton")

FEW = (
    *("kernelbench/flash", "kernelbench/mean_of_v", "kernelbench/falls_back", "kernelbench/stores_past_the_end"),
    *("kernelbench/another_task", "kernelbench/looks_for_the_checker", "kernelbench/imports_the_reference"),
    *("gpumode/last_tile_missing", "gpumode/patches_allclose", "pair/zeros_under_an_edited_tolerance"),
    *("flashinfer/ragged", "flashinfer/natural_logarithm", "flashinfer/few_elements_wrong", "flashinfer/paged"),
    *("flashinfer/ignores_the_page_table", "flashinfer/in_cuda", "kernelbench/inline_cuda", "kernelbench/loaded_cuda"),
    *("kernelbench/library_in_cpp", "kernelbench/missing_barrier", "kernelbench/unknown_library"),
    *("kernelbench/one_head", "kernelbench/window_of_one_more", "pair/zeros_on_decode"),
)
"""Submissions of the fast tests: each format, and each status."""


def audited(folder: Path, written: dict[str, Written]) -> dict[str, dict[str, object]]:
    """Rows of an audit of a folder by the path of the submission in it."""
    target = folder.parent / "audit.json"
    assert main(["audit", str(folder), "--json", str(target)]) == 1
    document = json.loads(target.read_text())
    rows = {str(Path(row["submission"]).relative_to(folder)): row for row in document["submissions"]}
    assert document["passed"] == sum(each.status == "PASSED" for each in written.values())
    return rows


def check(folder: Path, written: dict[str, Written]) -> None:
    rows = audited(folder, written)
    assert rows.keys() == written.keys()
    assert {name: row["status"] for name, row in rows.items()} == {n: each.status for n, each in written.items()}, {
        name: row["reason"] for name, row in rows.items() if row["status"] != written[name].status
    }
    known = {name: each.accepted for name, each in written.items() if each.accepted is not None}
    assert {name: rows[name]["own"] == "accepts" for name in known} == known
    for name, row in rows.items():
        code = written[name].code
        if row["status"] == "PASSED":
            kernels = any(word in code for word in ("@triton.jit", "__global__", "cpp_extension"))
            assert str(row["provenance"]).startswith("kernels 100%" if kernels else "torch")
            assert bool(row["coverage"]) == kernels
        if row["status"] == "HAZARD":
            assert ("race" if "barrier" in name else "out-of-bounds") in str(row["hazard"])


def test_a_few_submissions_have_their_status(tmp_path: Path) -> None:
    check(tmp_path / "all", write_all(tmp_path / "all", lambda each: f"{each.format}/{each.name}" in FEW))


def test_a_trace_for_each_solution(tmp_path: Path) -> None:
    write_all(tmp_path / "all", lambda each: each.name in ("natural_logarithm", "paged", "in_another_language"))
    assert main(["audit", str(tmp_path / "all"), "--trace", str(tmp_path / "traces")]) == 1
    lines = [json.loads(line) for path in sorted((tmp_path / "traces").iterdir()) for line in path.open()]
    paged, wrong = lines
    assert (paged["definition"], paged["solution"]) == ("gqa_paged_decode_h4_kv2_d64_ps16", "paged")
    assert paged["evaluation"]["status"] == "PASSED"
    assert paged["evaluation"]["performance"] is None
    assert 0 <= paged["evaluation"]["correctness"]["max_absolute_error"] < 1e-2
    assert paged["workload"]["axes"]["batch_size"] == 2
    assert "no" in paged["evaluation"]["log"]
    assert wrong["evaluation"]["status"] == "INCORRECT_NUMERICAL"
    assert wrong["evaluation"]["correctness"]["max_absolute_error"] > 1
    assert wrong["evaluation"]["correctness"]["extra"]["own"] == "rejects"


def test_judge_takes_a_function_with_an_extension(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    call = "\n\ndef mine(q, k, v, *, scale, causal):\n    return ext.forward(q.contiguous(), k, v, causal)\n"
    file.write_text(inline(FORWARD.replace("n_kv - tile) && row", "n_kv - tile - 1) && row"), FORWARD_DECLARED) + call)
    words = ["judge", f"{file}:mine", "--shape", "1,1,40,64", "--no-claims", "--only", "seed"]
    assert main(words) == 1
    assert "INCORRECT" in capsys.readouterr().out
    file.write_text(inline(FORWARD, FORWARD_DECLARED) + call)
    assert main(words) == 0
    assert "code: attend<__half, 64, false>: the cases executed" in capsys.readouterr().out


@pytest.mark.slow
def test_all_submissions_have_their_status(tmp_path: Path) -> None:
    assert len(SUBMISSIONS) >= 30
    assert len({each.format for each in SUBMISSIONS}) == 4
    check(tmp_path / "all", write_all(tmp_path / "all"))


def test_a_folder_of_passing_submissions_is_good(tmp_path: Path) -> None:
    write_all(tmp_path / "all", lambda each: each.name == "paged")
    assert main(["audit", str(tmp_path / "all")]) == 0


def test_a_file_that_is_no_submission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def solve(x):\n    return x\n")
    with pytest.raises(UserError, match=r"other\.py is a submission in none of the formats: KernelBench"):
        submissions_in([tmp_path / "other.py"])
    with pytest.raises(UserError, match="there is no submission in"):
        submissions_in([tmp_path])


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("a.py", "class ModelNew: pass\n", "there is no reference.py of the task beside it"),
        ("a.py", "def custom_kernel(data): pass\n", "there is no reference.py of the task beside it"),
        (
            "solution.json",
            json.dumps(
                {"definition": "none", "spec": {"entry_point": "a.py::run", "language": "triton"}, "sources": []}
            ),
            "there is no definition none beside it",
        ),
    ],
)
def test_a_submission_without_its_task_is_refused(tmp_path: Path, file: str, text: str, words: str) -> None:
    (tmp_path / file).write_text(text)
    (submission,) = submissions_in([tmp_path])
    assert words in submission.refused
