"""Modules of the stand-in driver: PTX as it is, and of a cubin the PTX that the lab made with it.

A cubin has no PTX in it. The lab's builds have both, so it is found by the cubin's digest: in what this process has
read from a build cache or put into one since the driver was opened, and in the user's cache.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from warpsan.build.cache import Cache
from warpsan.ptx.ir import Entry, PtxModule
from warpsan.ptx.parser import parse

__all__ = ["Function", "Module", "NoPtx", "image_at", "ptx_of", "remember_builds"]

_ELF = b"\x7fELF"
_MOST_THREADS = 1024

_known: dict[str, bytes] = {}


class NoPtx(Exception):
    """A cubin that no build of the lab is."""


@dataclass(eq=False)
class Module:
    """A loaded module."""

    ptx: str

    @cached_property
    def parsed(self) -> PtxModule:
        return parse(self.ptx)


@dataclass(eq=False)
class Function:
    """An entry, and what launches of it may have."""

    module: Module
    name: str
    dynamic_smem: int = 48 << 10
    large_clusters: bool = False

    @property
    def entry(self) -> Entry:
        return self.module.parsed.entries[self.name]

    @cached_property
    def static_smem(self) -> int:
        """Bytes of the variables in shared memory, each where its alignment allows."""
        top = 0
        for variable in (*self.module.parsed.variables.values(), *self.entry.variables.values()):
            if variable.space == "shared":
                top = -(-top // variable.align) * variable.align + variable.size
        return top

    @cached_property
    def max_threads(self) -> int:
        """Limit of threads in a block, from the source if it sets one."""
        for directive in ("reqntid", "maxntid"):
            if numbers := self.entry.directives.get(directive):
                threads = 1
                for number in numbers:
                    threads *= number
                return min(threads, _MOST_THREADS)
        return _MOST_THREADS


def remember_builds() -> None:
    """From now on keep the PTX of every build that this process makes or reads."""
    taken: Callable[..., Any] = Cache.get_or_make

    def get_or_make(self: Cache, name: str, key: str, make: Any) -> Any:
        stored = taken(self, name, key, make)
        _remember(stored.files)
        return stored

    Cache.get_or_make = get_or_make  # type: ignore[method-assign]


def _remember(files: Any) -> None:
    if "kernel.cubin" in files and "kernel.ptx" in files:
        _known[sha256(files["kernel.cubin"]).hexdigest()] = files["kernel.ptx"]


def image_at(address: int) -> bytes:
    """Image of a module at a pointer: an ELF file, whose header has its length, or text."""
    if ctypes.string_at(address, 4) != _ELF:
        return ctypes.string_at(address)
    header = ctypes.string_at(address, 64)
    programs, sections = struct.unpack_from("<QQ", header, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", header, 54)
    size = max(programs + program_size * program_count, sections + section_size * section_count)
    # Sections may lie behind their own table.
    table = ctypes.string_at(address + sections, section_size * section_count)
    for place in range(section_count):
        (kind,) = struct.unpack_from("<I", table, place * section_size + 4)
        offset, length = struct.unpack_from("<QQ", table, place * section_size + 24)
        size = max(size, offset + (0 if kind == 8 else length))  # SHT_NOBITS takes no room
    return ctypes.string_at(address, size)


def ptx_of(image: bytes) -> str:
    """The PTX of an image; raises NoPtx if it is another compiler's cubin."""
    if not image.startswith(_ELF):
        return image.decode().rstrip("\0")
    digest = sha256(image).hexdigest()
    if digest not in _known:
        _search(digest)
    return _known[digest].decode().rstrip("\0")


def _search(digest: str) -> None:
    """Look for a build in the user's cache: each entry lists its files' digests."""
    line = re.compile(rf"^{digest}  kernel\.cubin$", re.MULTILINE)
    for sums in Cache().root.glob("*/SHA256SUMS"):
        if line.search(sums.read_text()):
            _remember({path.name: path.read_bytes() for path in sums.parent.iterdir()})
            if digest in _known:
                return
    raise NoPtx(f"no build of this process or in {Cache().root} has the cubin {digest[:16]}")
