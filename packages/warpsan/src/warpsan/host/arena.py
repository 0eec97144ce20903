"""Global memory of a launch or a device: consecutive buffers, each followed by a guard zone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

import numpy as np

from warpsan.engine.arrays import Array
from warpsan.errors import LaunchError
from warpsan.host.heap import HEAP_BYTES, Heap
from warpsan.host.memory import GLOBAL_BASE, POISON, Extent, Space
from warpsan.host.undefined_memory import UndefinedMemory
from warpsan.host.unwritten import Unwritten

__all__ = ["Arena", "Before"]

_GUARD = 1 << 16
_ALIGN = 256
_MOST_PARAMETERS = 32764
"""Maximum size in bytes of a parameter block (CUDA C++ Programming Guide, "__global__ Function Parameters")."""
_WORKSPACE = 64
_WORD = 16
"""Width in bytes of the widest access."""

Before = tuple[Array | None, Heap | None]
"""State that a launch may change: the memory of a device, and the heap."""


class Arena:
    """Addressed buffers of global memory, and the caller's arrays in them.

    Parameters
    ----------
    memory : ndarray of uint8, optional
        Memory of a device, aligned to 16 bytes; arrays in it already have addresses. By default :meth:`space` builds
        the memory from all placed buffers.
    """

    def __init__(self, memory: Array | None = None) -> None:
        self.memory = memory
        self.end = _GUARD
        self.extents: list[Extent] = []
        """Sorted by address."""
        self.parameters = 0
        """Address of the launch's parameter block; 0 without one in memory."""
        self.heap: Heap | None = None
        """Heap of device code, if the launch has one."""
        self._contents: dict[int, bytes | Array] = {}
        """Initial contents of buffers without memory, by byte index."""
        self._arrays: list[tuple[Array, int]] = []
        """The caller's arrays that are copied in and back, with their byte indices."""
        self.undefined = None if memory is None else UndefinedMemory(memory)
        """Marks of the unwritten bytes of a device."""
        self._unwritten: list[tuple[Unwritten, int]] = []
        """Unwritten arrays of the caller, with their byte indices."""
        self.follows = False
        """Whether the current launch tracks reads of unwritten bytes."""
        if memory is not None:
            self.parameters = self.add("the parameters", b"", _MOST_PARAMETERS)

    def add(self, name: str, content: bytes | Array, size: int, align: int = _ALIGN) -> int:
        """Place a buffer at a multiple of ``align`` bytes, and return its address.

        Raises
        ------
        LaunchError
            If the device has too little memory left.
        """
        begin = -(-self.end // align) * align
        top = -(-(begin + size + _GUARD) // _ALIGN) * _ALIGN
        if self.memory is not None and top > len(self.memory):
            raise LaunchError(
                f"{name} has {size} bytes, and the device has {max(0, len(self.memory) - begin - _GUARD)} of its "
                f"{len(self.memory)} left (freed memory is not reused): make a Device with more memory"
            )
        self.extents.append(Extent(name, begin, begin + size))
        self.end = top
        self.fill_in(GLOBAL_BASE + begin, content)
        return GLOBAL_BASE + begin

    def advance(self, name: str, address: int) -> None:
        """Set the address of the next buffer.

        Raises
        ------
        LaunchError
            If the address is occupied, lies before a later buffer, or exceeds the device's memory.
        """
        most = GLOBAL_BASE + (0 if self.memory is None else len(self.memory))
        if not GLOBAL_BASE + self.end <= address < most:
            raise LaunchError(
                f"{name} cannot lie at {address:#x}: the device has room from {GLOBAL_BASE + self.end:#x} to {most:#x}"
            )
        self.end = address - GLOBAL_BASE

    def fill_in(self, address: int, content: bytes | Array) -> None:
        """Set the initial bytes of the buffer at an address."""
        begin = address - GLOBAL_BASE
        if self.memory is None:
            self._contents[begin] = content
        else:
            _copy(self.memory, begin, content)

    def place_parameters(self, size: int) -> None:
        """Place the parameter block of a launch; its address is constant on a device."""
        name = "the parameters"
        if self.memory is None:
            self.parameters = self.add(name, b"", size)
        else:
            extent = self.extent_of(self.parameters)
            assert extent is not None
            self.extents[self.extents.index(extent)] = Extent(name, extent.begin, extent.begin + size)

    def workspace(self) -> int:
        """Place a new workspace for the grid barriers of a cooperative launch, and return its address."""
        return self.add("the workspace of the grid", bytes(_WORKSPACE), _WORKSPACE)

    def need_heap(self) -> Heap:
        """Return the heap of device code, placed on first use."""
        if self.heap is None:
            self.heap = Heap(self.add("the device heap", b"", HEAP_BYTES) - GLOBAL_BASE)
            self.extents.pop()
        return self.heap

    def follow(self, unwritten: Iterable[Unwritten], *, track_unwritten_global: bool) -> bool:
        """Prepare unwritten bytes for a launch with placed buffers, and return whether it has or may allocate some.
        Without ``track_unwritten_global`` the launch counts as writing all of them.

        Raises
        ------
        LaunchError
            If an array is not contiguous.
        """
        for each in unwritten:
            if not each.array.flags.c_contiguous:
                raise LaunchError("an array with unwritten bytes must be contiguous")
            begin = self._begin_of(each.array)
            if begin is not None:
                self._unwritten.append((each, begin))
        there_is = any(each.bytes.any() for each, _ in self._unwritten)
        if self.undefined is not None:
            there_is |= self.undefined.there_is()
        if self.heap is not None:
            there_is = True
            if self.undefined is not None:
                self.undefined.watch(self.heap.begin, HEAP_BYTES, POISON)
        self.follows = track_unwritten_global and there_is
        return self.follows

    def _begin_of(self, array: Array) -> int | None:
        """Byte index of an array that was placed for this launch, alone or within another array; None if not placed."""
        for other, begin in self._arrays:
            offset = array.ctypes.data - other.ctypes.data
            if 0 <= offset <= other.nbytes - array.nbytes:
                return begin + offset
        return None

    def define_all(self) -> None:
        """Mark all memory of the launch as written."""
        if self.undefined is not None:
            self.undefined.define_all()
        for each, _ in self._unwritten:
            each.bytes[:] = 0

    def add_arrays(self, named: Iterable[tuple[str, Array]]) -> None:
        """Place the caller's arrays; arrays with common bytes share a buffer.

        Raises
        ------
        LaunchError
            If an array is not contiguous, is read-only, or lies in freed memory of the device.
        """
        outside: list[tuple[str, Array]] = []
        for name, array in named:
            if not self._resident(name, array):
                _check(name, array)
                outside.append((name, array))
        for first, size, members in _groups([array for _, array in outside]):
            begin = self.add(outside[members[0]][0], b"", size) - GLOBAL_BASE - first
            for place, array in ((begin + outside[k][1].ctypes.data, outside[k][1]) for k in members):
                self._arrays.append((array, place))
                if self.memory is not None:
                    _copy(self.memory, place, _bytes_of(array))

    def address_of(self, array: Array) -> int:
        """Address of the first byte of an array that was placed or lies in the device's memory."""
        place = self._place(array)
        if place is not None:
            return GLOBAL_BASE + place
        return GLOBAL_BASE + next(
            begin
            for each, begin in self._arrays
            if (each.ctypes.data, each.nbytes) == (array.ctypes.data, array.nbytes)
        )

    def describe(self, name: str, array: Array) -> None:
        """Set the name of a placed array's buffer, and its shape if the buffer holds no other array."""
        begin = self.address_of(array) - GLOBAL_BASE
        for place, extent in enumerate(self.extents):
            if (extent.begin, extent.end) == (begin, begin + array.nbytes):
                self.extents[place] = Extent(name, extent.begin, extent.end, array.shape, array.itemsize)

    def extent_of(self, address: int) -> Extent | None:
        """The buffer that contains an address, or ends directly before it."""
        offset = address - GLOBAL_BASE
        return next((each for each in self.extents if each.begin <= offset <= each.end), None)

    def remove(self, extent: Extent) -> None:
        """Remove a buffer; later accesses to it are out of bounds."""
        self.extents.remove(extent)
        if self.undefined is not None:
            self.undefined.define(extent.begin, extent.end - extent.begin)

    def space(self) -> Space:
        """Global memory with the contents of all buffers."""
        live = [] if self.heap is None else list(self.heap.live.values())
        extents = sorted((*self.extents, *live), key=lambda each: each.begin) or [Extent("nothing", 0, 0)]
        if self.memory is not None:
            data = self.memory[: -(-self.end // _WORD) * _WORD]
            return Space("global", self.end, self.end, extents, data=data)
        space = Space("global", self.end, self.end, extents)
        for begin, content in self._contents.items():
            _copy(space.data, begin, content)
        for array, begin in self._arrays:
            _copy(space.data, begin, _bytes_of(array))
        return space

    def marked_space(self) -> Space:
        """Global memory with the marks of unwritten bytes before the launch, if the launch tracks them."""
        space = self.space()
        if self.follows:
            space.undefined = np.zeros(len(space.data), np.uint8) if self.undefined is None else self.undefined.marks()
            for each, begin in self._unwritten:
                space.undefined[begin : begin + each.array.nbytes] = each.bytes
        return space

    def snapshot(self) -> Before:
        """Copy the state that a launch may change: the memory of a device, and the heap."""
        memory = None if self.memory is None else self.memory[: self.end].copy()
        return memory, deepcopy(self.heap)

    def restore(self, before: Before) -> None:
        """Restore the state of :meth:`snapshot`."""
        memory, heap = before
        if self.memory is not None and memory is not None:
            self.memory[: len(memory)] = memory
        if self.heap is not None and heap is not None:
            self.heap.__dict__.update(deepcopy(heap).__dict__)  # the snapshot may be restored again

    def copy_back(self, space: Space) -> None:
        """Copy global memory back to the caller's arrays."""
        for array, begin in self._arrays:
            _bytes_of(array)[:] = space.data[begin : begin + array.nbytes]
        if space.undefined is None:
            self.define_all()
            return
        if self.undefined is not None:
            self.undefined.update()
        for each, begin in self._unwritten:
            each.bytes[:] = space.undefined[begin : begin + each.array.nbytes]

    def release(self, end: int) -> None:
        """Remove all buffers placed since the arena ended at ``end``, and reuse their addresses."""
        self.extents = [each for each in self.extents if each.begin < end]
        self._arrays.clear()
        self._unwritten.clear()
        if self.undefined is not None:
            self.undefined.define(end, self.end - end)
        self.end = end

    def _place(self, array: Array) -> int | None:
        """Byte index of an array in the device's memory; None for other arrays."""
        if self.memory is None:
            return None
        offset = int(array.ctypes.data - self.memory.ctypes.data)
        return offset if 0 <= offset < len(self.memory) else None

    def _resident(self, name: str, array: Array) -> bool:
        """Whether an array lies in the device's memory."""
        place = self._place(array)
        if place is None:
            return False
        if self.extent_of(GLOBAL_BASE + place) is None:
            raise LaunchError(f"{name} is an array of the device that was freed")
        return True


def _groups(arrays: Sequence[Array]) -> list[tuple[int, int, list[int]]]:
    """Address, size in bytes and members of each group of arrays with common bytes.

    Groups keep the order of the arrays: device addresses must not depend on host addresses.
    """
    ranges = sorted((array.ctypes.data, array.ctypes.data + array.nbytes, k) for k, array in enumerate(arrays))
    groups: list[tuple[int, int, list[int]]] = []
    for first, last, k in ranges:
        begin, size, members = groups[-1] if groups else (0, 0, [])
        if members and first < begin + size:
            groups[-1] = (begin, max(size, last - begin), [*members, k])
        else:
            groups.append((first, last - first, [k]))
    return sorted(((begin, size, sorted(members)) for begin, size, members in groups), key=lambda group: group[2])


def _bytes_of(array: Array) -> Array:
    """Contiguous array as writable bytes."""
    view: Array = np.asarray(array).reshape(-1).view(np.uint8)
    return view


def _copy(data: Array, begin: int, content: bytes | Array) -> None:
    raw = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else _bytes_of(content)
    data[begin : begin + len(raw)] = raw


def _check(name: str, array: Array) -> None:
    """Raise LaunchError for an array that cannot be a device buffer."""
    if not array.flags.c_contiguous:
        raise LaunchError(f"{name} is not contiguous; pass numpy.ascontiguousarray of it")
    if not array.flags.writeable:
        raise LaunchError(f"{name} is a read-only array; pass a writable copy")
