"""Lists of releases through global memory in the pool, and the state of a warp's row: machine code.

Records and elements lie in one pool, which a thread's clusters share. A full pool ends the launch with that reason.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.context import Context
from warpsan.engine.memory import Release, ReleaseList, Row

__all__ = ["add_items", "has_item", "new_node", "row_state", "take_room", "use_items"]


def row_state(context: Context, warp: int) -> Row:
    """The state of a warp's row."""
    return context.row_states[warp]


def take_room(context: Context, words: int) -> int:
    """The address of so many words; 0 if the pool is full."""
    end = context.pool_end
    if end + words > context.pool_words:
        return 0
    context.pool_end = end + words
    return context.pool.at(end).address


def new_node(context: Context, item: int, before: ReleaseList, scope: int, reach: int) -> ReleaseList:
    """A list that begins with an item; 0 if the pool is full."""
    node = ReleaseList(take_room(context, ReleaseList.byte_size // 8))
    if node != 0:
        node.item = item
        node.before = before
        node.scope = scope
        node.reach = reach
    return node


def has_item(node: ReleaseList, item: int) -> int:
    """Whether a list contains an item."""
    while node != 0:
        if node.item == item:
            return 1
        node = node.before
    return 0


def add_items(context: Context, node: ReleaseList, items: ReleaseList, releases: int) -> ReleaseList:
    """Add the items of a list to another one, until the pool is full. Returns the longer list."""
    while items != 0:
        if has_item(node, items.item) == 0:
            longer = new_node(context, items.item, node, SAME_GPU, SAME_GPU)
            if longer == 0:
                return node
            node = longer
            if releases:
                Release(items.item).used = 1
        items = items.before
    return node


def use_items(releases: ReleaseList) -> None:
    """A list of releases has another user: its releases become immutable."""
    while releases != 0:
        Release(releases.item).used = 1
        releases = releases.before
