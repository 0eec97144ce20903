"""A simulated device: memory with stable addresses, modules with variables, and launches that share both.

gpu = Device()
x = gpu.array(values)
gpu.module(ptx)["saxpy"].launch(4, 256, [x, 2.0, len(x)])
x[0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from warpsan.engine.arrays import Array
from warpsan.errors import LaunchError
from warpsan.host.arena import Arena
from warpsan.host.arguments import Struct, filled_struct
from warpsan.host.device_array import DeviceArray
from warpsan.host.launch import Accesses, Report, execute, ptx_text
from warpsan.host.memory import GLOBAL_BASE, POISON
from warpsan.host.options import Options
from warpsan.host.streams import Runs, Stream, StreamOperation, Streams, launch_operation
from warpsan.host.variables import fill_in_addresses, place_global_variables
from warpsan.ptx.linking import allocates
from warpsan.ptx.names import demangled, resolve, short_name
from warpsan.ptx.parser import parse
from warpsan.report.hazards import Hazard

__all__ = ["FILLS", "Device", "DeviceFunction", "DeviceModule"]

FILLS = {"poison": POISON, "zeros": 0}
"""Byte value of new memory, by option."""
_MEMORY = 1 << 32
_MOST_KEPT = 1 << 30
"""Maximum bytes of memory snapshots for launches that may overlap; above it a launch records all its accesses at once.
"""


class Device:
    """A simulated GPU: global memory, modules and streams that persist across launches.

    Parameters
    ----------
    memory : int or ndarray of uint8
        Size of global memory in bytes; unused pages take no memory of the host. An array is used as the memory itself,
        for example memory shared with another process; it is aligned to 256 bytes.
    fill : {"poison", "zeros"}
        Content of new memory: NaN in every float type, or zeros.
    host_shares : bool
        Whether the host accesses device memory directly (:meth:`host_access`). The device then records the accesses of
        launches that the host has not synchronized with.

    Attributes
    ----------
    hazards : list of Hazard
        Hazards of all launches and copies so far, in execution order.
    """

    def __init__(self, memory: int | Array = _MEMORY, *, fill: str = "poison", host_shares: bool = False) -> None:
        if fill not in FILLS:
            raise LaunchError(f"fill is one of {', '.join(FILLS)}, not {fill!r}")
        self._fill = FILLS[fill]
        if isinstance(memory, int):
            raw = np.zeros(memory + 256, np.uint8)
            memory = raw[-raw.ctypes.data % 256 :][: memory // 256 * 256]
        self._memory: Array = memory
        self._arena = Arena(self._memory)
        self._streams = Streams(self._arena, host_shares=host_shares)
        self._count = 0
        self.hazards: list[Hazard] = []

    # ---- memory -----------------------------------------------------------------------------------------------------

    def array(self, values: Any, dtype: Any = None, *, name: str = "", address: int | None = None) -> DeviceArray:
        """Copy an array to the device; for a :class:`Struct`, its bytes with the addresses filled in.

        Parameters
        ----------
        values : array_like or Struct
        dtype : dtype, optional
        name : str
            Name in messages. Default: ``array 0``, ``array 1``, ...
        address : int, optional
            Address, behind all existing buffers. Default: the next free address.

        Raises
        ------
        LaunchError
            If the device has too little memory left, or the address is occupied.
        """
        if isinstance(values, Struct):
            values = np.frombuffer(filled_struct(values, name or "a Struct", self._arena), np.uint8)
        given = np.asarray(values, dtype)
        array = self.empty(given.shape, given.dtype, name=name, address=address)
        array[...] = given
        return array

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = np.float32,
        *,
        name: str = "",
        align: int = 256,
        address: int | None = None,
    ) -> DeviceArray:
        """Allocate an array of new memory (``fill`` of :class:`Device`) at a multiple of ``align`` bytes.

        Its bytes are unwritten: a kernel that reads and uses them is reported.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        name = name or f"array {self._count}"
        if address is not None:
            self._arena.advance(name, address)
        address = self._arena.add(name, b"", size, align if address is None else 1)
        self._count += 1
        array = self._view(address, size, dtype, shape)
        self.undefine(array)
        return array

    def undefine(self, array: DeviceArray) -> None:
        """Mark the bytes of an array as unwritten and refill them like new memory; kernels that use them are reported.

        Raises
        ------
        LaunchError
            If the array is not contiguous, or not on the device.
        """
        if not array.flags.c_contiguous:
            raise LaunchError("an array with unwritten bytes must be contiguous")
        begin = array.address - GLOBAL_BASE
        self._memory[begin : begin + array.nbytes] = self._fill
        assert self._arena.undefined is not None
        self._arena.undefined.add(begin, array.nbytes, self._fill)

    def define(self, array: DeviceArray) -> None:
        """Mark the bytes of an array as written."""
        assert self._arena.undefined is not None
        marks = self._arena.undefined.of(array)
        if marks is not None:
            marks[...] = 0

    def free(self, array: DeviceArray) -> None:
        """Free an array: later accesses to it are out of bounds, and its addresses are not reused.

        Raises
        ------
        LaunchError
            If the array is not the start of an allocation of the device.
        """
        extent = self._arena.extent_of(array.address)
        if extent is None or GLOBAL_BASE + extent.begin != array.address:
            raise LaunchError("only a whole array of the device can be freed, and only once")
        self._arena.remove(extent)

    def at(self, address: int, size: int) -> DeviceArray:
        """``size`` bytes of device memory from an address on, as uint8.

        Raises
        ------
        LaunchError
            If the bytes do not lie in one array or variable of the device.
        """
        begin = address - GLOBAL_BASE
        extent = self._arena.extent_of(address)
        if extent is None:
            raise LaunchError(f"there is nothing at the address {address:#x} of the device")
        if begin + size > extent.end:
            raise LaunchError(
                f"{size} bytes from byte {begin - extent.begin} of {extent.name} on reach beyond its "
                f"{extent.end - extent.begin} bytes"
            )
        return self._view(address, size, np.uint8)

    def _view(self, address: int, size: int, dtype: Any, shape: tuple[int, ...] = (-1,)) -> DeviceArray:
        begin = address - GLOBAL_BASE
        view: DeviceArray = self._memory[begin : begin + size].view(dtype).reshape(shape).view(DeviceArray)
        view._arena = self._arena
        return view

    # ---- code -------------------------------------------------------------------------------------------------------

    def module(self, ptx: str | bytes, *, at: Mapping[str, int] | None = None) -> DeviceModule:
        """Load PTX: place its variables, and set their initial values.

        Parameters
        ----------
        ptx : str or bytes
        at : mapping, optional
            Addresses of variables, by their names in the PTX, that have memory of the device already.

        Raises
        ------
        PtxSyntaxError, UnsupportedInstruction
            If the text cannot be read.
        LaunchError
            If the device has too little memory left for the variables.
        """
        return DeviceModule(self, ptx_text(ptx), at or {})

    # ---- order ------------------------------------------------------------------------------------------------------

    @property
    def host_shares(self) -> bool:
        """Whether the host accesses device memory directly."""
        return self._streams.host_shares

    @host_shares.setter
    def host_shares(self, value: bool) -> None:
        self._streams.host_shares = value

    @property
    def overlaps(self) -> bool:
        """Whether launches may overlap their predecessor in the stream (``programmatic``); the device then records the
        accesses of each launch. The first such launch also sets it: earlier launches count as complete.
        """
        return self._streams.overlaps

    @overlaps.setter
    def overlaps(self, value: bool) -> None:
        self._streams.overlaps = value

    @property
    def streams(self) -> Sequence[Stream]:
        """All streams; the default stream is first."""
        return self._streams.all

    @property
    def default_stream(self) -> Stream:
        """The stream of operations without a ``stream`` argument."""
        return self._streams.default

    def stream(self, *, blocking: bool = True) -> Stream:
        """Create a stream. Blocking streams synchronize with the default stream in both directions (CUDA's legacy
        default stream).
        """
        return self._streams.create(blocking=blocking)

    def synchronize(self) -> None:
        """Wait on the host for all operations issued so far."""
        for stream in self._streams.all:
            stream.synchronize()

    def copy(self, target: Array, source: Array, *, stream: Stream | None = None, wait: bool = True) -> list[Hazard]:
        """Copy bytes between arrays of the device or the host, as an operation of a stream.

        Parameters
        ----------
        target, source : ndarray
            Contiguous arrays with the same number of bytes.
        stream : Stream, optional
            Default: the default stream.
        wait : bool
            Whether the host waits for the copy.

        Returns
        -------
        list of Hazard
            Races with operations of other streams.

        Raises
        ------
        LaunchError
            If the arrays differ in size in bytes, or are not contiguous.
        """
        if target.nbytes != source.nbytes:
            raise LaunchError(f"a copy of {source.nbytes} bytes to an array of {target.nbytes}")
        if not (target.flags.c_contiguous and source.flags.c_contiguous):
            raise LaunchError("a copy is between contiguous arrays")
        target.reshape(-1).view(np.uint8)[:] = source.reshape(-1).view(np.uint8)
        return self.operation("a copy", source, target, stream=stream, wait=wait)

    def fill(self, array: DeviceArray, byte: int, *, stream: Stream | None = None, wait: bool = False) -> list[Hazard]:
        """Set all bytes of an array to ``byte``, as an operation of a stream; otherwise like :meth:`copy`."""
        if not array.flags.c_contiguous:
            raise LaunchError("a fill is of a contiguous array")
        array.reshape(-1).view(np.uint8)[:] = byte
        return self.operation("a fill", None, array, stream=stream, wait=wait)

    def operation(
        self,
        name: str,
        reads: Array | None,
        writes: Array | None,
        *,
        stream: Stream | None = None,
        wait: bool = False,
        source: str = "",
    ) -> list[Hazard]:
        """Record an operation of a stream that the caller executes on the bytes of arrays.

        Parameters
        ----------
        name : str
            Name in messages, such as ``a copy``.
        reads, writes : ndarray, optional
            Accessed arrays. Arrays of the host take part in no race.
        stream, wait
            As for :meth:`copy`.
        source : str
            ``file:line`` in the issuing program, if known.

        Returns
        -------
        list of Hazard
            Races with operations of other streams.
        """
        stream = stream or self._streams.default
        self._streams.begin(stream)
        read, written = (None if array is None else self._runs(array) for array in (reads, writes))
        hazards = self._streams.add(stream, StreamOperation(name, read, written, at=source))
        self.hazards += hazards
        if wait:
            stream.synchronize()
        return hazards

    def host_access(self, address: int, size: int, *, write: bool, source: str = "") -> list[Hazard]:
        """Record a direct access of the host to device memory, ordered after the operations the host has synchronized
        with.

        Returns
        -------
        list of Hazard
            Races with operations that the host has not synchronized with; requires ``Device(host_shares=True)``.
        """
        runs = Runs.of_bytes(address - GLOBAL_BASE, size)
        operation = StreamOperation("the host", None if write else runs, runs if write else None, at=source)
        hazards = self._streams.host_races(operation)
        self.hazards += hazards
        return hazards

    def pending(self) -> tuple[Array, Array]:
        """Byte ranges read and written by operations that the host has not synchronized with: begin and end addresses
        [n, 2].
        """
        return self._streams.pending_stretches()

    def _runs(self, array: Array) -> Runs | None:
        """Byte ranges of an array in global memory, one per row if not contiguous; None for an array of the host."""
        begin = int(array.ctypes.data - self._memory.ctypes.data)
        if not 0 <= begin < len(self._memory):
            return None
        if array.flags.c_contiguous:
            return Runs.of_bytes(begin, array.nbytes)
        return Runs.of_bytes(begin + array.strides[0] * np.arange(len(array)), array[0].nbytes)


