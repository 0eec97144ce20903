"""The tarball of a bundle: one gzip file, of chunks that are compressed on their own and several at a time.

The bytes follow from the members alone: neither the number of CPUs nor the order in which chunks become ready changes
them.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from types import TracebackType

from sdpalab.evidence.verifier.archive import MAGIC, tar_end, tar_member

__all__ = ["Packing", "pack"]

LEVEL = 4
SAMPLE = 2048
"""Bytes of an array of which the way to compress it is chosen."""
MOST_IN_CHUNK = 1 << 20
"""A chunk of small files is closed when it has so many bytes; each array is a chunk of its own."""


class Packing:
    """Packs the members of a bundle under the directory ``top``, a part of them before all are there.

    A context manager: what has not been compressed when it is left never is.
    """

    def __init__(self, top: str) -> None:
        from sdpalab.sim.cpus import usable_cpus

        self._top = top
        self._pool = ThreadPoolExecutor(usable_cpus())
        self._members: dict[str, bytes] = {}
        self._ready: list[tuple[str, Future[bytes]]] = []

    def __enter__(self) -> Packing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, members: Mapping[str, bytes]) -> None:
        """Begin to compress ``members``: all files of each folder that is among them."""
        self._members.update(members)
        for names in _chunks(members):
            self._ready.append((names[0], self._pool.submit(self._compress, names)))

    def blob(self) -> bytes:
        """The canonical ``.tar.gz`` of all that was added.

        The tar has its members sorted, no times, no owners. A gzip stream may be changed in ways that its checksum does
        not see, so the header's extra field holds the sha256 of all that follows it; other tools ignore that field.
        """
        crc, size = 0, 0
        for name in sorted(self._members):
            for piece in tar_member(self._top, name, self._members[name]):
                crc, size = zlib.crc32(piece, crc), size + len(piece)
        end = tar_end(size)
        last = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
        chunks = [future.result() for _, future in sorted(self._ready, key=lambda each: each[0])]
        chunks += [last.compress(end) + last.flush(), struct.pack("<II", zlib.crc32(end, crc), size + len(end))]
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        return b"".join((MAGIC, digest.digest(), *chunks))

    def _compress(self, names: list[str]) -> bytes:
        content = self._members[names[0]]
        array = names[0].startswith("arrays/")
        packer = _compressor(_strategy(content) if array else zlib.Z_DEFAULT_STRATEGY)
        pieces = (piece for name in names for piece in tar_member(self._top, name, self._members[name]))
        # A full flush ends at a byte, and what follows does not refer to what was before.
        return b"".join((*map(packer.compress, pieces), packer.flush(zlib.Z_FULL_FLUSH)))


def pack(top: str, members: Mapping[str, bytes]) -> bytes:
    """The canonical ``.tar.gz`` of ``members`` under the directory ``top``: see :meth:`Packing.blob`."""
    with Packing(top) as packing:
        packing.add(members)
        return packing.blob()


def _chunks(members: Mapping[str, bytes]) -> Iterator[list[str]]:
    """The members in order, those of a chunk together."""
    for folder, names in groupby(sorted(members), lambda name: name.partition("/")[0]):
        chunk, size = list[str](), 0
        for name in names:
            chunk.append(name)
            size += len(members[name])
            if folder == "arrays" or size >= MOST_IN_CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def _strategy(array: bytes) -> int:
    """Whether repeated parts are looked for: random numbers have none, and the search takes most of the time."""
    begin = max(len(array) - SAMPLE, 0) // 2
    sample, sizes = array[begin : begin + SAMPLE], []
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_DEFAULT_STRATEGY):
        packer = _compressor(strategy)
        sizes.append(len(packer.compress(sample) + packer.flush()))
    return zlib.Z_HUFFMAN_ONLY if sizes[0] <= 1.02 * sizes[1] else zlib.Z_DEFAULT_STRATEGY


def _compressor(strategy: int) -> zlib._Compress:
    return zlib.compressobj(LEVEL, zlib.DEFLATED, -15, 8, strategy)
