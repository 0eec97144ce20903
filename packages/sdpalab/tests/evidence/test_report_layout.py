"""The report in a browser: no sideways scrolling from phone to desk, main figures first, heads that stay, filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evidence_sample import Sample

from chromium import measured
from sdpalab.evidence import ReportData, render_report

WIDTHS = (390, 800, 1024, 1400, 1600)

SCRIPT = """
const visible = selector => [...page.querySelectorAll(selector)].filter(each => each.offsetParent).length;
const box = element => element.getBoundingClientRect();
const result = {
  page: page.documentElement.scrollWidth, view: view.innerWidth,
  tiles: box(page.querySelector(".tiles")).bottom,
  wider: [...page.querySelectorAll(".wide, pre")].filter(each => each.scrollWidth > each.clientWidth)
    .map(each => view.getComputedStyle(each).overflowX),
  sideways: [...page.querySelectorAll(".tiles dd, .cards td, .cards th, nav")]
    .filter(each => box(each).right > view.innerWidth + 1).length,
};
const matrix = page.querySelector(".matrix").parentElement, head = matrix.querySelector("thead th:nth-child(2)");
matrix.style.maxHeight = "9rem"; matrix.style.maxWidth = "14rem";
const before = box(head).top - box(matrix).top;
matrix.scrollTop = 30; matrix.scrollLeft = 60;
result.scrolled = matrix.scrollTop; result.aside = matrix.scrollLeft;
result.headMoved = box(head).top - box(matrix).top - before;
result.nameMoved = box(matrix.querySelector("tbody tr:last-child th")).left - box(matrix).left;
view.scrollTo(0, 1500);
result.contents = box(page.querySelector(".contents")).top;
const shown = [".cards tbody tr", ".matrix tbody tr", ".matrix thead th", "article[id^=failure]"];
const choose = (...names) => {
  names.forEach(name => page.getElementById(name).checked = true);
  return shown.map(visible);
};
result.filters = {
  all: choose("only-all", "every"), failed: choose("only-failed", "every"), passed: choose("only-passed", "every"),
  first: choose("only-all", "k0"), firstFailed: choose("only-failed", "k0"), second: choose("only-failed", "k1"),
};
result.loaded = view.performance.getEntriesByType("resource").length;
return result;
"""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def layouts(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The sample with ten more kernels, as the whole ladder has them, at each width."""
    data = ReportData.read(sample.written.tarball)
    more = [replace(data.attempts[0], kernel=f"warp_specialized_{n}") for n in range(10)]
    page = render_report(replace(data, attempts=(*data.attempts, *more)))
    return measured(page, WIDTHS, SCRIPT, tmp_path_factory.mktemp("browser"))


def test_the_page_never_scrolls_sideways(layouts: dict[int, Any]) -> None:
    assert set(layouts) == set(WIDTHS)
    for width, layout in layouts.items():
        assert layout["view"] == width, layout
        assert layout["page"] <= width
        assert layout["sideways"] == 0
        assert set(layout["wider"]) <= {"auto"}, "what is wider scrolls within itself"
    assert layouts[390]["wider"], "thirteen kernels do not fit on a phone"


def test_the_main_figures_are_on_the_first_screen(layouts: dict[int, Any]) -> None:
    assert all(layout["tiles"] < 844 for layout in layouts.values())


def test_heads_names_and_contents_stay_in_sight(layouts: dict[int, Any]) -> None:
    for layout in layouts.values():
        assert layout["scrolled"] == 30
        assert layout["aside"] == 60
        assert abs(layout["headMoved"]) < 1
        assert abs(layout["nameMoved"]) < 1
        assert layout["contents"] >= 0


def test_filters_need_no_script(sample: Sample, layouts: dict[int, Any]) -> None:
    cases = len(sample.verdicts[0].cases)
    for layout in layouts.values():
        shown = layout["filters"]
        assert shown["all"] == [13, cases, 14, 2]
        assert shown["failed"] == [2, cases, 14, 2]
        assert shown["passed"] == [11, 0, 14, 0], "every case failed with one kernel"
        assert shown["first"] == [1, cases, 2, 0]
        assert shown["firstFailed"] == [0, 0, 2, 0], "the first kernel failed in none"
        assert shown["second"] == [1, cases, 2, 1]


def test_nothing_is_loaded(layouts: dict[int, Any]) -> None:
    assert all(layout["loaded"] == 0 for layout in layouts.values())
