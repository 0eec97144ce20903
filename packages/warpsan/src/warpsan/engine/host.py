"""Callbacks of native code into Python: the functions of the driver (:mod:`warpsan.host.system_calls`), tensor maps
that a kernel has changed, and the accesses that recorders collect (:mod:`warpsan.profile.recording`).

A record of the operation ``host`` calls back, with the number of its call in the program. A call takes some
microseconds; kernels print and allocate rarely. An invalid address, and ``free`` of a pointer that is not an
allocation, end the launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from warpsan.engine import layout
from warpsan.engine.arrays import Array
from warpsan.engine.context import Context
from warpsan.engine.lanes import POINTER, WORD32, WORD64
from warpsan.engine.layout import WARP
from warpsan.engine.maps import map_words
from warpsan.engine.memory import MapWords, Record
from warpsan.engine.operation import NativeOperation, OperationCode
from warpsan.engine.recorders import Recorders
from warpsan.engine.structs import Ptr
from warpsan.errors import DeviceAssertion, IllegalAccess
from warpsan.host.geometry import Dim3
from warpsan.host.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE, Space
from warpsan.host.setup import Setup
from warpsan.host.system_calls import LaneMemory, formatted, freed_in_vain, nothing_there
from warpsan.host.tensor_map import DESCRIPTOR_BYTES
from warpsan.ptx.ir import Instruction

__all__ = ["HOST_OPERATION", "Host", "HostCall", "WatchedAccess", "call_back"]


@dataclass(frozen=True)
class HostCall:
    """A call of a function of the driver.

    Attributes
    ----------
    name : str
        One of :data:`~warpsan.host.system_calls.ARGUMENT_BYTES`.
    arguments, results : tuple of (int, int)
        For each, its row and the bytes of an element.
    instruction : Instruction
    """

    name: str
    arguments: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int], ...]
    instruction: Instruction

    @property
    def ends(self) -> bool:
        """Whether it ends the launch: a failed assertion."""
        return self.name == "__assertfail"


@dataclass(frozen=True)
class WatchedAccess:
    """An instruction, by its pc, whose accesses a recorder collects. Their offsets are in the scratch."""

    pc: int


HOST_NUMBER = 3
"""The operand of a record with the number of its call."""


def call_back(code: OperationCode) -> Any:
    """The status that the host returns for a record."""
    b = code.builder
    signature = ir.FunctionType(WORD64, [POINTER, POINTER, WORD32, POINTER])
    function = b.inttoptr(code.context("host"), signature.as_pointer())
    return b.call(function, [code.registers, code.record, code.mask, code.base])


HOST_OPERATION = NativeOperation("host", lambda code: code.builder.ret(call_back(code)))
"""A call of a function of the driver."""

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)


class Host:
    """Handles the calls of one thread's native code.

    Parameters
    ----------
    setup : Setup
    space : Space
        Global memory.
    context : Context
        The thread's context.
    calls : sequence of HostCall and WatchedAccess
        The calls of the program.

    Attributes
    ----------
    address, map_reader : int
        Addresses of the function that native code calls, and of the function that reads a tensor map at an address of
        this process and returns the address of its words, or 0 if there is none.
    printed : list of str
        The output of printf.
    recorders : Recorders
        The recorders of the launch.
    error : BaseException, optional
        The exception in Python; the native run has ended then.
    failure : DeviceAssertion or IllegalAccess, optional
        The exception that ends the launch: a failed assertion, or an invalid argument of a function.
    """

    def __init__(self, setup: Setup, space: Space, context: Context, calls: Sequence[HostCall | WatchedAccess]) -> None:
        self.setup, self.space, self.context, self.calls = setup, space, context, calls
        self.printed: list[str] = []
        self.error: BaseException | None = None
        self.failure: DeviceAssertion | IllegalAccess | None = None
        self._extents: Array = np.empty(0, np.int64)
        self.recorders = Recorders(setup, space, context, self.fail)
        self._maps: list[Array] = []
        """Tables of tensor maps; copies in flight may refer to earlier tables."""
        self._callbacks = _CALLBACK(self._answer), _CALLBACK(self._read_map)
        self.address, self.map_reader = (int(ctypes.cast(each, ctypes.c_void_p).value or 0) for each in self._callbacks)

    def fail(self, error: BaseException) -> None:
        """Keep an exception of Python, with which the launch ends."""
        self.error = error

    def _answer(self, registers: int, record: int, mask: int, context: int) -> int:
        try:
            call = self.calls[Record(record).operands[HOST_NUMBER]]
            if isinstance(call, WatchedAccess):
                lanes = [lane for lane in range(WARP) if mask >> lane & 1]
                access = self.context.host_access
                space = "global" if access & layout.HOST_GLOBAL else "shared"
                self.recorders.see(call.pc, space, access & ~layout.HOST_GLOBAL, lanes, self.recorders.places()[lanes])
                return layout.DONE
            rows = [[_row(registers + row, size) for row, size in each] for each in (call.arguments, call.results)]
            lanes = [lane for lane in range(WARP) if mask >> lane & 1]
            if call.ends:
                self._fail(lanes[0], call.instruction, *rows[0])
            else:
                _ANSWERS[call.name](self, call.instruction, lanes, *rows)
        except IllegalAccess as failure:
            self.failure = failure
            return layout.TRAP
        except BaseException as error:
            self.fail(error)
            return layout.TRAP
        return layout.DONE

    def _read_map(self, place: int, record: int, mask: int, context: int) -> int:
        try:
            words = map_words(_bytes_at(place, DESCRIPTOR_BYTES).tobytes(), self.space)
            if words is None:
                return 0
            table, many = self.context.tensor_maps, self.context.tensor_map_count
            known = _bytes_at(table.address, MapWords.byte_size * many).view(np.int64) if many else words[:0]
            self._maps.append(np.concatenate([known, words]))
            self.context.tensor_maps = Ptr(self._maps[-1].ctypes.data, MapWords)
            self.context.tensor_map_count = many + 1
        except BaseException as error:
            self.fail(error)
            return 0
        return self.context.tensor_maps[many].address

    def where(self, lane: int) -> tuple[Dim3, Dim3]:
        """Block and thread of a lane of the current warp."""
        geometry = self.setup.geometry
        thread = WARP * (self.context.current % geometry.warps) + lane
        return geometry.block_at(self.context.current_cta - 1), geometry.thread_at(thread)

    def _fail(
        self,
        lane: int,
        instruction: Instruction,
        message: Array,
        file: Array,
        row: Array,
        function: Array,
        _: Array,
    ) -> None:
        """``__assertfail``: the launch ends after it."""
        memory = _NativeMemory(self, lane, instruction)
        what, where, name = (memory.string(int(each[lane])).decode("latin-1") for each in (message, file, function))
        block, thread = self.where(lane)
        self.failure = DeviceAssertion(
            f"{where}:{int(row[lane])}: {name}: block {block}, thread {thread}: assertion `{what}` failed "
            f"(PTX line {instruction.line})"
        )

    # ---- the functions ----------------------------------------------------------------------------------------------

    def print(
        self, instruction: Instruction, lanes: Sequence[int], given: Sequence[Array], results: Sequence[Array]
    ) -> None:
        """``vprintf``: each lane's text, in the order of the lanes."""
        formats, buffers = given
        for lane in lanes:
            memory = _NativeMemory(self, lane, instruction)
            text, many = formatted(memory, int(formats[lane]), int(buffers[lane]))
            self.printed.append(text)
            for count in results:
                count[lane] = many

    def allocate(
        self, instruction: Instruction, lanes: Sequence[int], given: Sequence[Array], results: Sequence[Array]
    ) -> None:
        """``malloc``."""
        (sizes,), heap = given, self.setup.heap
        assert heap is not None
        for lane in lanes:
            address = heap.allocate(self.space, int(sizes[lane]))
            for place in results:
                place[lane] = address
        self._publish()

    def free(
        self, instruction: Instruction, lanes: Sequence[int], given: Sequence[Array], results: Sequence[Array]
    ) -> None:
        """``free``."""
        (pointers,), heap = given, self.setup.heap
        assert heap is not None
        for lane in lanes:
            address = int(pointers[lane])
            if address and not heap.free(address):
                raise freed_in_vain(instruction, address, *self.where(lane))
        self._publish()

    def _publish(self) -> None:
        """Update native code's table of buffers."""
        assert self.setup.heap is not None
        self.setup.heap.publish(self.space)
        self._extents = np.array([(each.begin, each.end) for each in self.space.extents], np.int64)
        self.context.extents = Ptr(self._extents.ctypes.data, "i64")
        self.context.extent_count = len(self._extents)