class DeviceModule:
    """A PTX module on a device, created by :meth:`Device.module`.

    Attributes
    ----------
    text : str
    entries : tuple of str
        Names of its kernels as in C++ (demangled).
    """

    def __init__(self, device: Device, text: str, at: Mapping[str, int]) -> None:
        self.device, self.text = device, text
        self._module = parse(text)
        variables = self._module.variables.values()
        others = [variable for variable in variables if variable.name not in at]
        self.placed = place_global_variables(self._module, others, device._arena)
        for variable in (each for each in variables if each.name in at):
            self.placed[variable.name] = variable.space, at[variable.name]
            device._arena.fill_in(at[variable.name], variable.data.ljust(variable.size, b"\0"))
        fill_in_addresses(self._module, variables, self.placed, device._arena)
        every = (*self._module.entries.values(), *self._module.functions.values())
        if any(allocates(instruction) for code in every for instruction in code.instructions):
            device._arena.need_heap()
        self.entries = tuple(map(demangled, self._module.entries))

    def __getitem__(self, name: str) -> DeviceFunction:
        """The kernel with a mangled or C++ name."""
        return DeviceFunction(self, resolve(name, self._module.entries, "entry"))

    def variable(self, name: str, dtype: Any = np.uint8) -> DeviceArray:
        """A ``__device__`` or ``__constant__`` variable, which keeps its value across launches.

        Returns
        -------
        DeviceArray
            One axis; assignments to its elements set the variable.

        Raises
        ------
        LaunchError
            If the variable does not exist, or its size is not a multiple of the element size.
        """
        mangled = resolve(name, self.placed, "variable")
        size, item = self._module.variables[mangled].size, np.dtype(dtype).itemsize
        if size % item:
            raise LaunchError(f"the variable {name} has {size} bytes, which is no multiple of {item}")
        return self.device._view(self.placed[mangled][1], size, dtype)


