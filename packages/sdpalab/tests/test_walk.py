"""``docs/walk.md``: each planted bug is judged again, and the output is that of the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest

pytestmark = pytest.mark.first

STEPS = ("barrier", "mask")


@pytest.fixture(scope="module")
def walk(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("walk_page")


def shown(page: str, title: str) -> str:
    """The recorded output of one section."""
    body = page.split(f"## {title}\n", 1)[1].split("```console\n", 1)[1]
    return body.split("\n", 1)[1].split("\n```", 1)[0]


def words(output: str) -> list[str]:
    """The words below the table, without what hidden seeds change: numbers, and which case has the worst row."""
    below = " ".join(output[output.index("confinement:") :].split())
    below = re.sub(r"(worst row: \([^()]*\) of) [^:]+: relative L2", r"\1 CASE: relative L2", below)
    return re.sub(r"[\d.,]+(e[+-]\d+)?", "N", below).split()


def test_the_page_has_a_section_for_every_bug_and_what_leads_to_its_line(walk: ModuleType) -> None:
    page = walk.PAGE.read_text()
    assert tuple(step.name for step in walk.STEPS) == STEPS
    for step in walk.STEPS:
        output = shown(page, step.title)
        lines = output.splitlines()
        assert len(lines) + 1 <= walk.MOST_LINES, step.name
        assert max(map(len, lines)) <= walk.COLUMNS, step.name
        said = " ".join(output.split())
        assert all(text in said for text in step.shows), step.name
        assert step.reading in page
        assert walk.broken(step) != (walk.ROOT / "examples" / "my_kernel.cu").read_text()
    assert page == walk.page({step.name: shown(page, step.title) for step in walk.STEPS})


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_the_output_is_what_the_judge_prints(walk: ModuleType, name: str) -> None:
    step = next(step for step in walk.STEPS if step.name == name)
    output = walk.run(step)
    assert words(output) == words(shown(walk.PAGE.read_text(), step.title))
    assert len(output.splitlines()) + 1 <= walk.MOST_LINES
    assert max(map(len, output.splitlines())) <= walk.COLUMNS
