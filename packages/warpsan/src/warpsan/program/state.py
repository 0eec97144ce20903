"""State of a running program on the simulated GPU: modules, allocations, streams, events, and findings."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from warpsan import Device, DeviceArray, Hazard, Stream
from warpsan.gpus import Gpu, default_gpu
from warpsan.host.device import DeviceModule
from warpsan.host.memory import GLOBAL_BASE
from warpsan.host.streams import Event
from warpsan.program.errors import CallError
from warpsan.program.fat_binary import FatBinary, best_ptx
from warpsan.program.host_lines import HostLines
from warpsan.program.options import RunOptions
from warpsan.program.properties import device_properties
from warpsan.program.shared_pages import SharedPages
from warpsan.program.wire import Request
from warpsan.report.groups import SanitizedHazard

__all__ = ["Allocation", "LoadedModule", "ProgramState", "RecordedEvent", "RegisteredFunction", "RegisteredVariable"]

_LEGACY, _PER_THREAD = 1, 2
"""Handles of the default streams (CUDA Runtime API, "Stream synchronization behavior")."""
_FIRST_HANDLE = 0x1000
_LINKED = (
    "the program's device code was linked (nvcc -rdc=true or -dlto), which leaves no PTX of a whole kernel: compile it "
    "without that, the sources that call each other's device functions as one (#include them in one file)"
)


class Recorder(Protocol):
    """Recorder of launches (:mod:`warpsan.program.recorder`)."""

    def before(
        self, function: RegisteredFunction, args: Sequence[bytes], options: dict[str, Any], stream: Stream
    ) -> bool:
        """Called before a launch; returns whether the launch is recorded."""

    def after(self, stream: Stream) -> None:
        """Called after a recorded launch."""


@dataclass
class Allocation:
    """Memory allocated by the program.

    ``kind`` is ``device``, ``managed`` or ``host``; the host accesses managed and host memory directly.
    """

    array: DeviceArray
    kind: str
    name: str

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self.array.address

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.array.nbytes


@dataclass
class LoadedModule:
    """A registered fat binary; its PTX is loaded on first use.

    ``managed`` has the addresses of its ``__managed__`` variables; ``linked`` marks output of nvlink.
    """

    name: str
    binary: FatBinary
    linked: bool = False
    loaded: DeviceModule | None = None
    managed: dict[str, int] = field(default_factory=dict)


@dataclass
class RegisteredFunction:
    """A kernel, registered by the address of its host function.

    ``dynamic_smem`` is the maximum shared memory that the program has set, in bytes.
    """

    module: LoadedModule
    entry: str
    dynamic_smem: int = 48 * 1024


@dataclass(frozen=True)
class RegisteredVariable:
    """A ``__device__``, ``__constant__`` or ``__managed__`` variable, registered by its host shadow's address."""

    module: LoadedModule
    name: str


@dataclass
class RecordedEvent:
    """An event of the program, with its last record."""

    event: Event | None = None
    steps: int = 0


