"""The archives of ``gpu_suite.sh``: few files for another machine, and their use by a later call.

At most eight files of at most 16 MiB: ``summary.txt``, ``summary.json``, ``records.tar.gz`` (what is to be committed,
as ``evidence/<gpu>/...``) and ``logs.tar.gz`` (logs, how each part ended, bundles, profiles). What does not fit into
one archive goes into ``records.2.tar.gz`` and so on; what fits nowhere is left out, and the summary says so.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MOST_BYTES", "MOST_FILES", "Packed", "pack", "unpack"]

MOST_FILES, MOST_BYTES = 8, 16 << 20
"""Of all files for another machine."""

_SUMMARIES = 2
_OVERHEAD = 1536
"""Bytes that a member adds to an archive at most, compressed: its header, its padding."""

RECORDS = ("evidence",)
LOGS = ("parts", "logs", "verdicts", "profile", "doctor.json")
"""Entries of the working folder in each kind of archive, the most valuable first."""


@dataclass
class Packed:
    """The written archives, and a sentence for each file that is in none."""

    archives: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def pack(work: Path, out: Path, *, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> Packed:
    """Write the archives of ``work`` into ``out``, each in one step, and remove those that are no longer needed.

    Records come first: they have all the archives but one if they need them, and logs what is left.
    """
    packed = Packed()
    archives = most_files - _SUMMARIES
    for kind, entries in (("records", RECORDS), ("logs", LOGS)):
        room = archives - 1 if kind == "records" else archives
        volumes, left_out = _volumes(work, list(_files(work, entries)), most_bytes, room)
        archives -= len(volumes)
        packed.left_out += left_out
        for number, members in enumerate(volumes, 1):
            path = out / (f"{kind}.tar.gz" if number == 1 else f"{kind}.{number}.tar.gz")
            _write(work, members, path)
            packed.archives.append(path)
    for path in out.glob("*.tar.gz"):
        if path not in packed.archives and path.name.partition(".")[0] in ("records", "logs"):
            path.unlink()
    return packed


def unpack(out: Path, work: Path) -> list[str]:
    """Copy missing files from the archives of an earlier call in ``out`` to ``work``; returns the names of the
    archives.

    An archive that cannot be read is skipped: its parts are done again.
    """
    read = []
    for path in sorted(out.glob("*.tar.gz")):
        if path.name.partition(".")[0] not in ("records", "logs"):
            continue
        try:
            with tarfile.open(path) as archive:
                for member in archive.getmembers():
                    if not (work / member.name).exists():
                        archive.extract(member, work, filter="data")
        except (OSError, EOFError, zlib.error, tarfile.TarError):
            continue
        read.append(path.name)
    return read


def _files(work: Path, entries: Iterable[str]) -> Iterable[Path]:
    """The files to pack, in order. Of the judge's bundles only the tarballs: their folders hold the same."""
    for entry in entries:
        top = work / entry
        paths = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
        for path in paths:
            if path.name.endswith(".draft") or path.is_symlink():
                continue
            if entry != "verdicts" or path.name.endswith(".tar.gz"):
                yield path


def _volumes(work: Path, files: list[Path], most_bytes: int, room: int) -> tuple[list[list[Path]], list[str]]:
    """Divide files among at most ``room`` archives: each into the first in which it fits."""
    volumes: list[list[Path]] = []
    sizes: list[int] = []
    left_out: list[str] = []
    for path in files:
        size = _compressed_bytes(path) + _OVERHEAD
        name = path.relative_to(work)
        if size > most_bytes:
            left_out.append(f"{name} is left out: {size:,} bytes compressed, and an archive takes {most_bytes:,}")
            continue
        place = next((n for n, used in enumerate(sizes) if used + size <= most_bytes), len(volumes))
        if place == room:
            left_out.append(f"{name} is left out: the archives are full")
            continue
        if place == len(volumes):
            volumes.append([])
            sizes.append(_OVERHEAD)
        volumes[place].append(path)
        sizes[place] += size
    return volumes, left_out


def _compressed_bytes(path: Path) -> int:
    """An upper bound of a file's size in an archive: its size when compressed alone.

    What is compressed already stays as large as it is; bundles are tens of megabytes, and this is done often.
    """
    if path.suffix == ".gz":
        return path.stat().st_size + path.stat().st_size // 1000
    squeezer, total = zlib.compressobj(6), 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            total += len(squeezer.compress(chunk))
    return total + len(squeezer.flush())


def _write(work: Path, members: list[Path], path: Path) -> None:
    """An archive without names of users and times of the clock beside those of the files."""
    draft = path.with_name(f".{path.name}.draft")

    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(draft, "w:gz", compresslevel=6) as archive:
        for member in members:
            archive.add(member, str(member.relative_to(work)), filter=anonymous)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)
