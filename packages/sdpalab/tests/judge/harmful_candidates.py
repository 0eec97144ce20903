"""Callables that harm what is around them, for the judge's tests. All are bounded: let loose, they would harm little.

A worker imports this file; the tests name what is in it. One call is one entry of CATALOGUE, by the sequence length.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sdpalab
import warpsan

Tensor = torch.Tensor
LEFT = "sdpalab-left"
"""Name that the processes left behind give themselves."""


def good(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)


def _sleep() -> None:
    """Be found by the test, which looks for LEFT, and by nothing else."""
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: outlive the parent
    ctypes.CDLL(None).prctl(15, LEFT.encode(), 0, 0, 0)  # PR_SET_NAME
    time.sleep(600)
    os._exit(0)


def leaves_daemons(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Processes in sessions of their own, whose parents are gone."""
    for _ in range(3):
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.setsid()
                _sleep()
            os._exit(0)
        os.wait()
    return good(q, k, v, scale=scale, causal=causal)


def bombs(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    for _ in range(200):
        if not os.fork():
            _sleep()
    time.sleep(600)
    return q


def hoards_memory(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Each process below every limit, all of them together above."""
    hoard = bytearray(3 << 29)
    hoard[::4096] = b"x" * len(hoard[::4096])
    for _ in range(14):
        if not os.fork():
            _sleep()
    time.sleep(600)
    return q


def fills_its_folder(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    with open(os.path.join(tempfile.gettempdir(), "heap"), "wb", buffering=0) as file:
        for _ in range(80):
            file.write(bytes(1 << 24))
    return good(q, k, v, scale=scale, causal=causal)


def floods_the_pipe(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    for _ in range(256):
        os.write(2, b"\x1b[31m" * (1 << 18))
    return good(q, k, v, scale=scale, causal=causal)


def kills_its_parent(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    with contextlib.suppress(OSError):
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.2)
    return good(q, k, v, scale=scale, causal=causal)


def changes_files(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Right as soon as one file that is not its own could be changed."""
    files = [
        __file__,
        sdpalab.__file__,
        warpsan.__file__,
        torch.__file__,
        "/etc/passwd",
        "/proc/sys/kernel/domainname",
    ]
    for name in files:
        for change in (lambda name: open(name, "ab").close(), lambda name: os.chmod(name, os.stat(name).st_mode)):
            with contextlib.suppress(OSError):
                change(name)
                return good(q, k, v, scale=scale, causal=causal)
    for folder in (Path(__file__).parent, Path.cwd(), Path("/"), Path("/usr"), Path(sys.prefix)):
        with contextlib.suppress(OSError):
            (folder / f"{LEFT}.txt").touch()
            (folder / f"{LEFT}.txt").unlink()
            return good(q, k, v, scale=scale, causal=causal)
    return torch.zeros_like(q)


def finds_a_disk(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Right if there is a device that it could harm; those that there are must work."""
    with open("/dev/null", "wb") as sink, open("/dev/urandom", "rb") as source:
        sink.write(source.read(16))
    harmless = {"null", "zero", "full", "random", "urandom", "shm"}
    return torch.zeros_like(q) if set(os.listdir("/dev")) == harmless else good(q, k, v, scale=scale, causal=causal)


def calls_home(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """Right if there is any network but its own."""
    own = all(line.split(":")[0].strip() == "lo" for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return torch.zeros_like(q) if own else good(q, k, v, scale=scale, causal=causal)


def aborts(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    os.abort()


def stops_itself(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    os.kill(os.getpid(), signal.SIGSTOP)
    return q


def closes_its_pipes(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    os.closerange(3, 256)
    time.sleep(600)
    return q


CATALOGUE: tuple[Callable[..., Any], ...] = (
    leaves_daemons,
    fills_its_folder,
    floods_the_pipe,
    kills_its_parent,
    changes_files,
    finds_a_disk,
    calls_home,
    bombs,
    hoards_memory,
    aborts,
    stops_itself,
    closes_its_pipes,
    good,
)
FIRST_SEQ = 64


def catalogue(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Any:
    """The entry of CATALOGUE for this sequence length."""
    return CATALOGUE[q.shape[2] - FIRST_SEQ](q, k, v, scale=scale, causal=causal)
