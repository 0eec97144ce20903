"""The page of supported instructions is what the tables say."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_the_page_is_up_to_date():
    pytest.importorskip("llvmlite", reason="the page says what the native engine executes")
    script = runpy.run_path(str(ROOT / "scripts" / "instruction_page.py"))
    assert (ROOT / "docs" / "instructions.md").read_text() == script["page"](), "run python scripts/instruction_page.py"
