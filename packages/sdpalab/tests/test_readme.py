"""The READMEs' tables are those of the records, and the pages list every kernel and command."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from sdpalab.kernels.registry import KERNELS, SHIPPED

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "packages" / "sdpalab" / "README.md").read_text()
REMEDY = "run python -m lab ladder, then python scripts/readme_tables.py --write"


@pytest.fixture(scope="module")
def readme_tables(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("readme_tables")


def test_the_ladder_has_every_kernel_in_order(readme_tables: ModuleType) -> None:
    table = README.partition("<!-- table: ladder -->")[2].partition("<!-- end of table -->")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert rows == list(KERNELS), f"the ladder in packages/sdpalab/README.md must have each kernel: {REMEDY}"


def test_every_kernel_has_its_page_in_order() -> None:
    folder = ROOT / "packages" / "sdpalab" / "docs" / "kernels"
    assert {path.stem for path in folder.glob("*.md")} == {"index", *SHIPPED}
    listed = (folder / "index.md").read_text().partition("```{toctree}")[2].partition("```")[0]
    assert [line for line in listed.split() if line in SHIPPED] == list(SHIPPED)
    for name in SHIPPED:
        assert (folder / f"{name}.md").read_text().startswith(f"# `{name}`\n\n## Idea\n")


def test_the_tables_are_those_of_the_records(readme_tables: ModuleType) -> None:
    tables = readme_tables.tables()
    for page in readme_tables.PAGES:
        text = (ROOT / page).read_text()
        assert text == readme_tables.filled(text, tables), f"{page}: run python scripts/readme_tables.py --write"


def test_every_kernel_has_passed_at_level_full(readme_tables: ModuleType) -> None:
    judged = readme_tables.verdicts()
    assert list(judged) == list(KERNELS), "run python -m lab verdicts, and scripts/readme_tables.py --write"
    for each in judged.values():
        assert each["statuses"] == {"PASSED": each["cases"]}
        assert each["cases"] > 200


def test_a_kernel_that_changed_after_its_records_is_marked(
    readme_tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readme_tables, "code_of", lambda kernel: f"the code of {kernel.name} today")
    before = readme_tables.resources
    monkeypatch.setattr(readme_tables, "resources", lambda *of: replace(before(*of), registers=7))
    tables = readme_tables.tables()
    assert re.search(r"`flash`\]\(flash.md\) \| (\d+) of \1, before a change \|", tables["judged"])
    assert "before a change" in tables["figures-flash"]
    assert re.search("Changed since: .*`flash`", tables["counted"])


def test_every_command_that_there_is_and_no_other_is_listed() -> None:
    from sdpalab.cli import COMMANDS

    page = (ROOT / "packages" / "sdpalab" / "docs" / "cli.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)", page.partition("## Commands\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert listed == list(COMMANDS)
