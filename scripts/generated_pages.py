"""Pages of the manual from tables of the tests: ``python scripts/generated_pages.py`` writes them to ``docs``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "packages" / "sdpalab"
PAGES = {"hacks": "hacks", "elsewhere": "written_submissions"}
"""Module of ``tests/formats`` by page; its ``page()`` is the text."""

if __name__ == "__main__":
    for name, table in PAGES.items():
        spec = importlib.util.spec_from_file_location(table, PACKAGE / "tests" / "formats" / f"{table}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        (PACKAGE / "docs" / f"{name}.md").write_text(module.page())
