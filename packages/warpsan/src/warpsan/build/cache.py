"""Content-keyed store of build results: atomic, verified on every read, safe under concurrent builders and kills.

An entry is a folder ``NAME`` with its files and ``SHA256SUMS``, whose first line is the entry's full key. It is written
under ``tmp/``, synced, and renamed into place: it is either complete or absent. An entry that does not match its
digests is moved to ``quarantine/`` and rebuilt. A lock is a flock on ``locks/NAME``; the operating system releases it
when its process ends.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from warpsan.folders import cache_folder
from warpsan.locks import lock_file

__all__ = ["FOREIGN", "Cache", "ForwardedCache", "Stored", "key_of"]

_log = logging.getLogger(__name__)
_SUMS = "SHA256SUMS"
FOREIGN = "foreign"
"""Folder within the user's cache for the caches of untrusted sources."""
Files = Mapping[str, bytes]


def key_of(*parts: bytes | str) -> str:
    """Sha256 over ``parts``, each preceded by its length, so that different lists never have the same bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class _Corrupt(Exception):
    """Content of an entry differs from the written content."""


@dataclass(frozen=True)
class Stored:
    """Files of an entry.

    Attributes
    ----------
    files : mapping of str to bytes
    hit : bool
        Whether the files were read from the cache and matched their digests.
    problem : str
        Reason why the cache was unusable, such as ``No space left on device``; empty otherwise.
    """

    files: Files
    hit: bool
    problem: str = ""


class Cache:
    """A store in one folder.

    Parameters
    ----------
    root : Path, optional
        Default: :func:`warpsan.folders.cache_folder`.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root).expanduser().absolute() if root else cache_folder()

    def load(self, name: str, key: str) -> Files | None:
        """Read the files of an entry; None unless they match its digests and ``key``. The store is not changed."""
        try:
            return self._read(name, key)
        except _Corrupt:
            return None

    def get_or_make(self, name: str, key: str, make: Callable[[], Files]) -> Stored:
        """Read the files of the entry ``name``; call ``make`` and store its result if they are missing or corrupt.

        Parameters
        ----------
        name : str
            Readable, valid as a file name, and unique for ``key``.
        key : str
            Digest of all inputs of the files; checked in full on reading.
        make : callable
            Called at most once, by one process at a time. Its exceptions propagate, and nothing is stored.

        Returns
        -------
        Stored
            If the folder is unusable (no space, no permission): the result of ``make``, with the reason in ``problem``.
        """
        files = self.load(name, key)
        if files is not None:
            return Stored(files, hit=True)
        problem = ""
        with ExitStack() as held:
            try:
                held.enter_context(self._lock(name))
                files = self._load_or_quarantine(name, key)
            except OSError as error:
                problem = error.strerror or str(error)
            if files is not None:
                return Stored(files, hit=True)
            new_files = make()
            if not problem:
                try:
                    self._write(name, key, new_files)
                except OSError as error:
                    problem = error.strerror or str(error)
        if problem:
            _log.warning("the cache in %s cannot be used: %s", self.root, problem)
        return Stored(new_files, hit=False, problem=problem)

    def prune(self, most_bytes: int) -> int:
        """Remove the oldest entries until the rest has at most ``most_bytes``.

        Returns
        -------
        int
            Removed bytes. Entries that cannot be removed stay.
        """
        entries = []
        for sums in (*self.root.glob(f"*/{_SUMS}"), *self.root.glob(f"{FOREIGN}/*/*/{_SUMS}")):
            with suppress(OSError):  # another process removed it
                size = sum(path.stat().st_size for path in sums.parent.iterdir())
                entries.append((sums.stat().st_mtime_ns, sums.parent, size))
        excess = sum(size for *_, size in entries) - most_bytes
        removed = 0
        for _, entry, size in sorted(entries):
            if removed >= excess:
                break
            cache = Cache(entry.parent)
            with suppress(OSError), cache._lock(entry.name):
                aside = tempfile.mkdtemp(prefix=f"{entry.name}.", dir=cache._folder("tmp"))
                os.rename(entry, os.path.join(aside, entry.name))  # atomic, also during a read of the entry
                shutil.rmtree(aside)
                removed += size
        return removed

    def _read(self, name: str, key: str) -> Files | None:
        """Read the files of an entry; None if the folder does not exist.

        Raises _Corrupt if a file, the list of files or the key differs from the written content.
        """
        folder = self.root / name
        try:
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        except FileNotFoundError:
            return None
        except (IsADirectoryError, NotADirectoryError) as error:
            raise _Corrupt(f"{error.strerror}") from None
        sums = files.pop(_SUMS, b"")
        if sums != _sums(key, files):
            raise _Corrupt("a file, the list of files or the key differs from the written content")
        return files

    def _load_or_quarantine(self, name: str, key: str) -> Files | None:
        try:
            return self._read(name, key)
        except _Corrupt as error:
            shelf = self._folder("quarantine")
            aside = tempfile.mkdtemp(prefix=f"{name}.", dir=shelf)
            os.rename(self.root / name, os.path.join(aside, name))
            _log.warning("cache entry %s is corrupt (%s): moved to %s and built again", name, error, aside)
            return None

    def _write(self, name: str, key: str, files: Files) -> None:
        """Store an entry; the caller holds its lock."""
        shelf = self._folder("tmp")
        for leftover in shelf.glob(f"{name}.*"):  # left by a killed writer: this process holds its lock
            shutil.rmtree(leftover, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=shelf))
        try:
            for file_name, data in {**files, _SUMS: _sums(key, files)}.items():
                with open(draft / file_name, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            _sync_folder(draft)
            os.rename(draft, self.root / name)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync_folder(self.root)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        descriptor = os.open(self._folder("locks") / name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock_file(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class ForwardedCache(Cache):
    """A cache that is read-only for this process; the parent process stores new entries.

    Attributes
    ----------
    new_builds : list of (str, str, mapping)
        Name, key and files of each new entry.
    """

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self.new_builds: list[tuple[str, str, Files]] = []

    def get_or_make(self, name: str, key: str, make: Callable[[], Files]) -> Stored:
        """As :meth:`Cache.get_or_make`, without writing."""
        files = self.load(name, key)
        if files is not None:
            return Stored(files, hit=True)
        files = make()
        self.new_builds.append((name, key, files))
        return Stored(files, hit=False)


def _sums(key: str, files: Files) -> bytes:
    lines = [f"key {key}"] + [f"{hashlib.sha256(files[name]).hexdigest()}  {name}" for name in sorted(files)]
    return ("\n".join(lines) + "\n").encode()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