@dataclass
class ProgramState:
    """A process with the replacement runtime.

    Attributes
    ----------
    options : RunOptions
    pid : int
    memory : mmap
        Device memory, also mapped by the program.
    """

    options: RunOptions
    pid: int
    memory: mmap.mmap
    version: str = "13"
    recorder: Recorder | None = None

    modules: dict[int, LoadedModule] = field(default_factory=dict)
    functions: dict[int, RegisteredFunction] = field(default_factory=dict)
    variables: dict[int, RegisteredVariable] = field(default_factory=dict)
    allocations: dict[int, Allocation] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    events: dict[int, RecordedEvent] = field(default_factory=dict)
    hazards: dict[tuple[Any, ...], SanitizedHazard] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)
    """Number of occurrences of each sentence about calls that failed or have no model."""
    notes: set[str] = field(default_factory=set)
    fatal: str = ""
    """Simulator limit that invalidates the run's result; empty otherwise."""
    calls: int = 0
    allocated: int = 0
    launches: int = 0
    operations: int = 0
    excused: int = 0
    """Address of a page that the current reply opens to the host."""
    steps: int = 0
    printed: list[str] = field(default_factory=list)
    sticky: int = 0
    """Error that all calls return after a failed kernel."""

    def __post_init__(self) -> None:
        self.device = Device(np.frombuffer(self.memory, np.uint8), fill=self.options.fill)
        self.lines = HostLines(self.pid)
        self.pages = SharedPages(self.device)
        self.stubs: set[str] = set()
        """Host functions of kernels, which only call the runtime."""
        self._handles = _FIRST_HANDLE
        self._gpu: tuple[Gpu, str] | None = None

    # ---- the GPU ----------------------------------------------------------------------------------------------------

    @property
    def gpu(self) -> tuple[Gpu, str]:
        """Simulated GPU and architecture: the chosen one, or the newest architecture in the program's PTX."""
        if self._gpu is None:
            arch = self.options.arch or self._newest()
            self._gpu = self.options.gpu or default_gpu(arch), arch
        return self._gpu

    def _newest(self) -> str:
        targets = [match for each in self.modules.values() for text in each.binary.ptx for match in _targets(text)]
        targets = targets or [arch for each in self.modules.values() for arch in each.binary.cubins]
        return max(targets, key=lambda arch: int("".join(filter(str.isdigit, arch))), default="sm_90").rstrip("af")

    @property
    def properties(self) -> dict[str, Any]:
        """The fields of ``cudaDeviceProp``."""
        return device_properties(*self.gpu, len(self.memory))

    # ---- code -------------------------------------------------------------------------------------------------------

    def load(self, module: LoadedModule) -> DeviceModule:
        """Load the PTX of a module on the device.

        Raises
        ------
        CallError
            If it has no PTX that the GPU can run.
        warpsan.SimError
            If the simulator cannot read the PTX.
        """
        if module.loaded is None:
            arch = self.gpu[1]
            text = best_ptx(module.binary, arch)
            if text is None:
                targets = (each for text in module.binary.ptx for each in _targets(text))
                code = (f"machine code for {each}" for each in module.binary.cubins)
                has = ", ".join([*(f"PTX for {each}" for each in targets), *code])
                self.fatal = (
                    _LINKED
                    if module.linked and not module.binary.ptx
                    else (
                        f"the program has no PTX that runs on {arch} ({module.name} has {has or 'nothing'}): "
                        f"compile it with nvcc -gencode arch=compute_{arch[3:]},code=compute_{arch[3:]}"
                    )
                )
                raise CallError("cudaErrorNoKernelImageForDevice", self.fatal)
            module.loaded = self.device.module(text, at=module.managed)
        return module.loaded

    def function(self, address: int) -> RegisteredFunction:
        """The kernel of a host function.

        Raises
        ------
        CallError
            If the function is not registered.
        """
        if address not in self.functions:
            raise CallError("cudaErrorInvalidDeviceFunction", "the launched function is not a kernel")
        return self.functions[address]

    def variable(self, address: int) -> DeviceArray:
        """The bytes of the variable with a shadow at a host address.

        Raises
        ------
        CallError
            If the variable is not registered.
        """
        if address not in self.variables:
            raise CallError("cudaErrorInvalidSymbol", "there is no such __device__ or __constant__ variable")
        variable = self.variables[address]
        return self.load(variable.module).variable(variable.name)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def allocate(self, size: int, kind: str, request: Request, align: int = 256, name: str = "") -> Allocation:
        """Allocate memory for a call of the program; its default name is the call's.

        Raises
        ------
        CallError
            If the device has too little memory left.
        """
        from warpsan import LaunchError

        place = self.line(request)
        self.allocated += 1
        name = name or f"the memory from {request.name} " + (f"at {place}" if place else f"number {self.allocated}")
        shared = kind != "device"
        padded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            array = self.device.empty(size, np.uint8, name=name, align=mmap.PAGESIZE if shared else align)
        except LaunchError as error:
            raise CallError("cudaErrorMemoryAllocation", str(error)) from None
        allocation = Allocation(array, kind, name)
        self.allocations[array.address] = allocation
        if shared:
            self.device.define(array)  # host writes to it are not observed
            self.device.host_shares = True
            self.pages.add(array.address, padded)
        return allocation

    def free(self, address: int) -> None:
        """Free memory.

        Raises
        ------
        CallError
            If the address is not the start of an allocation.
        """
        allocation = self.allocations.pop(address, None)
        if allocation is None:
            raise CallError(
                "cudaErrorInvalidValue", f"the freed address {address:#x} is not the address of an allocation"
            )
        self.device.free(allocation.array)
        if allocation.kind != "device":
            self.pages.remove(address)

    def in_device(self, address: int) -> bool:
        """Whether an address is in device memory."""
        return GLOBAL_BASE <= address < GLOBAL_BASE + len(self.memory)

    def allocation_at(self, address: int) -> Allocation | None:
        """The allocation that contains an address."""
        for allocation in self.allocations.values():
            if allocation.address <= address < allocation.address + max(1, allocation.size):
                return allocation
        return None

    # ---- order ------------------------------------------------------------------------------------------------------

    def handle(self) -> int:
        """A new handle for a stream or an event."""
        self._handles += 16
        return self._handles

    def stream(self, handle: int, request: Request) -> Stream:
        """The stream of a handle.

        Raises
        ------
        CallError
            If the handle is unknown.
        """
        if handle == 0:
            handle = _PER_THREAD if request.per_thread else _LEGACY
        if handle == _LEGACY:
            return self.device.default_stream
        if handle == _PER_THREAD and handle not in self.streams:
            self.streams[handle] = self.device.stream(blocking=True)
        if handle not in self.streams:
            raise CallError("cudaErrorInvalidResourceHandle", f"{request.name} uses a stream that does not exist")
        return self.streams[handle]

    # ---- findings ---------------------------------------------------------------------------------------------------

    def line(self, request: Request) -> str:
        """``file:line`` of the call in the program; empty without line information."""
        return self.lines.line(request.frames, self.stubs)

    def note(self, hazards: Iterable[Hazard], ptx: str, run: str) -> None:
        """Record hazards of one launch or copy."""
        for hazard in hazards:
            self.note_one(SanitizedHazard.of(hazard, ptx, run))

    def note_one(self, hazard: SanitizedHazard) -> None:
        """Record a hazard, or add its runs to the same hazard at the same place."""
        key = hazard.ptx, hazard.kind, hazard.ptx_line, hazard.source, hazard.other and hazard.other.source
        known = self.hazards.setdefault(key, hazard)
        if known is not hazard:
            self.hazards[key] = replace(known, runs=tuple(dict.fromkeys((*known.runs, *hazard.runs))))

    def problem(self, sentence: str) -> None:
        """Record a call that failed or has no model; reported immediately the first time."""
        self.problems[sentence] = self.problems.get(sentence, 0) + 1
        if self.problems[sentence] == 1:
            self.options.report(sentence)

    def begin_operation(self, name: str, place: str) -> str:
        """Begin an access to device memory such as a launch or a copy, and return its name in reports."""
        self.operations += 1
        label = f"operation {self.operations} ({name}{f' at {place}' if place else ''})"
        if self.options.progress is not None:
            self.options.progress(label)
        return label

    def source_folders(self) -> list[Path]:
        """Folders of host and device sources."""
        folders = list(self.lines.folders)
        for module in self.modules.values():
            if module.loaded is not None:
                names = re.findall(r'^\s*\.file\s+\d+\s+"([^"]+)"', module.loaded.text, re.M)
                folders += [Path(name).parent for name in names]
        return list(dict.fromkeys(folders))


def _targets(text: str) -> list[str]:
    return re.findall(r"^\s*\.target\s+(\w+)", text, re.M)[:1]
