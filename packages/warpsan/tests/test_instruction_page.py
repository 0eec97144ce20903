"""The page of supported instructions matches the tables."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="the page says what the native engine executes")

from warpsan import semantics as semantics  # registers every handler
from warpsan.engine.assembler import HANDLERS
from warpsan.ptx.opcodes import OPCODES

ROOT = Path(__file__).parents[3]


def test_the_page_is_up_to_date():
    script = runpy.run_path(str(ROOT / "scripts" / "instruction_page.py"))
    assert (ROOT / "packages" / "warpsan" / "docs" / "instructions.md").read_text() == script["page"](), (
        "run python scripts/instruction_page.py"
    )


def test_every_opcode_has_one_record_and_every_record_an_instruction():
    assert {name.split(".")[0] for name in HANDLERS} == {name.split(".")[0] for name in OPCODES}
