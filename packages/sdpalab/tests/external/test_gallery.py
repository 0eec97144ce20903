"""The gallery: programs from public sources, right on the simulator and with the hazards that they have.

``SDPALAB_EXTERNAL`` names the folder of the sources (``gallery.py DIR --fetch`` fills it).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import gallery
import pytest

PROGRAMS = gallery.GALLERY["programs"]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["name"])
def test_a_program_of_the_gallery(program: dict[str, Any], tmp_path: Path) -> None:
    root = Path(os.environ.get("SDPALAB_EXTERNAL", "nowhere")).absolute()
    if reason := gallery.why_not(program, root):
        pytest.skip(reason)
    assert gallery.run(program, gallery.build(program, root, tmp_path), root, tmp_path) == []


def test_every_source_has_a_version_and_a_licence() -> None:
    for source in gallery.SOURCES.values():
        assert source["version"] in source["archive"]
        assert re.fullmatch("[0-9a-f]{64}", source["sha256"])
        assert source["licence"]
    assert {name for program in PROGRAMS for name in program["needs"]} == set(gallery.SOURCES)


def test_every_program_names_what_is_there() -> None:
    for program in PROGRAMS:
        text = " ".join(
            [*gallery.expanded(program.get("build", [])), program.get("python", ""), *program.get("path", [])]
        )
        assert set(re.findall(r"\{(.*?)\}", text)) - {"programs"} == set(program["needs"])
        for path in re.findall(r"\{programs\}/(\S+)", text):
            assert (gallery.HERE / "programs" / path).exists()


def test_what_is_not_right_has_a_reason() -> None:
    for program in PROGRAMS:
        assert bool(program.get("hazards") or program.get("exit_code")) == ("why" in program), program["name"]
