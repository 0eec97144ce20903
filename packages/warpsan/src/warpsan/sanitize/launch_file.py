"""The launch file: what a PTX or CUDA C++ file is run with, as JSON. Its schema is ``docs/launch.schema.json``.

In its short form it is one launch::

    {"entry": "saxpy", "grid": [4], "block": [256],
     "args": [{"dtype": "float32", "shape": [1000], "init": "normal"},
              {"dtype": "float32", "shape": [1000], "init": "poison"}, 2.0, 1000]}

In the long one it has named buffers, several launches, variables, and what is expected of the buffers afterwards::

    {"buffers": {"q": {"file": "q.npy"}, "o": {"dtype": "float16", "shape": [8, 64], "init": "poison"}},
     "launches": [{"entry": "flash<64>", "grid": 8, "block": 128, "dynamic_smem": 65536,
                   "args": [{"struct": {"size": 640, "data": "00000000", "items": {"88": "q", "512": {"map":
                             {"buffer": "q", "box": [64, 64], "swizzle": "128B"}}}}}, "o"]}],
     "expect": {"o": {"file": "o.npy", "atol": 0.001}}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from warpsan.errors import UserError
from warpsan.host.geometry import Dim3

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

_Positive = Annotated[int, Field(ge=1, strict=True)]
_Bytes = Annotated[int, Field(ge=0, strict=True)]
_Sizes = _Positive | Annotated[list[_Positive], Field(min_length=1, max_length=3)]
_Hex = Annotated[str, Field(pattern=r"^([0-9a-fA-F]{2}|\s)*$")]
_Plain = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, title="")


class BufferDescription(_Model):
    """An array in device memory."""

    dtype: str | None = Field(None, description="A NumPy or ml_dtypes type; that of the file by default.")
    shape: _Positive | list[_Positive] | None = Field(None, description="That of the file by default.")
    init: Init | _Plain = Field(
        "normal",
        description="What it is filled with; poison is 0xFF in every byte, that nobody wrote: uses are reported.",
    )
    file: str | None = Field(None, description="A .npy file, relative to the launch file.")
    values: list[Any] | None = Field(None, description="Its values, in nested lists.")
    address: _Positive | None = Field(
        None, description="Where it lies, for addresses in other buffers; the buffers are then in this order."
    )


class BufferPart(_Model):
    """An address within a buffer."""

    buffer: str
    offset: _Bytes = Field(0, description="In bytes.")


class Map(_Model):
    """A tensor map of a buffer, with the arguments of warpsan.TensorMap."""

    buffer: str
    box: list[_Positive]
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    shape: list[_Positive] | None = None
    strides: list[_Bytes] | None = Field(None, description="In bytes, the outermost axis first.")
    element_strides: list[_Positive] | None = None
    dtype: str | None = Field(None, description="Of an element; that of the buffer by default.")
    interleave: Literal["none"] = "none"
    oob_fill: Literal["zero", "nan"] = "zero"
    offset: _Bytes = Field(0, description="In bytes.")


class MapArgument(_Model):
    """A tensor map that is passed by value."""

    map: Map


class Number(_Model):
    """A number of a type of its own."""

    value: _Plain
    dtype: str


class Bytes(_Model):
    """Bytes that are passed by value."""

    bytes: _Hex = Field(description="In hexadecimal digits.")


class Table(_Model):
    """The address of a table of addresses."""

    table: list[str | BufferPart | None]


class StructDescription(_Model):
    """A structure that holds addresses and tensor maps."""

    size: _Positive | None = Field(None, description="Bytes; the data is filled up with zeros to it.")
    data: _Hex = Field("", description="In hexadecimal digits.")
    file: str | None = Field(None, description="A file with the bytes, in place of data.")
    items: dict[str, str | BufferPart | MapArgument | Table | Number | None] = Field(
        default_factory=dict, description="What is filled in, by its offset in bytes."
    )


class StructArgument(_Model):
    """A structure that is passed by value, or by its address."""

    struct: StructDescription
    by_address: bool = False


_KEYS: dict[str, type[BaseModel]] = {
    "buffer": BufferPart,
    "map": MapArgument,
    "value": Number,
    "bytes": Bytes,
    "table": Table,
    "struct": StructArgument,
}
"""The object that a key stands for; another one is a buffer."""


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return next((key for key in _KEYS if key in value), "array")
    if isinstance(value, BaseModel):
        return next((key for key, kind in _KEYS.items() if isinstance(value, kind)), "array")
    return "name" if isinstance(value, str) else "plain"


Argument = Annotated[
    Annotated[BufferDescription, Tag("array")]
    | Annotated[BufferPart, Tag("buffer")]
    | Annotated[MapArgument, Tag("map")]
    | Annotated[Number, Tag("value")]
    | Annotated[Bytes, Tag("bytes")]
    | Annotated[Table, Tag("table")]
    | Annotated[StructArgument, Tag("struct")]
    | Annotated[str, Tag("name")]
    | Annotated[_Plain | None, Tag("plain")],
    Discriminator(_kind),
]
"""A number, null, the name of a buffer, or an object."""


_FROM_SOURCE = "Of a FILE.cu that launches the kernel with constant sizes, those by default"


class LaunchDescription(_Model):
    """One launch of one kernel."""

    entry: str | None = Field(None, description="As in the PTX, or as in C++; not needed where there is one kernel.")
    grid: _Sizes | None = Field(None, description=_FROM_SOURCE)
    block: _Sizes | None = Field(None, description=_FROM_SOURCE)
    args: list[Argument]
    dynamic_smem: _Bytes | None = Field(None, description=f"In bytes. {_FROM_SOURCE}; 0 where there is no launch.")
    cluster: _Sizes = Field([1, 1, 1])
    cooperative: bool = False
    programmatic: bool = Field(
        False, description="Programmatic stream serialization: it may overlap the launch before it in its stream."
    )
    stream: str = Field("", description="The stream that it is issued to; the default stream if empty.")
    after: list[str] = Field(default_factory=list, description="Streams whose work so far it waits for, by an event.")
    ptx: str | None = Field(None, description="The PTX file of the kernel, where it is another than the launch file's.")
    set: dict[str, BufferDescription] = Field(
        default_factory=dict, description="Buffers and variables that the host fills anew before the launch, by name."
    )

    @property
    def sizes(self) -> tuple[Dim3, Dim3, Dim3]:
        """Grid, block and cluster.

        Raises
        ------
        UserError
            If the launch has none, and no source has been asked for it.
        """
        return _dim3("grid", self.grid), _dim3("block", self.block), _dim3("cluster", self.cluster)


def _dim3(name: str, sizes: int | list[int] | None) -> Dim3:
    if sizes is None:
        raise UserError(f"a launch needs {name!r}")
    x, y, z = (*([sizes] if isinstance(sizes, int) else sizes), 1, 1)[:3]
    return x, y, z


class Expected(BufferDescription):
    """What a buffer holds after all launches."""

    init: Init | _Plain = "zeros"
    atol: Annotated[float, Field(ge=0)] = 0.0
    rtol: Annotated[float, Field(ge=0)] = 0.0


class _Shared(_Model):
    buffers: dict[str, BufferDescription] = Field(default_factory=dict, description="By name.")
    variables: dict[str, BufferDescription] = Field(
        default_factory=dict, description="Values of __device__ and __constant__ variables, set before the launches."
    )
    expect: dict[str, Expected] = Field(default_factory=dict, description="By the name of the buffer.")
    arch: str | None = Field(None, description="For a FILE.cu: what it is compiled for, such as sm_90a.")
    defines: dict[str, str] = Field(default_factory=dict, description="For a FILE.cu: macros.")
    include: list[str] = Field(default_factory=list, description="For a FILE.cu: folders of headers.")


class LaunchFile(_Shared):
    """Several launches, one after the other."""

    launches: Annotated[list[LaunchDescription], Field(min_length=1)]


class OneLaunch(LaunchDescription, _Shared):
    """A single launch."""


_FILE: TypeAdapter[LaunchFile | OneLaunch] = TypeAdapter(LaunchFile | OneLaunch)


def launch_schema() -> dict[str, Any]:
    """The JSON schema of launch files."""
    schema = _FILE.json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A launch file of sdpalab"}
    return {**head, **schema}


def read_launch_file(path: Path) -> LaunchFile:
    """Read and validate a launch file.

    Raises
    ------
    UserError
        If it cannot be read, is not JSON or is not valid: one sentence that names the place in it.
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
        raise UserError(f"{path} must hold one JSON object with {', '.join(LaunchDescription.model_fields)}")
    try:
        if "launches" in facts:
            return LaunchFile.model_validate(facts)
        single = OneLaunch.model_validate(facts)
    except ValidationError as error:
        raise UserError(f"{path}: {_sentence(error, 'launches' in facts)}") from None
    shared = {name: getattr(single, name) for name in _Shared.model_fields}
    one = LaunchDescription.model_construct(**{name: getattr(single, name) for name in LaunchDescription.model_fields})
    return LaunchFile.model_construct(**shared, launches=[one])


