"""Two bundles side by side: what passed before and fails now decides, and everything that differs is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_sample import PROBLEMS, Sample, forge
from test_report import parsed

from chromium import measured
from sdpalab.cli import main
from sdpalab.evidence import ReportData
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.report.page import render_comparison
from sdpalab.evidence.side_by_side import BundleComparison, compare_bundles
from sdpalab.judge.verdict import Status


@pytest.fixture(scope="module")
def data(sample: Sample) -> ReportData:
    return ReportData.read(sample.written.tarball)


def renamed(attempt: AttemptRecord, **fields: Any) -> AttemptRecord:
    return replace(attempt, **fields)


@pytest.fixture(scope="module")
def worse(data: ReportData) -> BundleComparison:
    """The honest kernel, and under its name the one with a wrong scale and another configuration."""
    build = data.attempts[1].builds[0]
    assert build.resources is not None
    used = replace(build.resources, registers=build.resources.registers + 8)
    changed = replace(build, resources=used, files={**build.files, "kernel.ptx": "0" * 64})
    verdict = data.attempts[1].verdict
    assert verdict is not None
    cases = tuple(replace(case, run={**case.run, "ptx_sha256": ["0" * 64]}) for case in verdict.cases)
    verdict = replace(verdict, cases=cases)
    after = renamed(data.attempts[1], kernel="honest", config="BLOCK_M=128", builds=(changed,), verdict=verdict)
    harness = replace(data.environment.harness, commit="f" * 40, dirty=False)
    environment = replace(data.environment, harness=harness, python="3.99")
    return compare_bundles(
        replace(data, attempts=data.attempts[:1]),
        replace(data, name="later", attempts=(after, data.attempts[2]), environment=environment),
    )


def test_a_bundle_beside_itself_has_no_difference(data: ReportData) -> None:
    same = compare_bundles(data, data)
    assert (same.regressions, same.environment) == ((), ())
    assert [kernel.statuses[0] for kernel in same.kernels] == ["PASSED", "INCORRECT", "NOT JUDGED"]
    for kernel in same.kernels:
        assert kernel.statuses[0] == kernel.statuses[1]
        assert all(case.same_output and not case.changed for case in kernel.cases)
        assert all(build.same_code for build in kernel.builds)
    assert "Nothing that passed in A fails in B" in parsed(render_comparison(same)).text


def test_what_passed_and_fails_now_is_a_regression(worse: BundleComparison) -> None:
    kernel, added = worse.kernels
    assert (kernel.statuses, kernel.counts) == (("PASSED", "INCORRECT"), ("4/4", "0/4"))
    assert len(worse.regressions) == len(PROBLEMS)
    assert worse.regressions[0].startswith("honest, 1x2x33x32 normal seed 0: PASSED, and now INCORRECT")
    assert kernel.title == "honest (BLOCK_M=64 -> BLOCK_M=128)"
    assert kernel.outputs == "0 of 4 the same", "the inputs are the same"
    before, after = kernel.shares
    assert before is not None
    assert after is not None
    assert before <= 1 < after
    assert (added.kernel, added.before, added.statuses) == ("never", None, ("", "NOT JUDGED"))


def test_builds_are_matched_by_shape_and_the_environment_is_compared(worse: BundleComparison) -> None:
    (build,) = worse.kernels[0].builds
    assert not build.same_code
    assert build.name == "scale.cu, 1x2x64x64, sm_89"
    registers = build.used["registers"]
    assert registers[0] is not None
    assert registers[1] == registers[0] + 8
    differing = {name: (a, b) for name, a, b in worse.environment}
    assert differing["python"][1] == "3.99"
    assert differing["commit"][1] == "f" * 12
    assert set(differing) == {"python", "commit"}


def test_kernels_are_matched_by_configuration_first(data: ReportData) -> None:
    one, other = (renamed(data.attempts[0], config=config) for config in ("BLOCK_M=64", "BLOCK_M=128"))
    matched = compare_bundles(replace(data, attempts=(one, other)), replace(data, attempts=(other, one)))
    assert [kernel.configs for kernel in matched.kernels] == [("BLOCK_M=64",) * 2, ("BLOCK_M=128",) * 2]


def test_a_case_that_was_not_judged_again_is_no_regression(data: ReportData) -> None:
    attempt = data.attempts[0]
    assert attempt.verdict is not None
    fewer = renamed(attempt, verdict=replace(attempt.verdict, cases=attempt.verdict.cases[:1]))
    matched = compare_bundles(replace(data, attempts=(attempt,)), replace(data, attempts=(fewer,)))
    assert matched.regressions == ()
    assert [case.statuses[1] for case in matched.kernels[0].cases] == ["PASSED", "", "", ""]
    none = renamed(attempt, verdict=None, failure="it does not compile")
    (sentence,) = compare_bundles(replace(data, attempts=(attempt,)), replace(data, attempts=(none,))).regressions
    assert sentence == "honest: PASSED, and now NOT JUDGED"


def test_the_page_stands_alone_and_hostile_text_stays_text(worse: BundleComparison) -> None:
    evil = "<script>alert(1)</script>"
    hostile = replace(worse, after=replace(worse.after, name=evil), kernels=(replace(worse.kernels[0], kernel=evil),))
    page = render_comparison(hostile)
    assert "<script" not in page
    text = parsed(page)
    assert evil in text.text
    assert all(value.startswith("#") for value in text.fetched)
    assert f"{len(PROBLEMS)} cases that passed in A fail in B" in parsed(render_comparison(worse)).text
    assert Status.INCORRECT.value in text.text


def test_the_command_writes_page_and_document(
    sample: Sample, unpacked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, page = tmp_path / "c.json", tmp_path / "page.html"
    words = ["compare", str(sample.written.tarball), str(unpacked), "--out", str(page), "--json", str(document)]
    assert main(words) == 0
    content = json.loads(document.read_text())
    assert (content["command"], content["status"], content["regressions"]) == ("compare", "PASSED", [])
    assert content["report"] == str(page)
    assert content["a"] == {"bundle": str(sample.written.tarball), "accepted": True, "findings": []}
    assert page.read_text().startswith("<!doctype html>")
    assert "PASSED: nothing that passed in A fails in B" in capsys.readouterr().out

    def edit(record: dict[str, Any]) -> None:
        record["verdict"]["cases"][0]["errors"]["max_abs"] /= 2

    forge(unpacked, edit)
    page.unlink()
    assert main(words) == 1
    rejected = json.loads(document.read_text())
    assert (rejected["status"], rejected["report"], rejected["kernels"]) == ("FAILED", None, [])
    assert rejected["b"]["findings"]
    assert not page.exists()
    assert "rejected, and not compared" in capsys.readouterr().out


def test_bad_input_is_one_sentence(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(sample.written.tarball), "nosuch.tar.gz"]) == 2
    assert capsys.readouterr().err.startswith("sdpalab: nosuch.tar.gz")


LAYOUT = """
const rows = () => [...page.querySelectorAll("tr[data-changed]")].filter(each => each.offsetParent)
  .map(each => each.dataset.changed);
