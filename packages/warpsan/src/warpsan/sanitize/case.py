"""A PTX or CUDA C++ file with its launch file: device, arguments and launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpsan import Device, DeviceArray, Pointer, Report, SimError, Stream, Struct, TensorMap
from warpsan.build.builder import Build, build
from warpsan.build.cache import Cache
from warpsan.build.host_launches import HostLaunch, launch_of, only_kernel
from warpsan.build.source import DEFAULT_ARCH, Module
from warpsan.build.untrusted import Workshop, foreign
from warpsan.dtypes import dtype_of, filler
from warpsan.errors import UserError
from warpsan.host.device import DeviceModule
from warpsan.ptx.names import resolve, short_name
from warpsan.ptx.parser import parse
from warpsan.sanitize.launch_file import (
    BufferDescription,
    BufferPart,
    Bytes,
    Expected,
    LaunchDescription,
    LaunchFile,
    Map,
    MapArgument,
    Number,
    StructArgument,
    StructDescription,
    Table,
    read_launch_file,
)

__all__ = ["PtxCase", "PtxRun", "case_of", "read_case"]

FILLS: Mapping[str, float] = {"zeros": 0.0, "ones": 1.0, "-inf": -np.inf, "inf": np.inf}
_MAX_BYTES = 1 << 30
_MEMORY = 1 << 32

Array = npt.NDArray[Any]

_DATA = (".npy", ".ptx")
"""File extensions in a launch file."""


@dataclass(frozen=True)
class PtxCase:
    """PTX with its launch file.

    Attributes
    ----------
    name : str
        Name of the PTX or CUDA C++ file.
    ptx : str
    launches : LaunchFile
    folder : Path
        Base of relative file names.
    module : Module, optional
        Input of the build, for a CUDA C++ file.
    """

    name: str
    ptx: str
    launches: LaunchFile
    folder: Path
    module: Module | None = None
    workshop: Workshop | None = None
    place: tuple[Path, Path] = (Path(), Path())

    @property
    def entries(self) -> tuple[str, ...]:
        """Short names of the launched kernels."""
        return tuple(short_name(self.entry_of(launch)) for launch in self.launches.launches)

    def text_of(self, launch: LaunchDescription) -> str:
        """The PTX of a launch.

        Raises
        ------
        UserError
            If the launch names a file that cannot be read.
        """
        return self.ptx if launch.ptx is None else _file(self.folder / launch.ptx).decode(errors="replace")

    def name_of(self, launch: LaunchDescription) -> str:
        """Name of a launch's PTX in reports; for a ``.cu`` file, lines refer to its source."""
        return str(Path(self.name).with_suffix(".ptx")) if launch.ptx is None else launch.ptx

    def buffers_of(self, launch: LaunchDescription) -> tuple[str, ...]:
        """Distinct buffers in a launch's arguments, including structures, tables and tensor maps."""
        return tuple(dict.fromkeys(name for value in launch.args for name in _named(value)))

    def entry_of(self, launch: LaunchDescription) -> str:
        """The kernel of a launch: the named kernel, or the only one.

        Raises
        ------
        UserError
            If the launch names no kernel and there are several.
        """
        if launch.entry is not None:
            return launch.entry
        entries = list(parse(self.text_of(launch)).entries)
        if len(entries) != 1:
            known = ", ".join(map(short_name, entries)) or "none"
            raise UserError(f"say which 'entry' of {self.name_of(launch)} is meant; it has: {known}")
        return entries[0]

    def run(self, launched: Callable[[Report], None], **options: Any) -> list[str]:
        """Run all launches on a new device, and compare the expected buffers.

        Parameters
        ----------
        launched : callable
            Called with the report of each launch.
        **options
            Options of every launch: ``checks``, ``schedule``, ``async_mode``, ``numerics``, ``seed``, ``max_steps``.

        Returns
        -------
        list of str
            One sentence per buffer that differs from its expected content.

        Raises
        ------
        UserError
            If a buffer cannot be created, or a name is unknown.
        warpsan.SimError
            As :func:`warpsan.launch`.
        """
        return self.run_all(launched, options)[0]

    def run_all(
        self, launched: Callable[[Report], None], options: Mapping[str, Any]
    ) -> tuple[list[str], Mapping[str, int]]:
        """:meth:`run`, in this process or in the workshop; also returns the bytes of each buffer by name."""
        if self.workshop is None:
            run = PtxRun(self, dict(options))
            return run.all(launched), {name: held.nbytes for name, held in run.buffers.items()}
        reports, ended = self.workshop.simulate_case(*self.place, options)
        for report in reports:
            launched(report)
        sentences, sizes = ended()
        return sentences, sizes