_Answer = Callable[[Host, Instruction, Sequence[int], Sequence[Array], Sequence[Array]], None]
_ANSWERS: dict[str, _Answer] = {
    "vprintf": Host.print,
    "malloc": Host.allocate,
    "free": Host.free,
}


class _NativeMemory(LaneMemory):
    def __init__(self, host: Host, lane: int, instruction: Instruction) -> None:
        self.host, self.lane, self.instruction = host, lane, instruction

    def stretch(self, address: int) -> Array:
        """The bytes from an address to the end of its buffer."""
        context = self.host.context
        local = context.current_local + self.lane * context.local_stride
        for base, begin, limit in (
            (SHARED_BASE, context.current_shared, context.shared_limit),
            (LOCAL_BASE, local, context.local_limit),
        ):
            if 0 <= address - base < limit:
                return _bytes_at(begin + address - base, limit - (address - base))
        offset = address - GLOBAL_BASE
        for extent in self.host.space.extents:
            if extent.begin <= offset < extent.end:
                return self.host.space.data[offset : extent.end]
        raise nothing_there(self.instruction, address, *self.host.where(self.lane))


def _bytes_at(address: int, size: int) -> Array:
    """Memory of this process."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _row(address: int, size: int) -> Array:
    """A row of unsigned elements of so many bytes."""
    values: Array = _bytes_at(address, size * WARP).view(f"u{size}")
    return values
