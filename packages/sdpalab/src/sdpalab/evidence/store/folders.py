"""Folders of records: records shipped with the lab, and a user's records of ``sdpalab prove``.

Both folders have one layout, ``<gpu>/*.json``, with a folder for each model of GPU.
"""

from __future__ import annotations

import re
from pathlib import Path

from sdpalab.installation import source_tree
from sdpalab.user_folder import data_folder

__all__ = ["EVIDENCE", "evidence_folder", "folder_of", "records_folder"]

_HERE = Path(__file__).resolve().parent.parent


def evidence_folder() -> Path:
    """Folder of the shipped records: ``evidence/`` of a source tree, or its copy in the wheel.

    In the wheel the folder is in the package ``evidence``. In a source tree ``shipped`` is a link to the tree's folder,
    so that setuptools finds the records; the folder itself is read, because a copy of a tree may have lost its links.
    """
    tree = source_tree()
    return tree / "evidence" if tree is not None and (tree / "evidence").is_dir() else _HERE / "shipped"


EVIDENCE = evidence_folder()


def records_folder() -> Path:
    """Folder of the user's records of ``sdpalab prove``."""
    return data_folder() / "proofs"


def folder_of(gpu: str) -> str:
    """The name of a GPU's folder: ``h200`` of ``NVIDIA H200``, ``a100-sxm4-80gb`` of ``NVIDIA A100-SXM4-80GB``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-") or "gpu"
