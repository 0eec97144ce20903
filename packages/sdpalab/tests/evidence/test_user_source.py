"""Which files of a user a bundle keeps: found in the text, and never outside the folder of the Python file."""

from __future__ import annotations

from pathlib import Path

from sdpalab.evidence.user_source import user_files


def test_the_file_its_modules_and_its_device_code(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "parts").mkdir(parents=True)
    (tmp_path / "secret.cuh").write_text("secret")
    (folder / "k.py").write_text(
        "import os, plans\nfrom parts import grids\nraise RuntimeError\nSOURCE = 'k.cu'\nOTHER = '../secret.cuh'\n"
    )
    (folder / "plans.py").write_text("from plans import nothing\ndef broken(:\n")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "grids.py").write_text("")
    (folder / "k.cu").write_text('#include <cuda_fp16.h>\n#include "tile.cuh"\n  # include "../secret.cuh"\n')
    (folder / "tile.cuh").write_text('#include "k.cu"\n#include "nowhere.cuh"\n')
    (folder / "unrelated.cu").write_text("")
    files = user_files(f"{folder}/k.py:KERNEL")
    assert list(files) == ["k.cu", "k.py", "parts/__init__.py", "parts/grids.py", "plans.py", "tile.cuh"]
    assert files["tile.cuh"] == (folder / "tile.cuh").read_bytes()
