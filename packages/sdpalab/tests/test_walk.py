"""The pages of walks: each planted bug is run again, and the output is that of the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest

pytestmark = pytest.mark.first

STEPS = ("barrier", "mask", "fence", "stage", "lanes")


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("walk_page")


def shown(page: str, title: str) -> str:
    """The recorded output of one section."""
    body = page.split(f"## {title}\n", 1)[1].split("```console\n", 1)[1]
    return body.split("\n", 1)[1].split("\n```", 1)[0]


def words(output: str) -> list[str]:
    """The words below the table, without what hidden seeds change: numbers, and which case has the worst row."""
    begin = max(output.find("confinement:"), 0)
    below = " ".join(output[begin:].split())
    below = re.sub(r"(worst row: \([^()]*\) of) [^:]+: relative L2", r"\1 CASE: relative L2", below)
    return re.sub(r"[\d.,]+(e[+-]\d+)?", "N", below).split()


def test_the_pages_have_a_section_for_every_bug_and_what_leads_to_its_line(script: ModuleType) -> None:
    assert tuple(step.name for walk in script.WALKS for step in walk.steps) == STEPS
    for walk in script.WALKS:
        page = walk.path.read_text()
        for step in walk.steps:
            output = shown(page, step.title)
            lines = output.splitlines()
            assert len(lines) + 1 <= script.MOST_LINES, step.name
            assert max(map(len, lines)) <= script.COLUMNS, step.name
            printed = " ".join(output.split())
            assert all(text in printed for text in step.shows), step.name
            assert step.reading in page
            assert walk.broken(step) != walk.right()
        assert page == script.page(walk, {step.name: shown(page, step.title) for step in walk.steps})


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_the_output_is_what_the_command_prints(script: ModuleType, name: str) -> None:
    walk, step = next((walk, step) for walk in script.WALKS for step in walk.steps if step.name == name)
    output = script.run(walk, step)
    assert words(output) == words(shown(walk.path.read_text(), step.title))
    assert len(output.splitlines()) + 1 <= script.MOST_LINES
    assert max(map(len, output.splitlines())) <= script.COLUMNS
