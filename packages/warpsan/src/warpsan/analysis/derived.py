"""Cache of facts that depend only on an entry's code, for repeated launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

from warpsan.ptx.ir import Entry

__all__ = ["derived"]

T = TypeVar("T")


def derived(fact: Callable[[Entry], T]) -> Callable[[Entry], T]:
    """Cache the result of ``fact`` in the entry, whose code does not change after linking."""

    @wraps(fact)
    def known(entry: Entry) -> T:
        if fact not in entry.derived:
            entry.derived[fact] = fact(entry)
        return cast(T, entry.derived[fact])

    return known
