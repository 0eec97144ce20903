"""The wire between the judge and a process: JSON headers and raw arrays over two pipes, without pickle.

A message is an 8-byte little-endian length, that many bytes of JSON, then the bytes of each array that the JSON lists.
Both directions have a deadline, because a hung candidate neither writes nor reads.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["Channel", "WireClosed", "WireError", "WireTimeout", "serve"]

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}
MAX_HEADER = 1 << 24
POLL_SECONDS = 0.25
_FOREVER = 1e9
_MOST_BYTES = 1 << 36


def _plain_value(value: Any) -> Any:
    """JSON value of an object: its own ``to_dict()``, or a dict or list of its items."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return dict(value) if isinstance(value, Mapping) else list(value)


class WireError(Exception):
    """The other side sent an invalid message."""


class WireClosed(WireError):
    """The other side has ended or closed its end."""


class WireTimeout(WireError):
    """The deadline passed."""


class Channel:
    """One end of the wire.

    Parameters
    ----------
    read_fd, write_fd : int
        Pipe ends; they are set to non-blocking and closed by :meth:`close`.
    alive : callable
        Called while waiting: a process that died may leave the pipe open in one of its children.
    """

    def __init__(self, read_fd: int, write_fd: int, alive: Callable[[], bool] = lambda: True) -> None:
        self._read_fd, self._write_fd, self._alive = read_fd, write_fd, alive
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None, *, seconds: float) -> None:
        """Send a message within ``seconds``.

        Raises
        ------
        WireTimeout, WireClosed
        """
        listed = [[name, array.dtype.name, list(array.shape)] for name, array in (arrays or {}).items()]
        text = json.dumps({**header, "arrays": listed}, default=_plain_value).encode()
        deadline = time.monotonic() + seconds
        self._write(struct.pack("<Q", len(text)) + text, deadline)
        for array in (arrays or {}).values():
            self._write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, deadline)

    def receive(self, *, seconds: float, max_bytes: int) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the next message, if it arrives within ``seconds`` and its arrays have at most ``max_bytes``.

        Raises
        ------
        WireTimeout, WireClosed
        WireError
            If the data is not a message.
        """
        deadline = time.monotonic() + seconds
        (length,) = struct.unpack("<Q", self._read(8, deadline))
        if length > MAX_HEADER:
            raise WireError(f"header of {length} bytes")
        try:
            header = json.loads(bytes(self._read(length, deadline)))
            listed = [(str(name), DTYPES[dtype], tuple(map(int, shape))) for name, dtype, shape in header["arrays"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WireError(f"header that cannot be read ({type(error).__name__})") from None
        sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in listed]
        if any(n < 0 for _, _, shape in listed for n in shape) or sum(sizes) > max_bytes:
            raise WireError(f"message of {sum(sizes)} bytes where at most {max_bytes} belong")
        arrays = {
            name: np.frombuffer(self._read(size, deadline), dtype).reshape(shape)
            for (name, dtype, shape), size in zip(listed, sizes, strict=True)
        }
        return header, arrays

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read_fd)
        os.close(self._write_fd)

    def _wait(self, fd: int, event: int, deadline: float) -> None:
        poller = select.poll()
        poller.register(fd, event)
        alive = True
        while (left := deadline - time.monotonic()) > 0:
            if poller.poll(1000 * min(POLL_SECONDS, left)):
                return
            # Read once more after the process ended: its last message may still be in the pipe.
            if not alive:
                raise WireClosed("the process ended")
            alive = self._alive()
        raise WireTimeout("the deadline passed")

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            self._wait(self._read_fd, select.POLLIN, deadline)
            try:
                count = os.readv(self._read_fd, [view[filled:]])
            except BlockingIOError:
                continue
            if not count:
                raise WireClosed("the pipe was closed")
            filled += count
        return data

    def _write(self, data: bytes | memoryview, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._write_fd, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._write_fd, view[: 1 << 20]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise WireClosed("the pipe was closed") from None


Answer = Callable[[Mapping[str, Any], Mapping[str, Array]], tuple[dict[str, Any], dict[str, Array]]]


def serve(read_fd: int, write_fd: int, answer: Answer) -> NoReturn:
    """Send the ready message, then answer orders until the other side closes the wire or ends.

    Each answer carries the ``number`` of its order. The process then exits at once, without exit handlers. Ctrl-C ends
    only the other side.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel, code = Channel(read_fd, write_fd), 1
    try:
        channel.send({"ready": True}, seconds=_FOREVER)
        while True:
            order, arrays = channel.receive(seconds=_FOREVER, max_bytes=_MOST_BYTES)
            reply, outputs = answer(order, arrays)
            channel.send({**reply, "number": order["number"]}, outputs, seconds=_FOREVER)
    except WireClosed:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
