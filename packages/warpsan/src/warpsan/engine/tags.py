"""Tags of accesses in the shadows, packed in one word: machine code (:mod:`~warpsan.engine.translate`).

A tag of shared memory has the actor and the time of an access; a tag of global memory has the linear index of the CTA
plus one, the time, and the warp's number in the CTA, or one of the numbers that stand for several (:mod:`.layout`).
"""

from __future__ import annotations

__all__ = ["actor_of_tag", "cta_of_tag", "global_tag", "global_time", "shared_tag", "time_of_tag", "warp_of_tag"]


def shared_tag(actor: int, time: int) -> int:
    """The tag of an access to shared memory."""
    return time << 16 | actor


def actor_of_tag(tag: int) -> int:
    """The actor of an access to shared memory."""
    return tag & 0xFFFF


def time_of_tag(tag: int) -> int:
    """The time of an access to shared memory."""
    return tag >> 16


def global_tag(cta: int, time: int, warp: int) -> int:
    """The tag of an access to global memory."""
    return cta << 40 | time << 8 | warp


def cta_of_tag(tag: int) -> int:
    """The linear index plus one of the CTA of an access to global memory."""
    return tag >> 40


def global_time(tag: int) -> int:
    """The time of an access to global memory."""
    return tag >> 8 & 0xFFFFFFFF


def warp_of_tag(tag: int) -> int:
    """The number in its CTA of the warp of an access to global memory."""
    return tag & 0xFF