def files_of_case(source: Path, launch: str | None) -> list[Path]:
    """Files that a case may read beside its source's folder: the launch file, and the files and folders it names."""
    description = _description(source, launch)
    try:
        named = re.findall(r'"([^"\n]+)"', description.read_text())
    except (OSError, UnicodeDecodeError):
        return []
    paths = [description.parent / name for name in named]
    return [description, *(path for path in paths if path.is_dir() or (path.suffix in _DATA and path.is_file()))]


def _description(source: Path, launch: str | None) -> Path:
    return Path(launch) if launch is not None else source.with_suffix(".json")


def case_of(source: Path, launch: str | None, cache: Cache | None = None, workshop: Workshop | None = None) -> PtxCase:
    """As :func:`read_case`, with the launch file ``launch``, or the ``.json`` beside the source.

    Raises
    ------
    UserError
        As :func:`read_case`, or if the launch file does not exist.
    """
    description = _description(source, launch)
    if source.is_file() and launch is None and not description.is_file():
        raise UserError(f"{source} needs a description of its launch: --launch FILE.json, or {description}")
    return read_case(source, description, cache, workshop)


def read_case(source: Path, description: Path, cache: Cache | None = None, workshop: Workshop | None = None) -> PtxCase:
    """Read a PTX file, or compile a CUDA C++ file, and read its launch file; a ``workshop`` compiles untrusted sources.

    Raises
    ------
    UserError
        If a file cannot be read, does not compile or is invalid.
    """
    try:
        text = source.read_text()
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{source} is not a text file") from None
    launches = read_launch_file(description)
    module = None
    if source.suffix == ".cu":
        module = _module(source, text, launches, description)
        launches = _completed(launches, module, description)
        module = foreign(module, workshop) if workshop else module
        built = build(module, launches.arch or DEFAULT_ARCH, cache=cache)
        text = built.ptx.decode()
        launches = _lowered(launches, module, built)
    elif launches.arch or launches.defines or launches.include:
        raise UserError(f"{description}: 'arch', 'defines' and 'include' are for a FILE.cu, and {source.name} is PTX")
    case = PtxCase(source.name, text, launches, description.parent, module, workshop, (source, description))
    try:
        for name, buffer in (*launches.buffers.items(), *launches.variables.items()):
            _values(buffer, f"buffer {name}", 0, case.folder)
        for name, expected in launches.expect.items():
            if expected.file is not None:
                _values(expected, f"the expected {name}", 0, case.folder)
        for launch in launches.launches:
            case.text_of(launch)
            _ = launch.sizes
            for name, buffer in launch.set.items():
                _values(buffer, f"buffer {name}", 0, case.folder)
            for place, argument in enumerate(launch.args, 1):
                if isinstance(argument, BufferDescription):
                    _values(argument, f"argument {place}", place, case.folder)
    except UserError as error:
        raise UserError(f"{description}: {error}") from None
    return case


def _module(source: Path, text: str, launches: LaunchFile, description: Path) -> Module:
    folders = (source.parent, *(description.parent / folder for folder in launches.include))
    module = Module(source.name, text, launches.launches[0].entry or "", launches.defines, tuple(folders))
    entry = module.entry or only_kernel(module)
    if not entry:
        raise UserError(f"{description}: say which 'entry' of {source.name} is meant, as C++ names it")
    return replace(module, entry=entry)


