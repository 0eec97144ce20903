"""Messages between the stand-in of the CUDA runtime and this process: what a call sends, and its reply.

A request is its size, the name of the call, the return addresses of its callers, and the arguments; a reply its size,
the status, pages of device memory to open or to close, the results, and what kernels printed (``cudart.c``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from warpsan.program.calls import FORMATS

__all__ = ["Arguments", "CallReply", "Page", "Request", "receive", "send"]

Page = tuple[int, int, int]
"""Address, bytes, and 0 closed, 1 to read, 2 to read and write."""


class Arguments:
    """The bytes of arguments, read one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        self._at += size
        return self._data[self._at - size : self._at]

    def word(self) -> int:
        """A 64-bit word."""
        return int.from_bytes(self.take(8), "little")

    def words(self, count: int) -> tuple[int, ...]:
        """Several 64-bit words."""
        return struct.unpack(f"<{count}Q", self.take(8 * count))

    def ints(self, count: int) -> tuple[int, ...]:
        """Several 32-bit integers without a sign."""
        return struct.unpack(f"<{count}I", self.take(4 * count))

    def counted(self) -> bytes:
        """Bytes behind their number."""
        return self.take(self.ints(1)[0])

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data) - self._at)


@dataclass
class Request:
    """A call of the program.

    Attributes
    ----------
    name : str
        Without the suffix that says that its default stream is that of the thread.
    per_thread : bool
        Whether it had that suffix.
    frames : tuple of int
        Return addresses, the innermost first.
    arguments : Arguments
    words : list of int, str or bytes
        The arguments that are no results, of a call with a format.
    """

    name: str
    per_thread: bool
    frames: tuple[int, ...]
    arguments: Arguments
    words: list[int | str | bytes] = field(default_factory=list)

    def number(self, place: int) -> int:
        """The word at a place, without a sign."""
        value = self.words[place]
        assert isinstance(value, int)
        return value

    def int32(self, place: int) -> int:
        """The word at a place as a C ``int``, whose upper half is not defined."""
        return (self.number(place) + (1 << 31)) % (1 << 32) - (1 << 31)

    def text(self, place: int) -> str:
        """The string at a place."""
        value = self.words[place]
        assert isinstance(value, str)
        return value


@dataclass
class CallReply:
    """What a call returns."""

    status: int = 0
    results: Sequence[bytes] = ()
    pages: Sequence[Page] = ()
    printed: str = ""


def receive(connection: socket.socket) -> Request | None:
    """The next call; None at the end of the program."""
    size = _receive_all(connection, 4)
    data = _receive_all(connection, int.from_bytes(size, "little")) if size is not None else None
    if data is None:
        return None
    head = Arguments(data)
    full = head.counted().decode()
    name = full.removesuffix("_ptsz").removesuffix("_ptds")
    frames = head.words(head.take(1)[0])
    request = Request(name, name != full, frames, head)
    for letter in FORMATS.get(full, ""):
        if letter == "o":
            head.take(1)
        elif letter in "wiS":
            request.words.append(head.word())
        else:
            data = head.counted()
            request.words.append(data.decode(errors="replace") if letter == "z" else data)
    return request


def send(connection: socket.socket, reply: CallReply) -> None:
    """Send a reply."""
    parts = [struct.pack("<iI", reply.status, len(reply.pages))]
    parts += [struct.pack("<QQI", *page) for page in reply.pages]
    parts.append(struct.pack("<I", len(reply.results)))
    for result in reply.results:
        parts += [len(result).to_bytes(4, "little"), result]
    text = reply.printed.encode()
    parts += [len(text).to_bytes(4, "little"), text]
    body = b"".join(parts)
    connection.sendall(len(body).to_bytes(4, "little") + body)


def _receive_all(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        part = connection.recv_into(view[at:])
        if not part:
            return None
        at += part
    return bytes(data)
