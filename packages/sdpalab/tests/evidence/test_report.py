"""The report is one file that stands alone, says what its figures are, and shows what the records say."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from evidence_sample import PROBLEMS, Sample

from sdpalab.evidence import BundleWriter, ReportData, render_report
from sdpalab.evidence.report.figures import SERIES


class _Page(HTMLParser):
    """Tags that are open, attributes that fetch something, text."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")
        ]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> _Page:
    """The page, whose tags must all be closed."""
    page = _Page()
    page.feed(html)
    assert page.open == []
    page.text = " ".join(page.text.split())
    return page


@pytest.fixture(scope="module")
def html(sample: Sample) -> str:
    return sample.written.report.read_text()


def test_it_needs_nothing_else(html: str) -> None:
    page = parsed(html)
    assert "script" not in page.tags
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in page.fetched)
    assert not re.search(r"url\((?!#)|@import|<link", html)
    assert len(page.ids) == len(set(page.ids))
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_the_drawings_take_the_colours_of_the_page(html: str) -> None:
    assert html.count("<svg") == 5  # shares, rows, the map of what failed, instructions, floors
    assert not any(color in html for color in SERIES)
    for variable in ("--ink", "--muted", "--rule", "--bad", "--c0", "--c1"):
        assert f"var({variable})" in html
        assert f"{variable}:" in html


def test_it_says_what_is_in_the_records(sample: Sample, html: str) -> None:
    text = parsed(html).text
    assert "1 of 3 kernels judged correct" in text
    assert f"{len(PROBLEMS)} of {len(PROBLEMS)}" in text
    assert "1 of 12" in text
    for verdict in sample.verdicts:
        for case in verdict.cases:
            assert case.name in text
    assert sample.verdicts[1].cases[0].reason in text
    assert "it does not compile" in text
    assert sample.built.ptx_sha256 in text
    assert f"{sample.written.name}.tar.gz" in text


def test_every_figure_says_its_kind(html: str) -> None:
    text = parsed(html).text
    assert "not yet run on hardware" in text
    assert "A simulated run has no time: none is given." in text
    assert "no measured time" in text
    for gpu in ("L4", "H200"):
        assert gpu in text
    for figure in ("4.43", "6.99", "40.9", "24.5", "target 5 us"):
        assert figure in text
    assert "(modelled)" in text
    assert "(published)" in text


def test_it_is_made_again_from_the_bundle_alone(sample: Sample, unpacked: Path, html: str) -> None:
    assert render_report(ReportData.read(sample.written.tarball)) == html
    assert render_report(ReportData.read(unpacked)) == html
    (unpacked / "manifest.yaml").unlink()
    with pytest.raises(ValueError, match="not a bundle"):
        ReportData.read(unpacked)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, command=["x"]) as bundle:
        bundle.add("<script>alert(1)</script>", config="", verdict=None, failure="<b>& 'quotes'</b>")
        written = bundle.write()
    html = written.report.read_text()
    assert "<script" not in html
    page = parsed(html)
    assert "<script>alert(1)</script>" in page.text
    assert "0 of 1 kernels judged correct" in page.text


def test_it_shows_the_log_sum_exp_of_kernels_that_write_it(sample: Sample, html: str) -> None:
    errors = sample.verdicts[0].cases[0].errors
    assert errors is not None
    assert errors.lse is not None
    assert f'<td class="n">{errors.lse.error:.2e}</td><td class="n">{errors.lse.limit:.2e}</td>' in html
    assert html.count('<th class="n">log-sum-exp</th>') == len(sample.verdicts)


def test_it_lists_the_code_that_no_case_executed(html: str) -> None:
    text = parsed(html).text
    assert "scale: scale.cu:3-4, decided by `if (factor > 2.0f) {`, from scalar arguments" in text


def test_what_ran_on_a_gpu_is_said_to_have_and_has_no_time(sample: Sample) -> None:
    data = ReportData.read(sample.written.tarball)
    honest = data.attempts[0]
    assert honest.verdict is not None
    on_gpu = replace(honest, verdict=replace(honest.verdict, device="NVIDIA L4"))
    text = parsed(render_report(replace(data, attempts=(on_gpu,)))).text
    assert "Run on NVIDIA L4." in text
    assert "Nothing here was timed" in text
    for wrong in ("not yet run on hardware", "Nothing here was executed on a GPU", "A simulated run has no time"):
        assert wrong not in text


def test_figures_differ_when_the_records_do(sample: Sample, html: str) -> None:
    data = ReportData.read(sample.written.tarball)
    good = replace(data, attempts=data.attempts[:1])
    other = render_report(good)
    assert "One kernel judged correct" in parsed(other).text
    assert "INCORRECT" not in other
    assert other.count("<svg") == html.count("<svg") - 1, "no map of an error"
    bare = replace(data, attempts=data.attempts[2:], arrays={})
    assert render_report(bare).count("<svg") == 1