def _completed(launches: LaunchFile, module: Module, description: Path) -> LaunchFile:
    """Launches with missing sizes filled in from constant launches in the source's host code.

    Raises
    ------
    UserError
        If the host code has no such launch; the message has the line.
    """
    done = []
    for launch in launches.launches:
        entry = launch.entry or module.entry
        missing = [name for name in ("grid", "block", "dynamic_smem") if getattr(launch, name) is None]
        update: dict[str, Any] = {"entry": entry}
        own = launch_of(replace(module, entry=entry)) if missing and launch.ptx is None else ""
        for name in missing:
            if isinstance(own, HostLaunch):
                size, written = own.size(name)
                if size is None:
                    raise UserError(
                        f"{description}: say the {name!r} of {entry}: line {own.line} of {module.name} launches it "
                        f"with {written}, which is no constant"
                    )
                update[name] = size
            elif name != "dynamic_smem":
                raise UserError(f"{description}: a launch needs {name!r}: {own}")
        done.append(replace(launch, **update))
    return replace(launches, launches=done)


def _lowered(launches: LaunchFile, module: Module, built: Build) -> LaunchFile:
    """Launches with the PTX name of the entry, if it differs from the C++ name, for example by default arguments."""
    try:
        resolve(module.entry, parse(built.ptx.decode()).entries, "entry")
    except SimError:
        names = [built.entry if launch.entry == module.entry else launch.entry for launch in launches.launches]
        done = [replace(launch, entry=name) for launch, name in zip(launches.launches, names, strict=True)]
        return replace(launches, launches=done)
    return launches


