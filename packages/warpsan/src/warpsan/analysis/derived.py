"""What follows from an entry's code alone is worked out once: every launch of it asks again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

from warpsan.ptx.ir import Entry

__all__ = ["derived"]

T = TypeVar("T")


def derived(fact: Callable[[Entry], T]) -> Callable[[Entry], T]:
    """Keep what ``fact`` returns with the entry, whose code does not change once it is linked."""

    @wraps(fact)
    def known(entry: Entry) -> T:
        if fact not in entry.derived:
            entry.derived[fact] = fact(entry)
        return cast(T, entry.derived[fact])

    return known