def _sentence(error: ValidationError, several: bool) -> str:
    """The first thing that is wrong, and where."""
    errors = error.errors()
    of_one = [each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
    first = max(of_one, key=lambda each: len(each["loc"]))  # of the alternatives, the one that got furthest
    # The names of a union's members are in the path, behind a number or a key of the file.
    path = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-", "list["))]
    last = path[-1] if path else ""
    where = ".".join(path[:-1])
    place = f"in {where} " if where else ""
    if first["type"] == "extra_forbidden":
        known = _fields(path[:-1], several)
        return f"there is no {last!r} {place}{'of' if where else 'in'} a launch file; it has {known}".replace("  ", " ")
    if first["type"] == "missing":
        return (
            f"{place}a launch needs {last!r}"
            if last in LaunchDescription.model_fields
            else f"{place}{last!r} is missing"
        )
    message = str(first["msg"])
    shown = json.dumps(first["input"], default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    place = ".".join(each for each in path if each not in ("int", "float", "str"))
    return f"{place}: {message[0].lower()}{message[1:]}, not {shown}"


def _fields(path: list[str], several: bool) -> str:
    """The keys that there may be at a place."""
    for part in reversed(path):
        if part in _KEYS:
            return ", ".join(_KEYS[part].model_fields)
        if part == "array":
            return ", ".join(BufferDescription.model_fields)
    model: type[BaseModel] = LaunchFile if several and not path else LaunchDescription if several else OneLaunch
    return ", ".join(model.model_fields)
