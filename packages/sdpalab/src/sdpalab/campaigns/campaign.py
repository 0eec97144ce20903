"""The result of a campaign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CampaignResult", "Content", "Say"]

Content = dict[str, Any]
"""Fields of a record below its head: plain JSON values."""

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
        True for exit code 0, False for exit code 1.
    summary : str
        One sentence without a full stop; the seconds are appended to it.
    """

    content: Content
    good: bool
    summary: str
