"""The gallery: programs from public sources, right on the simulator and with the hazards that they have.

``SDPALAB_EXTERNAL`` names the folder of the checkouts (``gallery.py DIR --fetch`` makes it).
"""

from __future__ import annotations

import os
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
    assert gallery.run(program, gallery.build(program, root, tmp_path)) == []


def test_every_source_has_a_commit_and_a_licence() -> None:
    for source in gallery.GALLERY["sources"].values():
        assert source["repository"].startswith("https://")
        assert len(source["commit"]) == 40
        assert source["licence"]
    names = {name for program in PROGRAMS for name in program["needs"]}
    assert names == set(gallery.GALLERY["sources"])
