"""Launch files: device, arguments and launches of a PTX or CUDA C++ file, as JSON. Schema: ``docs/launch.schema.json``.

The short form is one launch::

    {"entry": "saxpy", "grid": [4], "block": [256],
     "args": [{"dtype": "float32", "shape": [1000], "init": "normal"},
              {"dtype": "float32", "shape": [1000], "init": "poison"}, 2.0, 1000]}

The long form has named buffers, several launches, variables, and expected buffers::

    {"buffers": {"q": {"file": "q.npy"}, "o": {"dtype": "float16", "shape": [8, 64], "init": "poison"}},
     "launches": [{"entry": "flash<64>", "grid": 8, "block": 128, "dynamic_smem": 65536,
                   "args": [{"struct": {"size": 640, "data": "00000000", "items": {"88": "q", "512": {"map":
                             {"buffer": "q", "box": [64, 64], "swizzle": "128B"}}}}}, "o"]}],
     "expect": {"o": {"file": "o.npy", "atol": 0.001}}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from warpsan.errors import UserError
from warpsan.host.geometry import Dim3
from warpsan.sanitize.json_fields import FieldError, Rule, read_fields, schema_of

__all__ = [
    "Argument",
    "BufferDescription",
    "BufferPart",
    "Bytes",
    "Expected",
    "LaunchDescription",
    "LaunchFile",
    "Map",
    "MapArgument",
    "Number",
    "StructArgument",
    "StructDescription",
    "Table",
    "launch_schema",
    "read_launch_file",
]

Init: TypeAlias = Literal["normal", "zeros", "ones", "-inf", "inf", "arange", "poison"]
_Positive = Annotated[int, Rule(least=1)]
_Offset = Annotated[int, Rule(least=0, about="In bytes.")]
_Sizes = _Positive | Annotated[list[_Positive], Rule(least_items=1, most_items=3)]
_Hex = Annotated[str, Rule(pattern=r"^([0-9a-fA-F]{2}|\s)*$", about="In hexadecimal digits.")]
_Plain = int | float
_Tolerance = Annotated[float, Rule(least=0)]


@dataclass(frozen=True)
class BufferDescription:
    """An array in device memory."""

    dtype: Annotated[str | None, Rule("A NumPy or ml_dtypes type. Default: the type in the file.")] = None
    shape: Annotated[_Positive | list[_Positive] | None, Rule("Default: the shape in the file.")] = None
    init: Annotated[
        Init | _Plain,
        Rule("Initial content. poison is 0xFF in every byte and counts as unwritten: its use is reported."),
    ] = "normal"
    file: Annotated[str | None, Rule("A .npy file, relative to the launch file.")] = None
    values: Annotated[list[Any] | None, Rule("Elements, in nested lists.")] = None
    address: Annotated[
        _Positive | None,
        Rule("Device address, for addresses in other buffers; buffers with addresses are in ascending order."),
    ] = None


@dataclass(frozen=True)
class BufferPart:
    """An address within a buffer."""

    KEY: ClassVar[str] = "buffer"

    buffer: str
    offset: _Offset = 0


@dataclass(frozen=True)
class Map:
    """A tensor map of a buffer, with the arguments of warpsan.TensorMap."""

    buffer: str
    box: list[_Positive]
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    shape: list[_Positive] | None = None
    strides: Annotated[list[_Offset] | None, Rule("Strides in bytes, outermost axis first.")] = None
    element_strides: list[_Positive] | None = None
    dtype: Annotated[str | None, Rule("Element type. Default: the type of the buffer.")] = None
    interleave: Literal["none"] = "none"
    oob_fill: Literal["zero", "nan"] = "zero"
    offset: _Offset = 0


@dataclass(frozen=True)
class MapArgument:
    """A tensor map, passed by value."""

    KEY: ClassVar[str] = "map"

    map: Map


@dataclass(frozen=True)
class Number:
    """A number with an explicit type."""

    KEY: ClassVar[str] = "value"

    value: _Plain
    dtype: str


@dataclass(frozen=True)
class Bytes:
    """Bytes, passed by value."""

    KEY: ClassVar[str] = "bytes"

    bytes: _Hex


@dataclass(frozen=True)
class Table:
    """The address of a table of addresses."""

    KEY: ClassVar[str] = "table"

    table: list[str | BufferPart | None]


@dataclass(frozen=True)
class StructDescription:
    """A structure with addresses and tensor maps."""

    size: Annotated[_Positive | None, Rule("Size in bytes; shorter data is padded with zeros.")] = None
    data: _Hex = ""
    file: Annotated[str | None, Rule("File with the bytes, in place of data.")] = None
    items: Annotated[
        dict[str, str | BufferPart | MapArgument | Table | Number | None],
        Rule("Items to fill in, by offset in bytes."),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class StructArgument:
    """A structure, passed by value or by address."""

    KEY: ClassVar[str] = "struct"

    struct: StructDescription
    by_address: bool = False


_Object: TypeAlias = BufferDescription | BufferPart | MapArgument | Number | Bytes | Table | StructArgument
Argument: TypeAlias = str | _Object | _Plain | None
"""A number, null, the name of a buffer, or an object."""

_FROM_SOURCE = "Default: the size in a FILE.cu that launches the kernel with constant sizes"


@dataclass(frozen=True, kw_only=True)
class LaunchDescription:
    """One launch of one kernel."""

    entry: Annotated[str | None, Rule("Kernel name as in the PTX or in C++; optional for a file with one kernel.")] = (
        None
    )
    grid: Annotated[_Sizes | None, Rule(f"{_FROM_SOURCE}.")] = None
    block: Annotated[_Sizes | None, Rule(f"{_FROM_SOURCE}.")] = None
    args: list[Argument]
    dynamic_smem: Annotated[int | None, Rule(f"Size in bytes. {_FROM_SOURCE}, or 0 without a launch.", least=0)] = None
    cluster: _Sizes = 1
    cooperative: bool = False
    programmatic: Annotated[
        bool, Rule("Programmatic stream serialization: the launch may overlap the preceding launch in its stream.")
    ] = False
    stream: Annotated[str, Rule("Stream of the launch; empty for the default stream.")] = ""
    after: Annotated[list[str], Rule("Streams whose earlier work the launch waits for, by an event.")] = field(
        default_factory=list
    )
    ptx: Annotated[str | None, Rule("PTX file of the kernel, if it differs from the launch file's.")] = None
    set: Annotated[
        dict[str, BufferDescription],
        Rule("Buffers and variables that the host refills before the launch, by name."),
    ] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[Dim3, Dim3, Dim3]:
        """Grid, block and cluster.

        Raises
        ------
        UserError
            If the launch has no sizes, and none were filled in from a source.
        """
        return _dim3("grid", self.grid), _dim3("block", self.block), _dim3("cluster", self.cluster)


def _dim3(name: str, sizes: int | list[int] | None) -> Dim3:
    if sizes is None:
        raise UserError(f"a launch needs {name!r}")
    x, y, z = (*([sizes] if isinstance(sizes, int) else sizes), 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class Expected(BufferDescription):
    """Expected content of a buffer after all launches."""

    init: Init | _Plain = "zeros"
    atol: _Tolerance = 0.0
    rtol: _Tolerance = 0.0


@dataclass(frozen=True)
class _Shared:
    """Common fields of both forms."""

    buffers: Annotated[dict[str, BufferDescription], Rule("Buffers by name.")] = field(default_factory=dict)
    variables: Annotated[
        dict[str, BufferDescription],
        Rule("Values of __device__ and __constant__ variables, set before the launches."),
    ] = field(default_factory=dict)
    expect: Annotated[dict[str, Expected], Rule("Expected buffers by name.")] = field(default_factory=dict)
    arch: Annotated[str | None, Rule("For a FILE.cu: target architecture, such as sm_90a.")] = None
    defines: Annotated[dict[str, str], Rule("For a FILE.cu: macros.")] = field(default_factory=dict)
    include: Annotated[list[str], Rule("For a FILE.cu: folders of headers.")] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchFile(_Shared):
    """Several launches, executed in order."""

    launches: Annotated[list[LaunchDescription], Rule(least_items=1)] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OneLaunch(LaunchDescription, _Shared):
    """A single launch."""


def launch_schema() -> dict[str, Any]:
    """JSON schema of launch files."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A launch file of warpsan"}
    return {**head, **schema_of(LaunchFile, OneLaunch)}


