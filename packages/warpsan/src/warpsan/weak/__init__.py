"""Stale reads: memory in which a read may return an older value that the PTX memory model allows."""

from warpsan.weak.memory import WeakMemory

__all__ = ["WeakMemory"]
