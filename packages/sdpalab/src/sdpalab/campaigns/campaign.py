"""The interface of a campaign: its result, and access to files that only a checkout of the repository has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpalab.errors import UserError
from sdpalab.installation import source_tree

__all__ = ["CampaignResult", "Content", "Say", "checkout", "tests_module"]

Content = dict[str, Any]
"""What a record holds beside its head: plain JSON values."""

Say = Callable[[str], None]
"""Prints a line of progress."""


@dataclass(frozen=True)
class CampaignResult:
    """The end of a campaign.

    Attributes
    ----------
    content : dict
        For the record.
    good : bool
        Whether everything is as it should be; otherwise the exit code is 1.
    summary : str
        One sentence without a full stop; the seconds are appended to it.
    """

    content: Content
    good: bool
    summary: str


def checkout() -> Path:
    """The root of the source tree.

    Raises
    ------
    UserError
        If the package is installed without one.
    """
    root = source_tree()
    if root is None:
        raise UserError("this campaign needs a checkout of the repository: it uses kernels and oracles of the tests")
    return root


def tests_module(folder: str, name: str) -> Any:
    """A module of ``tests/FOLDER``; raises UserError where there is no checkout."""
    packages = checkout() / "packages"
    path = str(packages / "warpsan/tests" if folder == "sim" else packages / "sdpalab/tests" / folder)
    if path not in sys.path:
        sys.path.append(path)
    return importlib.import_module(name)