def read_launch_file(path: Path) -> LaunchFile:
    """Read and validate a launch file.

    Raises
    ------
    UserError
        If the file cannot be read, is not JSON or is invalid: one sentence with the position.
    """
    try:
        facts = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error.msg} (line {error.lineno})") from None
    if not isinstance(facts, dict):
        raise UserError(f"{path} must hold one JSON object with {', '.join(_names(LaunchDescription))}")
    try:
        if "launches" in facts:
            return read_fields(LaunchFile, facts)
        single = read_fields(OneLaunch, facts)
    except FieldError as error:
        raise UserError(f"{path}: {_sentence(error)}") from None
    one = LaunchDescription(**{name: getattr(single, name) for name in _names(LaunchDescription)})
    return LaunchFile(**{name: getattr(single, name) for name in _names(_Shared)}, launches=[one])


def _names(kind: type) -> list[str]:
    return [each.name for each in fields(kind)]


def _sentence(error: FieldError) -> str:
    """Error and position as a sentence."""
    where = ".".join(error.path)
    if not error.key or error.owner is None:
        return f"{where}: {error.words}" if where else error.words
    place = f"in {where} " if where else ""
    if not error.missing:
        known = ", ".join(_names(error.owner))
        return f"there is no {error.key!r} {place}{'of' if where else 'in'} a launch file; it has {known}"
    if error.key in _names(LaunchDescription):
        return f"{place}a launch needs {error.key!r}"
    return f"{place}{error.key!r} is missing"
