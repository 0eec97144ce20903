"""Lists of releases through global memory in the pool, and the state of a warp's row: machine code.

Records and elements lie in one pool, which a thread's clusters share. A full pool ends the launch with that reason.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.context import Context
from warpsan.engine.layout import (
    NODE_BEFORE,
    NODE_ITEM,
    NODE_REACH,
    NODE_SCOPE,
    NODE_WORDS,
    RELEASE_USED,
    ROW_WORDS,
)
from warpsan.engine.words import load64, store64

__all__ = ["add_items", "has_item", "new_node", "row_state", "take_room", "use_items"]


def row_state(context: Context, warp: int) -> int:
    """The state of a warp's row."""
    return context.row_states + 8 * ROW_WORDS * warp


def take_room(context: Context, words: int) -> int:
    """The address of so many words; 0 if the pool is full."""
    end = context.pool_end
    if end + words > context.pool_words:
        return 0
    context.pool_end = end + words
    return context.pool + 8 * end


def new_node(context: Context, item: int, before: int, scope: int, reach: int) -> int:
    """A list that begins with an item; 0 if the pool is full."""
    node = take_room(context, NODE_WORDS)
    if node != 0:
        store64(node + 8 * NODE_ITEM, item)
        store64(node + 8 * NODE_BEFORE, before)
        store64(node + 8 * NODE_SCOPE, scope)
        store64(node + 8 * NODE_REACH, reach)
    return node


def has_item(node: int, item: int) -> int:
    """Whether a list contains an item."""
    while node != 0:
        if load64(node + 8 * NODE_ITEM) == item:
            return 1
        node = load64(node + 8 * NODE_BEFORE)
    return 0


def add_items(context: Context, place: int, items: int, releases: int) -> int:
    """Add the items of a list to the list at a place, until the pool is full. Returns whether any was new."""
    added = 0
    while items != 0:
        item = load64(items + 8 * NODE_ITEM)
        if has_item(load64(place), item) == 0:
            node = new_node(context, item, load64(place), SAME_GPU, SAME_GPU)
            if node == 0:
                return added
            store64(place, node)
            added = 1
            if releases:
                store64(item + 8 * RELEASE_USED, 1)
        items = load64(items + 8 * NODE_BEFORE)
    return added


def use_items(releases: int) -> None:
    """A list of releases has another user: its releases become immutable."""
    while releases != 0:
        store64(load64(releases + 8 * NODE_ITEM) + 8 * RELEASE_USED, 1)
        releases = load64(releases + 8 * NODE_BEFORE)
