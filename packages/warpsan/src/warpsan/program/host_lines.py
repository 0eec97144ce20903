"""Source lines of the host program: return addresses of a call to ``file:line``, from debug information."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Container
from functools import cache
from pathlib import Path

__all__ = ["HostLines"]

_GENERATED = ("tmpxft", "cudafe")
"""Prefixes of files that nvcc generates between the program's code and the runtime."""
_LIBRARIES = ("/usr/include/", "/cuda/include/", "/targets/", "/libstdc++", "/include/c++/")
_NOT_OURS = ("libcudart.so", "libcuda.so", "libc.so", "libc-", "libstdc++", "libpthread", "ld-linux", "[")


class HostLines:
    """Source lines of one process.

    Parameters
    ----------
    pid : int

    Attributes
    ----------
    folders : list of Path
        Folders of the sources in the results so far.
    """

    def __init__(self, pid: int) -> None:
        self.folders: list[Path] = []
        self._pid = pid
        self._known: dict[tuple[int, ...], str] = {}
        self._maps: list[tuple[int, int, int, str]] = []

    def line(self, frames: tuple[int, ...], stubs: Container[str] = ()) -> str:
        """``file:line`` of the innermost caller in the program's own code; empty without line information.

        Functions in ``stubs`` (mangled names) are skipped: nvcc generates one per kernel.
        """
        if frames not in self._known:
            self._known[frames] = self._line(frames, stubs)
        return self._known[frames]

    def _line(self, frames: tuple[int, ...], stubs: Container[str]) -> str:
        first = ""
        for address in frames:
            path, offset = self._object(address)
            if not path or any(part in path.rpartition("/")[2] or path.startswith(part) for part in _NOT_OURS):
                continue
            function, line = _addr2line(path, offset - 1)
            file, _, number = line.rpartition(":")
            generated = Path(file).name.startswith(_GENERATED) or function.startswith("__device_stub__")
            if not number.isdigit() or number == "0" or generated or function in stubs:
                continue
            place = f"{Path(file).name}:{number}"
            if not any(part in file for part in _LIBRARIES):
                self._note_folder(Path(file).parent)
                return place
            first = first or place
        return first

    def _note_folder(self, folder: Path) -> None:
        if folder not in self.folders:
            self.folders.append(folder)

    def _object(self, address: int) -> tuple[str, int]:
        """File that contains an address, and the offset from the file's load address."""
        place = self._mapped(address)
        if place is None:
            self._read_maps()  # a library may have been loaded since
            place = self._mapped(address)
        return place or ("", 0)

    def _mapped(self, address: int) -> tuple[str, int] | None:
        for begin, end, load, path in self._maps:
            if begin <= address < end:
                return path, address - load
        return None

    def _read_maps(self) -> None:
        try:
            lines = Path(f"/proc/{self._pid}/maps").read_text().splitlines()
        except OSError:
            return
        loads: dict[str, int] = {}
        self._maps = []
        for line in lines:
            parts = line.split(maxsplit=5)
            if len(parts) < 6 or not parts[5].startswith("/"):
                continue
            begin, end = (int(value, 16) for value in parts[0].split("-"))
            # Addresses in a program with a fixed load address are absolute.
            load = loads.setdefault(parts[5], 0 if begin < 1 << 32 and not _is_shared(parts[5]) else begin)
            if "x" in parts[1]:
                self._maps.append((begin, end, load, parts[5]))


@cache
def _is_shared(path: str) -> bool:
    """Whether an ELF file is position independent (type ET_DYN)."""
    try:
        with open(path, "rb") as file:
            return file.read(18)[16:18] == b"\x03\x00"
    except OSError:
        return True


@cache
def _addr2line(path: str, offset: int) -> tuple[str, str]:
    """Function and ``path:line`` of an address in a file."""
    tool = shutil.which("addr2line")
    if tool is None:
        return "", ""
    command = [tool, "-f", "-e", path, hex(offset)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    function, _, line = done.stdout.partition("\n")
    return function, line.strip().partition(" (")[0]
