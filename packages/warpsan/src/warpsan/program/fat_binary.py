"""Fat binaries: PTX and machine code for several architectures in a CUDA program.

Sources: fatbinary_section.h (the wrapper's magic numbers); the layout of the entries as the CUDA Binary Utilities print
it. cuobjdump (included in the package) reads compressed entries.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from warpsan.build.tools import tool_path
from warpsan.errors import MachineError, UserError

__all__ = ["FatBinary", "best_ptx", "read_fat_binary"]

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHI")
"""Kind, version, header bytes, entry bytes, compressed bytes, options, PTX version, architecture."""
_FLAGS_AT, _COMPRESSED = 40, 0xA000
"""Offset of an entry's flags, and the flags for LZ4 and zstd."""
_PTX, _CUBIN = 1, 2


@dataclass(frozen=True)
class FatBinary:
    """Code in a fat binary.

    Attributes
    ----------
    ptx : tuple of str
        One text per architecture.
    cubins : tuple of str
        Architectures with machine code.
    """

    ptx: tuple[str, ...]
    cubins: tuple[str, ...]


@lru_cache(maxsize=256)
def read_fat_binary(data: bytes) -> FatBinary:
    """Read a fat binary.

    Raises
    ------
    UserError
        If the data is not a fat binary.
    MachineError
        If the PTX is compressed and cuobjdump cannot run.
    """
    if len(data) < _HEADER.size or _HEADER.unpack_from(data)[0] != _MAGIC:
        raise UserError("the program registers an invalid fat binary: it does not begin with the magic number")
    at, texts, cubins, compressed = _HEADER.unpack_from(data)[2], [], [], False
    while at + _ENTRY.size <= len(data):
        kind, _, header, size, *_, arch = _ENTRY.unpack_from(data, at)
        (flags,) = struct.unpack_from("<Q", data, at + _FLAGS_AT)
        if kind == _PTX and flags & _COMPRESSED:
            compressed = True
        elif kind == _PTX:
            texts.append(data[at + header : at + header + size].rstrip(b"\0").decode().strip() + "\n")
        elif kind == _CUBIN:
            cubins.append(f"sm_{arch}")
        at += header + size
    return FatBinary(_extracted(data) if compressed else tuple(texts), tuple(cubins))


def _extracted(data: bytes) -> tuple[str, ...]:
    """All PTX of a fat binary, extracted by cuobjdump."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.fatbin")
        path.write_bytes(data)
        command = [tool_path("cuobjdump"), "-xptx", "all", path.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise MachineError(f"cuobjdump failed on the program's fat binary: {done.stderr.strip()}")
        return tuple(file.read_text() for file in sorted(Path(folder).glob("*.ptx")))


def best_ptx(binary: FatBinary, arch: str) -> str | None:
    """The newest PTX that a GPU of an architecture such as ``sm_90`` can run, as the driver selects it; None without
    one.

    PTX for an architecture-specific target (``sm_90a``) matches only that target.
    """
    number = _number(arch)
    able = [text for text in binary.ptx if _runs_on(_target(text), number)]
    return max(able, key=lambda text: (_number(_target(text)), _target(text)), default=None)


def _runs_on(target: str, number: int) -> bool:
    if target.endswith("a"):
        return _number(target) == number
    if target.endswith("f"):
        return _number(target) // 10 == number // 10 and _number(target) <= number
    return _number(target) <= number


def _target(text: str) -> str:
    match = re.search(r"^\s*\.target\s+(\w+)", text, re.M)
    return match[1] if match else ""


def _number(arch: str) -> int:
    return int("".join(filter(str.isdigit, arch)) or 0)
