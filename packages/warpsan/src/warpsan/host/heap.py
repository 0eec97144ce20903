"""The heap of device code: ``malloc`` and ``free`` in a kernel (CUDA C++ Programming Guide, "Dynamic Global Memory
Allocation"). Each allocation is a separate buffer with inaccessible bytes behind it.
"""

from __future__ import annotations

from warpsan.host.memory import GLOBAL_BASE, POISON, Extent, Space

__all__ = ["HEAP_BYTES", "Heap"]

HEAP_BYTES = 8 << 20
"""Default of ``cudaLimitMallocHeapSize``."""
_ALIGN, _GUARD = 16, 16


class Heap:
    """A region of global memory for allocations, filled from its beginning; freed memory is reused after the end is
    reached.

    Parameters
    ----------
    begin : int
        First byte index of the region.
    """

    def __init__(self, begin: int) -> None:
        self.begin = self._top = begin
        self.live: dict[int, Extent] = {}
        """Live allocations by first byte index."""
        self._freed: dict[int, list[int]] = {}
        self._count = 0

    def allocate(self, space: Space, size: int) -> int:
        """Allocate ``size`` bytes of poison, and return the address; 0 if the heap is full. :meth:`publish` makes it
        accessible.
        """
        room = -(-max(size, 1) // _ALIGN) * _ALIGN + _GUARD
        if self._top + room <= self.begin + HEAP_BYTES:
            begin, self._top = self._top, self._top + room
        elif self._freed.get(room):
            begin = self._freed[room].pop()
        else:
            return 0
        self.live[begin] = Extent(f"allocation {self._count} of the device heap", begin, begin + size)
        self._count += 1
        space.data[begin : begin + size] = POISON
        if space.undefined is not None:
            space.undefined[begin : begin + size] = 1
        return GLOBAL_BASE + begin

    def free(self, address: int) -> bool:
        """Free the allocation at an address, and return True; False if there is none."""
        extent = self.live.pop(address - GLOBAL_BASE, None)
        if extent is None:
            return False
        room = -(-max(extent.end - extent.begin, 1) // _ALIGN) * _ALIGN + _GUARD
        self._freed.setdefault(room, []).append(extent.begin)
        return True

    def publish(self, space: Space) -> None:
        """Allow accesses to live allocations, and to no other byte of the region."""
        others = (each for each in space.extents if not self.begin <= each.begin < self.begin + HEAP_BYTES)
        space.set_extents(sorted((*others, *self.live.values()), key=lambda each: each.begin))