class PtxRun:
    """One run of a case."""

    def __init__(self, case: PtxCase, options: dict[str, Any]) -> None:
        self.case, self.options = case, options
        self.gpu = Device(_MEMORY)
        self.buffers: dict[str, DeviceArray] = {}
        self.modules: dict[str | None, DeviceModule] = {}
        self.streams: dict[str, Stream] = {}

    def all(self, launched: Callable[[Report], None]) -> list[str]:
        """Create buffers and variables, run the launches, and compare expected buffers."""
        file, folder = self.case.launches, self.case.folder
        if not any(buffer.address for buffer in file.buffers.values()):
            self._module(None)  # otherwise its variables are placed behind buffers with fixed addresses
        for place, (name, buffer) in enumerate(file.buffers.items(), 1):
            self.buffers[name] = self._new(buffer, f"buffer {name}", place, buffer.address)
        for name, buffer in file.variables.items():
            self._set_variable(None, name, buffer)
        if any(launch.programmatic for launch in file.launches):
            self.gpu.overlaps = True
        for launch in file.launches:
            module = self._module(launch.ptx)
            for name, buffer in launch.set.items():
                if name in self.buffers:
                    self._refill(name, buffer)
                else:
                    self._set_variable(launch.ptx, name, buffer)
            arguments = [self._argument(value, place) for place, value in enumerate(launch.args)]
            stream = self._stream(launch.stream)
            for name in launch.after:
                other = self._stream(name)
                if stream is not None and other is not None:
                    stream.wait(other.record())
            grid, block, cluster = launch.sizes
            report = module[self.case.entry_of(launch)].launch(
                *(grid, block, arguments),
                stream=stream,
                dynamic_smem=launch.dynamic_smem or 0,
                cluster=cluster,
                cooperative=launch.cooperative,
                programmatic=launch.programmatic,
                **self.options,
            )
            launched(report)
        wrong = (_difference(name, self._buffer(name), want, folder) for name, want in file.expect.items())
        return [sentence for sentence in wrong if sentence]

    def _new(self, buffer: BufferDescription, what: str, seed: int, address: int | None = None) -> DeviceArray:
        """A buffer on the device, named ``what`` in messages."""
        values = _values(buffer, what, seed, self.case.folder)
        array = self.gpu.array(values, name=what, address=address)
        if _is_unwritten(buffer):
            self.gpu.undefine(array)
        return array

    def _module(self, file: str | None) -> DeviceModule:
        """The PTX of the launch file, or of another file beside it."""
        if file not in self.modules:
            text = self.case.ptx if file is None else _file(self.case.folder / file).decode(errors="replace")
            self.modules[file] = self.gpu.module(text)
        return self.modules[file]

    def _set_variable(self, file: str | None, name: str, buffer: BufferDescription) -> None:
        values = _values(buffer, f"variable {name}", 0, self.case.folder).reshape(-1)
        variable = self._module(file).variable(name, values.dtype)
        if variable.nbytes != values.nbytes:
            raise UserError(f"variable {name} has {variable.nbytes} bytes, and {values.nbytes} are given")
        variable[:] = values

    def _refill(self, name: str, buffer: BufferDescription) -> None:
        values, target = _values(buffer, f"buffer {name}", 0, self.case.folder), self.buffers[name]
        if target.nbytes != values.nbytes:
            raise UserError(f"buffer {name} has {target.nbytes} bytes, and {values.nbytes} are given")
        target.reshape(-1).view(np.uint8)[:] = values.reshape(-1).view(np.uint8)
        if _is_unwritten(buffer):
            self.gpu.undefine(target)

    def _stream(self, name: str) -> Stream | None:
        if not name:
            return None
        if name not in self.streams:
            self.streams[name] = self.gpu.stream()
        return self.streams[name]

    def _buffer(self, name: str) -> DeviceArray:
        if name not in self.buffers:
            raise UserError(f"there is no buffer {name!r}; there are: {', '.join(self.buffers) or 'none'}")
        return self.buffers[name]

    def _argument(self, value: Any, place: int) -> Any:
        """Launch argument for an argument of the file."""
        if isinstance(value, BufferDescription):
            return self._new(value, f"argument {place}", place + 1)
        if isinstance(value, Number):
            return dtype_of(value.dtype).type(value.value)
        if isinstance(value, Bytes):
            return bytes.fromhex(value.bytes)
        if isinstance(value, StructArgument):
            struct = self._struct(value.struct)
            return Pointer(struct) if value.by_address else struct
        return self._item(value)

    def _item(self, value: Any) -> Any:
        """An argument or an item of a structure."""
        if isinstance(value, str):
            return self._buffer(value)
        if isinstance(value, BufferPart):
            return Pointer(self._buffer(value.buffer), value.offset)
        if isinstance(value, MapArgument):
            return self._map(value.map)
        if isinstance(value, Table):
            return [self._item(each) for each in value.table]
        return value

    def _map(self, value: Map) -> TensorMap:
        own = ("buffer", "dtype", "box", "swizzle")
        options = {name: setting for name, setting in vars(value).items() if name not in own}
        array: Array = self._buffer(value.buffer)
        if value.dtype is not None:
            array = array.reshape(-1).view(np.uint8).view(dtype_of(value.dtype))
        return TensorMap(array, value.box, value.swizzle, **options)

    def _struct(self, value: StructDescription) -> Struct:
        raw = bytearray(bytes.fromhex(value.data) if value.file is None else _file(self.case.folder / value.file))
        if value.size is not None:
            if len(raw) > value.size:
                raise UserError(f"a struct of {value.size} bytes has {len(raw)} bytes of data")
            raw = raw.ljust(value.size, b"\0")
        items: dict[int | str, Any] = {}
        for key, item in value.items.items():
            if not key.isdecimal():
                raise UserError(f"the items of a struct have offsets in bytes, not {key!r}")
            offset = int(key)
            if isinstance(item, Number):
                part = np.asarray(item.value).astype(dtype_of(item.dtype)).tobytes()
                if offset + len(part) > len(raw):
                    raise UserError(f"a number at offset {offset} reaches beyond the {len(raw)} bytes of the struct")
                raw[offset : offset + len(part)] = part
            else:
                items[offset] = self._item(item)
        return Struct(bytes(raw), items)


