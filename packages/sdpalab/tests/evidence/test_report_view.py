"""Report on a kernel: names that tell builds apart, the diagnosis, hazards at their source lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evidence_sample import PROBLEMS, SOURCE, Sample

from sdpalab.evidence import ReportData, render_report
from sdpalab.evidence.records import AttemptRecord
from sdpalab.evidence.report.build_labels import build_labels
from sdpalab.evidence.report.listing import excerpts, listings
from sdpalab.evidence.report.view import kernel_views
from sdpalab.judge.verdict import Status
from warpsan.report.groups import HazardGroup, Party

LINES = SOURCE.splitlines()
READ, WRITE = (
    next(n for n, line in enumerate(LINES, 1) if text in line) for text in ("factor * tile", "= x[threadIdx")
)


def party(line: int, column: int, who: str) -> Party:
    return Party(f"scale.cu:{line}", column, LINES[line - 1], "ld.shared.f32", who, (f"scale.cu:{line}:{column}",))


RACE = HazardGroup(
    kind="race",
    message="race",
    what="reads what {other} wrote",
    advice="usually a missing barrier between them",
    here=party(READ, 31, "thread (32, 0, 0)"),
    other=party(WRITE, 5, "warp 0"),
    instructions=("scale.ptx:30", "scale.ptx:34"),
    runs=("one",),
)


@pytest.fixture(scope="module")
def data(sample: Sample) -> ReportData:
    return ReportData.read(sample.written.tarball)


def with_hazard(attempt: AttemptRecord) -> AttemptRecord:
    """The attempt with a race in each case."""
    assert attempt.verdict is not None
    cases = tuple(
        replace(case, status=Status.HAZARD, reason="a race", run={**case.run, "hazards": [RACE.to_dict()]})
        for case in attempt.verdict.cases
    )
    return replace(attempt, verdict=replace(attempt.verdict, cases=cases))


def test_each_build_is_named_by_what_differs(data: ReportData) -> None:
    attempt = data.attempts[0]
    build = attempt.builds[0]
    (alone,) = build_labels(attempt)
    assert (alone.variant, alone.problems[0]) == ("", max(PROBLEMS, key=lambda problem: problem.scores))
    assert alone.shapes == "1x2x64x64 and 2 more"

    def variant(digest: str, *words: str) -> Any:
        files = {**build.files, "kernel.ptx": digest * 64}
        return replace(build, command=(*build.command, *words), files=files)

    several = (
        variant("a", "-DSTREAM_K=0", "-DX=1"),
        variant("b", "-DSTREAM_K=1", "-DX=1"),
        variant("c", "-DSTREAM_K=1", "-DX=1"),
    )
    assert attempt.verdict is not None
    cases = tuple(replace(case, run={}) for case in attempt.verdict.cases)
    labels = build_labels(replace(attempt, builds=several, verdict=replace(attempt.verdict, cases=cases)))
    assert [label.variant for label in labels] == ["STREAM_K=0", "STREAM_K=1 code bbbbbbbb", "STREAM_K=1 code cccccccc"]
    assert {label.shapes for label in labels} == {"no case ran it"}


def test_each_attempt_of_one_kernel_is_named_by_its_knobs(data: ReportData) -> None:
    first = data.attempts[0]
    configs = ("BLOCK_M=64 NUM_STAGES=2", "BLOCK_M=64 NUM_STAGES=3", "BLOCK_M=64 NUM_STAGES=3")
    attempts = (*(replace(first, config=config) for config in configs), data.attempts[1])
    titles = [view.title for view in kernel_views(replace(data, attempts=attempts))]
    assert titles == ["honest NUM_STAGES=2", "honest NUM_STAGES=3 (2)", "honest NUM_STAGES=3 (3)", "wrong-scale"]


def test_a_wrong_kernel_has_its_likely_cause_its_worst_row_and_the_next_step(data: ReportData) -> None:
    _, wrong, never = kernel_views(data)
    assert "1.02 times" in wrong.summary.likely
    assert wrong.summary.worst_row.startswith("(b=")
    assert wrong.summary.next_step.startswith("sdpalab sanitize wrong-scale --shape ")
    assert wrong.picture is not None
    assert wrong.picture.case.status is Status.INCORRECT
    page = render_report(data)
    for text in (wrong.summary.worst_row, wrong.summary.next_step, "Where is the output wrong?"):
        assert text in page
    assert page.index('id="failures"') < page.index('id="cases"'), "why comes before the evidence"
    assert (never.status, never.summary.likely, never.picture) == ("NOT JUDGED", "", None)


def test_without_arrays_there_is_no_diagnosis_and_the_reasons_stay(data: ReportData) -> None:
    bare = replace(data, arrays={})
    wrong = kernel_views(bare)[1]
    assert (wrong.summary.likely, wrong.picture) == ("", None)
    assert wrong.failed[0].reason in render_report(bare).replace("&#39;", "'")


def test_the_next_step_names_the_users_file(data: ReportData) -> None:
    attempt = with_hazard(data.attempts[0])
    for command, name in (
        (("sdpalab", "judge", "mine.py:honest", "--arch", "sm_89", "--bundle", "out"), "mine.py:honest --shape"),
        (("sdpalab", "repro", "flash", "mine.py"), "mine.py --shape"),
        ((), ""),
    ):
        (view,) = kernel_views(replace(data, attempts=(attempt,), command=command))
        assert name in view.summary.next_step
        assert ("--arch sm_89" in view.summary.next_step) == ("--arch" in command)
        assert bool(view.summary.next_step) == bool(name)


def test_a_hazard_is_shown_at_both_lines_with_a_caret_and_noted_in_the_source(data: ReportData) -> None:
    page = render_report(replace(data, attempts=(with_hazard(data.attempts[0]),)))
    (view,) = kernel_views(replace(data, attempts=(with_hazard(data.attempts[0]),)))
    ((group, (here, other)),) = view.hazards
    assert group.kind == "race"
    assert (here.number, other.number) == (READ, WRITE)
    assert here.line[here.caret :].startswith("tile[63")
    assert other.line[other.caret :].startswith("tile[threadIdx")
    assert [number for number, _ in here.before] == [READ - 2, READ - 1]
    assert here.href == f"source-0-1-L{READ}"
    assert f'href="#{here.href}"' in page
    assert f'id="{here.href}"' in page
    assert f"← race with {WRITE}" in page
    assert "4 of 4 cases, first in" in page
    assert "reads what ld.shared.f32 at scale.cu" in page


def test_a_line_of_another_version_of_the_file_stands_alone(data: ReportData) -> None:
    attempt = data.attempts[0]
    shown = listings(attempt, data.sources, [RACE], "s")
    assert [each.name for each in shown] == ["mine.py", "scale.cu"]
    assert set(shown[1].notes) == {READ, WRITE}
    moved = replace(RACE, here=replace(RACE.here, line="    float other;"), other=None)
    (alone,) = excerpts(moved, shown)
    assert (alone.line, alone.href, alone.before, alone.after) == ("    float other;", "", [], [])
    (unknown,) = excerpts(replace(moved, here=Party("kernel.ptx:12", text="bar.sync")), shown)
    assert (unknown.line, unknown.caret, unknown.number) == ("", 0, 12)


def test_a_file_with_a_hazard_is_listed_also_of_a_shipped_kernel(data: ReportData) -> None:
    shipped = data.attempts[1]
    assert listings(shipped, data.sources, [], "s") == ()
    (listing,) = listings(shipped, data.sources, [RACE], "s")
    assert listing.path == f"{shipped.builds[0].directory}/scale.cu"
    assert listing.sha256 == shipped.builds[0].files["scale.cu"]


def test_hostile_source_and_hazards_stay_text(data: ReportData) -> None:
    evil = "<script>alert(1)</script>"
    attempt = with_hazard(data.attempts[0])
    hostile = replace(RACE, advice=evil, here=replace(RACE.here, line=evil, who=evil, place=f"{evil}:3"))
    assert attempt.verdict is not None
    cases = tuple(replace(case, run={**case.run, "hazards": [hostile.to_dict()]}) for case in attempt.verdict.cases)
    attempt = replace(attempt, verdict=replace(attempt.verdict, cases=cases))
    page = render_report(replace(data, attempts=(attempt,), sources=dict.fromkeys(data.sources, evil)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
