"""Messages between the replacement CUDA runtime and this process: requests and replies.

A request has its size, the name of the call, the return addresses of its callers, and the arguments. A reply has its
size, the status, pages of device memory to open or close, the results, and the output of kernels (``cudart.c``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from warpsan.program.calls import FORMATS

__all__ = ["Arguments", "CallReply", "Page", "Request", "receive", "send"]

Page = tuple[int, int, int]
"""Address, bytes, and access: 0 closed, 1 read, 2 read and write."""


class Arguments:
    """Reader of argument bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        self._at += size
        return self._data[self._at - size : self._at]

    def word(self) -> int:
        """The next 64-bit word."""
        return int.from_bytes(self.take(8), "little")

    def words(self, count: int) -> tuple[int, ...]:
        """The next 64-bit words."""
        return struct.unpack(f"<{count}Q", self.take(8 * count))

    def ints(self, count: int) -> tuple[int, ...]:
        """The next unsigned 32-bit integers."""
        return struct.unpack(f"<{count}I", self.take(4 * count))

    def counted(self) -> bytes:
        """The next bytes, preceded by their number."""
        return self.take(self.ints(1)[0])

    def rest(self) -> bytes:
        """All remaining bytes."""
        return self.take(len(self._data) - self._at)


@dataclass
class Request:
    """A call of the program.

    Attributes
    ----------
    name : str
        Name without the suffix for the per-thread default stream.
    per_thread : bool
        Whether the name had the suffix.
    frames : tuple of int
        Return addresses, innermost first.
    arguments : Arguments
    words : list of int, str or bytes
        The input arguments of a call with a format.
    """

    name: str
    per_thread: bool
    frames: tuple[int, ...]
    arguments: Arguments
    words: list[int | str | bytes] = field(default_factory=list)

    def number(self, place: int) -> int:
        """The word at an index, unsigned."""
        value = self.words[place]
        assert isinstance(value, int)
        return value

    def int32(self, place: int) -> int:
        """The word at an index as a C ``int``, with an undefined upper half."""
        return (self.number(place) + (1 << 31)) % (1 << 32) - (1 << 31)

    def text(self, place: int) -> str:
        """The string at an index."""
        value = self.words[place]
        assert isinstance(value, str)
        return value


@dataclass
class CallReply:
    """The reply to a call."""

    status: int = 0
    results: Sequence[bytes] = ()
    pages: Sequence[Page] = ()
    printed: str = ""


def receive(connection: socket.socket) -> Request | None:
    """Receive the next call; None at the end of the program."""
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
