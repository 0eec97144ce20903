"""Edits of source text that plant a bug."""

from __future__ import annotations

__all__ = ["replace_once"]


def replace_once(text: str, *edits: tuple[str, str], where: str = "the text") -> str:
    """Apply the (old, new) ``edits`` to ``text`` in order.

    Raises
    ------
    ValueError
        If an old text does not occur exactly once: the source has changed, and the edit must be updated.
    """
    for old, new in edits:
        if (count := text.count(old)) != 1:
            raise ValueError(f"an edit of {where} needs exactly one occurrence of its old text, not {count}: {old!r}")
        text = text.replace(old, new)
    return text
