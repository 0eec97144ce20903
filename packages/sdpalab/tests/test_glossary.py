"""The glossary holds: its terms are used, its classes exist, and the words that it rules out are nowhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "packages" / "sdpalab" / "docs" / "glossary.md"
FOLDERS = ("src", "tests", "scripts", "benchmarks", "examples", "docs")
SUFFIXES = {".py", ".cu", ".cuh", ".md", ".j2", ".sh"}


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the page, without its head."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    """Every text of the project but the glossary and this test, in lower case."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return {path: path.read_text().lower() for path in files if path not in (PAGE, Path(__file__).resolve())}


@pytest.fixture(scope="module")
def classes() -> Counter[str]:
    """How many classes of the project have each name."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return Counter(name for path in files for name in re.findall(r"^class (\w+)", path.read_text(), re.M))


@pytest.mark.parametrize("term", [term for row in _rows("Terms") for term in row[0].split(", ")])
def test_a_term_is_used(texts: dict[Path, str], term: str) -> None:
    words = re.compile(rf"\b{re.escape(term.lower())}s?\b".replace(r"\ ", r"\s+"))
    assert any(words.search(text) for text in texts.values()), term


@pytest.mark.parametrize(
    "name", sorted({name for row in _rows("Terms") for name in re.findall(r"`([A-Z]\w+)`", row[1])})
)
def test_a_class_of_the_glossary_exists_once(classes: Counter[str], name: str) -> None:
    assert classes[name] == 1


@pytest.mark.parametrize("word", [word for row in _rows("Words that are not used") for word in row[0].split(", ")])
def test_a_word_that_is_ruled_out_is_nowhere(texts: dict[Path, str], word: str) -> None:
    first = re.escape(re.split(r"[ _]", word.lower())[0])  # it is searched for alone: the whole pattern is slow
    spaced = re.compile(rf"(?<![a-z]){re.escape(word.lower())}(s|es)?(?![a-z])".replace(r"\ ", r"[\s_]+"))
    wrong = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, place.start()) + 1}"
        for path, text in texts.items()
        for place in re.finditer(first, text)
        if spaced.match(text, place.start())
    ]
    assert not wrong, f"{word}: {wrong[:20]}"