class DeviceFunction:
    """A kernel of a module, created by ``module[name]``."""

    def __init__(self, module: DeviceModule, entry: str) -> None:
        self.module, self.entry = module, entry
        self.name = short_name(entry)

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        *,
        stream: Stream | None = None,
        **options: Any,
    ) -> Report:
        """Launch the kernel.

        Parameters
        ----------
        grid, block, args
            As in :func:`~warpsan.launch.launch`. An array of the device is passed by address; any other NumPy array is
            copied to the device for this launch and back afterwards.
        stream : Stream, optional
            Default: the default stream.
        **options
            Further options of :func:`~warpsan.launch.launch`: ``dynamic_smem``, ``cluster``, ``cooperative``,
            ``programmatic``, ``checks``, ``counters``, ``schedule``, ``async_mode``, ``numerics``, ``seed``,
            ``max_steps``, ``workers``, ``self_profile``. With ``programmatic`` the kernel may overlap the launch
            directly before it in the stream, but no other operation.

        Returns
        -------
        Report
            Result of the launch; its hazards include races with launches in other streams.

        Raises
        ------
        SimError
            As :func:`~warpsan.launch.launch`. Device memory then holds all writes up to the error.
        """
        chosen = Options(**options)
        device = self.module.device
        arena, streams = device._arena, device._streams
        stream = stream or streams.default
        streams.begin(stream)
        device.overlaps |= chosen.programmatic
        accesses: Accesses = "places" if device.overlaps or streams.needs_accesses else "none"
        prerequisites = np.empty((0, 3), np.int64) if stream.last is None else stream.last
        mark = arena.end

        try:
            done = execute(
                *(self.module.text, self.entry, grid, block, args, arena, chosen),
                placed=self.module.placed,
                accesses=accesses,
                prerequisites=prerequisites,
            )
        finally:
            arena.release(mark)
        if not streams.needs_accesses:
            done = replace(done, again=None)
        operation = launch_operation(done, mark)
        if operation.snapshot_bytes and streams.snapshot_bytes + operation.snapshot_bytes > _MOST_KEPT:
            operation.keep_all()
        races = streams.add(stream, operation)
        device.hazards += [*done.report.hazards, *races]
        return replace(done.report, hazards=[*done.report.hazards, *races])
