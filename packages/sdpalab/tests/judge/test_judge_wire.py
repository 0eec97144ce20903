"""The wire: bit for bit what was sent, and a clear refusal of anything else."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from sdpalab.judge.sandbox.wire import Channel, WireClosed, WireError, WireTimeout


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


def test_what_is_sent_arrives_bit_for_bit(pipe: tuple[int, int]) -> None:
    channel = Channel(*pipe)
    arrays = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3).T,
        "brain": np.array([[np.nan, -0.0]], ml_dtypes.bfloat16),
        "none": np.empty((0, 4), np.uint8),
    }
    channel.send({"n": 1}, arrays, seconds=5)
    header, received = channel.receive(seconds=5, max_bytes=100)
    assert header["n"] == 1
    assert list(received) == list(arrays)
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        assert received[name].shape == array.shape
        assert received[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"arrays": [["o", "float64", [1]]]}',
        b'{"arrays": [["o", "object", [1]]]}',
        b'{"arrays": [["o", "uint8", [-4]]]}',
        b'{"arrays": [["o", "uint8", [-4, -4]]]}',
        b'{"arrays": [["o", "uint8", [1000]]]}',
        b'{"arrays": [["o", "uint8", "x"]]}',
        b'{"arrays": [["o", "uint8"]]}',
        b"\xff\xfe",
        b"[" * 100000,
    ],
)
def test_what_is_no_message_is_refused(pipe: tuple[int, int], header: bytes) -> None:
    os.set_blocking(pipe[1], False)
    data = struct.pack("<Q", len(header)) + header
    assert os.write(pipe[1], data[:65536]) > 0
    channel = Channel(*pipe)
    with pytest.raises(WireError) as caught:
        channel.receive(seconds=0.5, max_bytes=100)
    assert len(data) > 65536 or type(caught.value) is WireError


def test_a_header_of_any_size_is_not_accepted(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], struct.pack("<Q", 1 << 62))
    with pytest.raises(WireError, match="header of"):
        Channel(*pipe).receive(seconds=1, max_bytes=100)


def test_nothing_waits_beyond_its_deadline(pipe: tuple[int, int]) -> None:
    channel = Channel(*pipe)
    started = time.monotonic()
    with pytest.raises(WireTimeout):
        channel.receive(seconds=0.3, max_bytes=0)
    with pytest.raises(WireTimeout):
        channel.send({}, {"o": np.zeros(1 << 20, np.uint8)}, seconds=0.3)
    assert time.monotonic() - started < 5.0


def test_a_dead_or_closed_end_is_noticed(pipe: tuple[int, int]) -> None:
    with pytest.raises(WireClosed, match="process ended"):
        Channel(*pipe, alive=lambda: False).receive(seconds=30, max_bytes=0)
    os.write(pipe[1], struct.pack("<Q", 100) + json.dumps({}).encode())
    os.close(pipe[1])
    writer = os.open(os.devnull, os.O_WRONLY)
    with pytest.raises(WireClosed, match="closed"):
        Channel(pipe[0], writer).receive(seconds=30, max_bytes=0)
    os.close(writer)