def _named(value: Any) -> Iterator[str]:
    """Names of buffers in an argument."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, BufferPart):
        yield value.buffer
    elif isinstance(value, MapArgument):
        yield value.map.buffer
    elif isinstance(value, Table):
        yield from (name for each in value.table for name in _named(each))
    elif isinstance(value, StructArgument):
        yield from (name for each in value.struct.items.values() for name in _named(each))


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _values(buffer: BufferDescription, what: str, seed: int, folder: Path) -> Array:
    """Content of a buffer; ``seed`` is for random values."""
    dtype = None
    if buffer.dtype is not None:
        try:
            dtype = dtype_of(buffer.dtype)
        except UserError as error:
            raise UserError(f"{what}: {error}") from None
    shape = [buffer.shape] if isinstance(buffer.shape, int) else buffer.shape
    if buffer.file is not None:
        return _shaped(_loaded(folder / buffer.file, dtype, what), shape, what)
    if buffer.values is not None:
        try:
            values = np.array(buffer.values, dtype or np.float32)
        except (ValueError, TypeError) as error:
            raise UserError(f"{what}: 'values' is not an array of {dtype or 'float32'}: {error}") from None
        return _shaped(values, shape, what)
    if dtype is None or shape is None:
        raise UserError(f"{what}: a buffer has 'dtype' and 'shape', a 'file', or 'values'")
    count = int(np.prod(shape, dtype=object))
    if count * dtype.itemsize > _MAX_BYTES:
        raise UserError(f"{what} has {count * dtype.itemsize} bytes, and at most {_MAX_BYTES} are allowed")
    if buffer.init == "poison":
        poison: Array = np.full(count * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
        return poison
    return _initial(buffer.init, count, dtype, seed, what).reshape(shape)


def _is_unwritten(buffer: BufferDescription) -> bool:
    """Whether a buffer is unwritten."""
    return buffer.init == "poison" and buffer.file is None and buffer.values is None


def _initial(init: str | float, count: int, dtype: np.dtype[Any], seed: int, what: str) -> Array:
    values: Any
    if init == "normal":
        values = np.random.Generator(np.random.PCG64(seed)).standard_normal(count)
        values = 16.0 * values if dtype.kind in "iu" else values
    elif init == "arange":
        values = np.arange(count)
    else:
        return np.full(count, filler(float(FILLS.get(str(init), init)), dtype, what))
    if dtype.kind == "u":
        values = np.abs(values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype)


def _loaded(path: Path, dtype: np.dtype[Any] | None, what: str) -> Array:
    """Load a .npy file; a type that NumPy lacks is stored as plain bytes, and ``dtype`` gives the type."""
    try:
        array: Array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UserError(f"{what}: {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{what}: {path} is no .npy file: {error}") from None
    if dtype is None or array.dtype == dtype:
        return array
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    raise UserError(f"{what}: {path} holds {array.dtype}, and 'dtype' is {dtype}")


def _shaped(array: Array, shape: list[int] | None, what: str) -> Array:
    if shape is None or list(array.shape) == shape:
        return array
    if array.size != int(np.prod(shape, dtype=object)):
        raise UserError(f"{what} has {array.size} elements, and 'shape' is {shape}")
    return array.reshape(shape)


def _difference(name: str, got: Array, expected: Expected, folder: Path) -> str:
    """Difference of a buffer from its expected content, as text; empty if equal."""
    fields: dict[str, Any] = {"dtype": expected.dtype or got.dtype.name, "shape": expected.shape or list(got.shape)}
    want = _values(replace(expected, **fields), f"the expected {name}", 0, folder)
    a, b = (np.asarray(each).astype(np.float64) for each in (got, want))
    with np.errstate(all="ignore"):
        error = np.abs(a - b)
        same = (a == b) | (error <= expected.atol + expected.rtol * np.abs(b)) | np.isnan(a) & np.isnan(b)
    if same.all():
        return ""
    worst = np.unravel_index(int(np.argmax(np.where(same, -1.0, np.nan_to_num(error, nan=np.inf)))), a.shape)
    place = ", ".join(str(int(each)) for each in worst)
    return (
        f"buffer {name}: {int((~same).sum())} of {same.size} elements are not as expected; the worst is [{place}], "
        f"{a[worst]:g} in place of {b[worst]:g}"
    )