const wide = [...page.querySelectorAll(".wide")].filter(each => each.scrollWidth > each.clientWidth);
const result = {
  page: page.documentElement.scrollWidth, view: view.innerWidth,
  outcome: page.querySelector("h1").getBoundingClientRect().bottom,
  wide: wide.map(each => view.getComputedStyle(each).overflowX), all: rows(),
  heads: [...page.querySelectorAll("thead")].map(each => each.getBoundingClientRect().height),
};
page.getElementById("changed-only").checked = true;
result.changed = rows();
result.loaded = view.performance.getEntriesByType("resource").length;
return result;
"""


@pytest.mark.slow
def test_the_page_fits_every_screen_and_its_filter_needs_no_script(
    worse: BundleComparison, data: ReportData, tmp_path: Path
) -> None:
    both = replace(worse, kernels=(*worse.kernels, *compare_bundles(data, data).kernels))
    layouts = measured(render_comparison(both), (390, 800, 1400), LAYOUT, tmp_path)
    for width, layout in layouts.items():
        assert layout["view"] == width, layout
        assert layout["page"] <= width, "what is wider scrolls within itself"
        assert set(layout["wide"]) <= {"auto"}
        assert layout["outcome"] < 844, "the outcome is on the first screen"
        assert layout["loaded"] == 0
        assert {"yes", "no"} <= set(layout["all"])
        assert layout["changed"] == [each for each in layout["all"] if each == "yes"]
    assert max(layouts[390]["heads"]) < 40, "the heads of tables have one line on a phone"
    assert layouts[390]["wide"], "the cases of two bundles do not fit beside one another on a phone"
