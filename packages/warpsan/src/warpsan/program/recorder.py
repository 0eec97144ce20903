"""Launches of a program as a launch file: PTX, initial buffers, launches, and final buffers.

Buffers keep their addresses, so that addresses in other buffers and in structures stay valid. Host changes to a buffer
between two launches are recorded as its new content in the later launch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warpsan import DeviceArray, LaunchError, Stream
from warpsan.host.memory import POISON
from warpsan.program.arguments import described_argument, element_types
from warpsan.program.state import Allocation, LoadedModule, ProgramState, RegisteredFunction
from warpsan.ptx.names import demangled, resolve, short_name
from warpsan.ptx.parser import parse
from warpsan.sanitize.json_fields import read_fields
from warpsan.sanitize.launch_file import LaunchFile

__all__ = ["LaunchRecorder"]

_TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""Relative tolerances of expected values: the order of atomic additions may differ."""
_MOST_BYTES = 1 << 30
"""Maximum bytes of a buffer in a launch file."""


class LaunchRecorder:
    """Recorder of the launches of one process.

    Parameters
    ----------
    state : ProgramState
    folder : Path
        Existing output folder.
    name : str
        Name of the launch file, without its extension.
    kernels : sequence of str
        Recorded kernels: names that contain one of these words; empty for all.
    most : int
        Maximum number of recorded launches.
    """

    def __init__(self, state: ProgramState, folder: Path, name: str, kernels: Sequence[str], most: int) -> None:
        self._state, self._folder, self._name = state, folder, name
        self._kernels, self._most = kernels, most
        self.launches: list[dict[str, Any]] = []
        self.left_out = 0
        """Number of launches beyond the maximum."""
        self._buffers: dict[int, tuple[str, dict[str, Any]]] = {}
        """Name and description of each buffer by address."""
        self._contents: dict[int | str, bytes] = {}
        """Bytes of each buffer (by address) and variable (by name) after the last recorded launch."""
        self._changed: set[int] = set()
        self._files: dict[str, str] = {}
        """PTX file of each module."""
        self._issued: dict[int, int] = {}
        """Number of operations of each stream up to its last recorded launch."""

    def before(
        self, function: RegisteredFunction, args: Sequence[bytes], options: dict[str, Any], stream: Stream
    ) -> bool:
        """Record the state before a launch. Returns whether the launch is recorded."""
        label = short_name(function.entry)
        if self._kernels and not any(word in label for word in self._kernels):
            return False
        if len(self.launches) >= self._most:
            self.left_out += 1
            return False
        module = self._state.load(function.module)
        params = parse(module.text).entries[function.entry].params
        types = element_types(demangled(function.entry), len(params))
        refilled = self._host_changes(types, args)
        refilled |= self._variable_changes(function.module)
        names = {address: name for address, (name, _) in self._buffers.items()}
        described = [
            described_argument(param, raw, type_, self._state.allocation_at, names)
            for param, raw, type_ in zip(params, args, types, strict=True)
        ]
        launch: dict[str, Any] = {"entry": _readable(function.entry, module.text), **options}
        launch["args"] = described
        file = self._file_of(function.module)
        if file != f"{self._name}.ptx":
            launch["ptx"] = file
        if refilled:
            launch["set"] = refilled
        if stream is not self._state.device.default_stream:
            launch["stream"] = stream.name
        after = [
            other.name if other is not self._state.device.default_stream else ""
            for other in self._state.device.streams
            if other is not stream and self._issued.get(other.number, 0) <= stream.clock.get(other.number, 0)
            if other.number in self._issued
        ]
        if after:
            launch["after"] = after
        self.launches.append(launch)
        return True

    def after(self, stream: Stream) -> None:
        """Record the state after the last recorded launch."""
        self._issued[stream.number] = stream.clock.get(stream.number, 0)
        for address in self._buffers:
            allocation = self._state.allocations.get(address)
            if allocation is not None and allocation.array.tobytes() != self._contents[address]:
                self._contents[address] = allocation.array.tobytes()
                self._changed.add(address)

    def write(self) -> Path | None:
        """Write the launch file, and return its path; None without a recorded launch."""
        if not self.launches:
            return None
        expected = {}
        for address in sorted(self._changed):
            name, buffer = self._buffers[address]
            values = np.frombuffer(self._contents[address], np.uint8)
            entry = self._described(values, buffer["dtype"], f"{self._file_name(address)}-expected")
            relative = _TOLERANCES.get(buffer["dtype"])
            if relative is not None:
                entry |= {"rtol": relative, "atol": relative}
            expected[name] = entry
        buffers = {name: buffer for _, (name, buffer) in sorted(self._buffers.items())}
        facts = {"buffers": buffers, "launches": self.launches, "expect": expected}
        read_fields(LaunchFile, facts)
        path = self._folder / f"{self._name}.json"
        path.write_text(json.dumps(facts, indent=1) + "\n")
        return path

    # ---- content ----------------------------------------------------------------------------------------------------

    def _host_changes(self, types: Sequence[str], args: Sequence[bytes]) -> dict[str, Any]:
        """Describe new buffers, and return the buffers that changed since the last recorded launch."""
        kinds = {int.from_bytes(raw, "little"): type_ for raw, type_ in zip(args, types, strict=True) if len(raw) == 8}
        refilled: dict[str, Any] = {}
        for address, allocation in sorted(self._state.allocations.items()):
            content = allocation.array.tobytes()
            if address not in self._buffers:
                self._add(allocation, kinds.get(address, "uint8"))
            elif content != self._contents[address]:
                name, buffer = self._buffers[address]
                file = f"{self._file_name(address)}-launch-{len(self.launches) + 1}"
                refilled[name] = self._described(allocation.array, buffer["dtype"], file)
            self._contents[address] = content
        return refilled

    def _add(self, allocation: Allocation, dtype: str) -> None:
        base = allocation.name.rpartition(" at ")[2] if " at " in allocation.name else "buffer"
        taken = {name for name, _ in self._buffers.values()}
        name = next(each for n in range(1, len(taken) + 2) if (each := f"{base} {n}" if n > 1 else base) not in taken)
        self._buffers[allocation.address] = name, {}
        described = self._described(allocation.array, dtype, self._file_name(allocation.address))
        self._buffers[allocation.address] = name, {**described, "address": allocation.address}

    def _file_name(self, address: int) -> str:
        return f"buffer-{list(self._buffers).index(address) + 1}"

    def _described(self, array: Any, dtype: str, file: str) -> dict[str, Any]:
        """Bytes as a buffer of a launch file, in a separate file unless all bytes are equal."""
        from warpsan.dtypes import dtype_of

        flat = np.asarray(array).reshape(-1).view(np.uint8)
        if flat.size % dtype_of(dtype).itemsize:
            dtype = "uint8"
        shape = [flat.size // dtype_of(dtype).itemsize]
        written = isinstance(array, DeviceArray) and not array.unwritten.all()
        for init, byte in (("zeros", 0), *(() if written else (("poison", POISON),))):
            if (flat == byte).all() and flat.size <= _MOST_BYTES:
                return {"dtype": dtype, "shape": shape, "init": init}
        np.save(self._folder / f"{file}.npy", flat.view(dtype_of(dtype)))
        return {"dtype": dtype, "file": f"{file}.npy"}

    def _variable_changes(self, module: LoadedModule) -> dict[str, Any]:
        """Variables that differ from their initial values, or from their values after the last recorded launch."""
        loaded = self._state.load(module)
        refilled: dict[str, Any] = {}
        for name, variable in parse(loaded.text).variables.items():
            if name not in loaded.placed or variable.relocations or not variable.size:
                continue
            key = f"{module.name} {name}"
            content = loaded.variable(name).tobytes()
            if content != self._contents.get(key, variable.data.ljust(variable.size, b"\0")):
                file = f"variable-{name}-launch-{len(self.launches) + 1}"
                refilled[name] = self._described(np.frombuffer(content, np.uint8), "uint8", file)
            self._contents[key] = content
        return refilled

    def _file_of(self, module: LoadedModule) -> str:
        """PTX file of a module, written on first use."""
        if module.name not in self._files:
            number = len(self._files) + 1
            file = f"{self._name}.ptx" if number == 1 else f"{self._name}-{number}.ptx"
            (self._folder / file).write_text(self._state.load(module).text)
            self._files[module.name] = file
        return self._files[module.name]


def _readable(entry: str, text: str) -> str:
    """C++ name of a kernel, if it is unique in the PTX."""
    try:
        return demangled(entry) if resolve(demangled(entry), parse(text).entries, "entry") == entry else entry
    except LaunchError:
        return entry
