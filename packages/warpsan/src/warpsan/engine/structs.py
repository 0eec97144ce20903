"""Structs in memory: fields at fixed offsets that native code and Python share.

A struct declares its fields by annotations, in the order of their memory::

    class Warp(NativeStruct):
        live: i64
        barrier: Barrier  # the address of another struct
        vector: Ptr[i64]
        paths: Ptr[Path] = inline(33)  # 33 structs within this one

An object is the address of a struct, 0 for none; reading and assigning an attribute loads and stores the field. The
elements of a pointer are ``pointer[k]``, and ``pointer.at(k)`` is a pointer to an element. Structs and pointers in
arithmetic are their addresses in bytes, and the result is a number. :mod:`~warpsan.engine.translate` replaces all this
by LLVM instructions; it also works in plain Python, so that a debugger can step through translated functions.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, SupportsIndex, TypeAlias, TypeVar, overload

__all__ = [
    "Address",
    "Field",
    "Kind",
    "NativeStruct",
    "Ptr",
    "PtrTo",
    "i32",
    "i64",
    "inline",
    "kind_of",
    "u8",
]

i64: TypeAlias = int
i32: TypeAlias = int
u8: TypeAlias = int
Address: TypeAlias = int
"""A word that is the address of raw bytes."""

SCALARS: Mapping[str, Any] = {
    "i64": ctypes.c_int64,
    "Address": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "u8": ctypes.c_uint8,
}
_WORD = 8
T = TypeVar("T")


class _Addressed:
    """An address; in arithmetic and comparisons it is a number."""

    __slots__ = ("address",)

    def __init__(self, address: SupportsIndex) -> None:
        self.address = operator.index(address)

    def __index__(self) -> int:
        return self.address

    def __bool__(self) -> bool:
        return self.address != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SupportsIndex) and self.address == operator.index(other)

    def __hash__(self) -> int:
        return hash(self.address)

    def __add__(self, size: int) -> int:
        return self.address + size

    def __sub__(self, other: SupportsIndex) -> int:
        return self.address - operator.index(other)


class Ptr(_Addressed, Generic[T]):
    """The address of elements of one kind."""

    __slots__ = ("element",)

    def __init__(self, address: SupportsIndex, element: Kind) -> None:
        super().__init__(address)
        self.element = element

    def __getitem__(self, k: int) -> T:
        place = self.address + size_of(self.element) * k
        element: T = _reference(self.element, place) if is_struct(self.element) else _read(self.element, place)
        return element

    def __setitem__(self, k: int, value: T) -> None:
        _write(self.element, self.address + size_of(self.element) * k, value)

    def at(self, k: int) -> Ptr[T]:
        """A pointer to element ``k``."""
        return Ptr(self.address + size_of(self.element) * k, self.element)


@dataclass(frozen=True)
class PtrTo:
    """The kind of a pointer, by the kind of its elements."""

    element: Kind


@dataclass(frozen=True)
class Field:
    """A field of a struct, as a descriptor.

    Attributes
    ----------
    kind : Kind
    offset : int
        In bytes.
    count : int
        Elements that lie within the struct; 0 for a field of one value.
    """

    kind: Kind
    offset: int
    count: int

    @overload
    def __get__(self, struct: None, owner: type[NativeStruct]) -> Field: ...
    @overload
    def __get__(self, struct: NativeStruct, owner: type[NativeStruct]) -> Any: ...
    def __get__(self, struct: NativeStruct | None, owner: type[NativeStruct]) -> Any:
        if struct is None:
            return self
        place = struct.address + self.offset
        return _reference(self.kind, place) if self.count else _read(self.kind, place)

    def __set__(self, struct: NativeStruct, value: Any) -> None:
        _write(self.kind, struct.address + self.offset, value)


@dataclass(frozen=True)
class _Inline:
    count: int


def inline(count: int) -> Any:
    """The declaration of a pointer to ``count`` elements that lie within the struct."""
    return _Inline(count)


class NativeStruct(_Addressed):
    """The base of structs."""

    __slots__ = ()
    fields: ClassVar[Mapping[str, Field]]
    byte_size: ClassVar[int]
    """Bytes of the struct, a multiple of 8."""

    def __init_subclass__(cls) -> None:
        names, offset, fields = vars(sys.modules[cls.__module__]) | {cls.__name__: cls}, 0, {}
        for name, annotation in inspect.get_annotations(cls).items():
            kind, given = kind_of(ast.parse(annotation, mode="eval").body, names), cls.__dict__.get(name)
            count = given.count if isinstance(given, _Inline) else 0
            element = kind.element if count and isinstance(kind, PtrTo) else kind
            many = size_of(element) if count else _stored(kind)
            align = min(many, _WORD)
            offset = -(-offset // align) * align
            fields[name] = Field(kind, offset, count)
            setattr(cls, name, fields[name])
            offset += many * max(count, 1)
        cls.fields, cls.byte_size = fields, -(-offset // _WORD) * _WORD

    @classmethod
    def offset_of(cls, name: str) -> int:
        """The offset of a field in bytes."""
        return cls.fields[name].offset


Kind: TypeAlias = "str | PtrTo | type[NativeStruct]"
"""A kind of values: the name of a scalar, a pointer, or a struct."""


def kind_of(annotation: ast.expr, names: Mapping[str, Any]) -> Kind:
    """The kind that an annotation names.

    Raises
    ------
    TypeError
        If it is none.
    """
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Ptr":
        return PtrTo(kind_of(annotation.slice, names))
    name = ast.unparse(annotation)
    if name in SCALARS:
        return name
    value = names.get(name)
    if isinstance(value, type) and issubclass(value, NativeStruct):
        return value
    raise TypeError(f"{name} is no field's type: i64, i32, u8, Address, a struct, or Ptr of one of these")


def is_struct(kind: Kind | None) -> bool:
    """Whether values of a kind are structs."""
    return isinstance(kind, type)


def size_of(kind: Kind) -> int:
    """Bytes of an element of this kind in an array."""
    return kind.byte_size if isinstance(kind, type) else _stored(kind)


def _stored(kind: Kind) -> int:
    """Bytes of a field of this kind: a struct is stored by its address."""
    return int(ctypes.sizeof(SCALARS[kind])) if isinstance(kind, str) else _WORD


def _reference(kind: Kind, address: int) -> Any:
    if isinstance(kind, PtrTo):
        return Ptr(address, kind.element)
    assert isinstance(kind, type)
    return kind(address)


def _read(kind: Kind, address: int) -> Any:
    if isinstance(kind, str):
        return SCALARS[kind].from_address(address).value
    return _reference(kind, ctypes.c_int64.from_address(address).value)


def _write(kind: Kind, address: int, value: Any) -> None:
    scalar = SCALARS[kind] if isinstance(kind, str) else ctypes.c_int64
    scalar.from_address(address).value = operator.index(value)
