"""The manual's page of known hacks: ``python scripts/hacks_page.py`` writes ``docs/hacks.md`` from the tests' table."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "packages" / "sdpalab"

if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("hacks", PACKAGE / "tests" / "formats" / "hacks.py")
    assert spec is not None
    assert spec.loader is not None
    hacks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hacks)
    (PACKAGE / "docs" / "hacks.md").write_text(hacks.page())
