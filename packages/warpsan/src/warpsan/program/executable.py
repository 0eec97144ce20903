"""Executable files: linkage with the CUDA runtime, read from the ELF sections.

Source: System V ABI, "Object Files" (headers, sections, dynamic section).
"""

from __future__ import annotations

import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from warpsan.errors import UserError

__all__ = ["Executable", "check_program", "read_executable"]

_DYNAMIC, _NEEDED = 6, 1
_RUNTIME = re.compile(r"libcudart\.so\.(\d+)")


@dataclass(frozen=True)
class Executable:
    """Facts about an ELF file.

    Attributes
    ----------
    needed : tuple of str
        Required shared libraries.
    device_code : bool
        Whether the file contains a fat binary.
    """

    needed: tuple[str, ...]
    device_code: bool

    @property
    def runtime(self) -> str:
        """Major version of the required shared CUDA runtime; empty if not required."""
        return next((match[1] for name in self.needed if (match := _RUNTIME.match(name))), "")


def read_executable(path: Path) -> Executable | None:
    """Facts about a file; None unless it is a 64-bit ELF file.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if data[:5] != b"\x7fELF\x02":
        return None
    table, size, count, names = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<3H", data, 58)
    sections = [struct.unpack_from("<2I4Q2I2Q", data, table + size * number) for number in range(count)]
    if not sections:
        return Executable((), False)
    labels = {_text(data, sections[names][4] + section[0]) for section in sections}
    needed: list[str] = []
    for section in sections:
        if section[1] == _DYNAMIC:
            strings = sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 16):
                tag, value = struct.unpack_from("<2Q", data, at)
                if tag == _NEEDED:
                    needed.append(_text(data, strings + value))
    return Executable(tuple(needed), ".nv_fatbin" in labels)


def check_program(name: str) -> tuple[Path, Executable]:
    """Path of a program, and its facts; a script counts as a program without device code.

    Raises
    ------
    UserError
        If the program does not exist, or links the static CUDA runtime.
    """
    located = shutil.which(name)
    if located is None:
        path = Path(name)
        if not path.exists():
            raise UserError(f"there is no program {name}")
        raise UserError(f"{name} is not a program: it cannot be executed")
    path = Path(located)
    facts = read_executable(path)
    if facts is None:
        return path, Executable((), False)
    if facts.device_code and not facts.runtime:
        raise UserError(
            f"{name} is linked with the static CUDA runtime, which cannot be replaced: link it with nvcc -cudart shared"
        )
    return path, facts


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode(errors="replace")
