"""Granules of the shadow memory of the checks."""

from __future__ import annotations

from warpsan.ptx.accesses import Atomic, LoadStore
from warpsan.ptx.grammar import Form, known_form
from warpsan.ptx.ir import Entry
from warpsan.ptx.synchronising import AsyncReduction, AsyncStore

__all__ = ["granule_of"]


def granule_of(entry: Entry, spaces: tuple[str, ...]) -> int:
    """Bytes of the narrowest access that the entry makes to one of ``spaces`` (or a generic address), at most 4.

    Granules need not be smaller than this access.
    """
    key = granule_of, spaces
    if key not in entry.derived:
        entry.derived[key] = _narrowest(entry, spaces)
    return int(entry.derived[key])


def _narrowest(entry: Entry, spaces: tuple[str, ...]) -> int:
    narrowest = 4
    for instruction in entry.instructions:
        form = known_form(instruction, Form)
        if not isinstance(form, LoadStore | Atomic | AsyncStore | AsyncReduction):
            continue
        if not form.named_spaces or form.named_spaces & set(spaces):
            narrowest = min(narrowest, form.width)
    return narrowest
