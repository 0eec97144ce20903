"""Scopes of strong operations that do not contain all blocks: machine code.

Two unordered strong operations race unless the scope of each includes the other's thread. Among the last strong writes
of a place, the narrowest scope is kept. A kernel without such scopes does not need this module.
"""

from __future__ import annotations

from warpsan.checks.orders import SAME_GPU
from warpsan.engine.clocks import relation_together
from warpsan.engine.context import Context
from warpsan.engine.layout import EVERY_WARP, SEVERAL
from warpsan.engine.tags import cta_of_tag, warp_of_tag

__all__ = ["keep_scope", "relation_of", "scope_at"]


def relation_of(context: Context, tag: int, near: int) -> int:
    """The relation of a mark's thread to the current warp's; ``near`` is the place of its CTA among the resident
    ones, plus one, or 0."""
    cta = cta_of_tag(tag)
    if cta == SEVERAL or near == 0:
        return SAME_GPU
    if warp_of_tag(tag) == EVERY_WARP:  # their CTA is not kept
        return relation_together(context, 0, context.cta_count - 1)
    return relation_together(context, near - 1, context.current_warp.cta)


def scope_at(context: Context, granule: int) -> int:
    """The narrowest scope of the last strong writes of a granule."""
    return context.global_scopes[granule]


def keep_scope(context: Context, granule: int, scope: int, others: int) -> None:
    """A strong write of a granule; ``others`` is whether earlier ones are unordered."""
    place = context.global_scopes.at(granule)
    place[0] = min(scope, place[0]) if others else scope
