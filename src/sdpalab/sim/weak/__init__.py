"""Stale reads: memory in which a read may return an older value that the PTX memory model allows."""

from sdpalab.sim.weak.memory import WeakMemory

__all__ = ["WeakMemory"]
