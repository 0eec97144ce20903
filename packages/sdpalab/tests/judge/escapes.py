"""A confined process that tries to get out: ``escapes.main(read_fd, write_fd)``, an attempt an order.

Each attempt says what it got: an empty text if it was refused, and otherwise what it could do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sdpalab.judge.sandbox.wire import serve

_libc = ctypes.CDLL(None, use_errno=True)
_IO_URING_SETUP, _SOCKET_X86 = 425, 41


def connects(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(path)
        return f"connected to {path}"


def opens_sockets(_: str) -> str:
    families = ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG")
    opened = []
    for name in families:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(getattr(socket, name), kind).close()
                opened.append(name)
            except OSError as error:
                if error.errno != errno.EPERM:
                    opened.append(f"{name}: {error}")
    return " ".join(opened)


def makes_datagram_pairs(_: str) -> str:
    for end in socket.socketpair():  # streams, which Python's own modules use
        end.close()
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return "a pair of datagrams, which can be sent anywhere"


def calls_by_another_number(_: str) -> str:
    """The same call through x86_64's third interface."""
    if platform.machine() != "x86_64":
        return ""
    return "a socket" if _libc.syscall(_SOCKET_X86 | 0x40000000, 1, 1, 0) >= 0 else ""


def rings(_: str) -> str:
    """io_uring opens sockets without a system call."""
    number = _libc.syscall(_IO_URING_SETUP, 1, ctypes.create_string_buffer(256))
    return f"io_uring {number}" if number >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS) else ""


def reads(path: str) -> str:
    return Path(path).read_text()


def lists(path: str) -> str:
    return " ".join(os.listdir(path))


def writes(path: str) -> str:
    Path(path).write_text("changed")
    return f"wrote {path}"


def sees_processes(_: str) -> str:
    """Others than itself and the guard."""
    return " ".join(name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid()))


def traces(pid: str) -> str:
    """The guard, by its number here, and another process, by its number outside."""
    found = [f"ptrace {each}" for each in (1, int(pid)) if _libc.ptrace(16, each, 0, 0) == 0]
    for each in (1, int(pid)):
        words = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
        _libc.process_vm_readv(each, words, 1, words, 1, 0)
        found += [] if ctypes.get_errno() == errno.EPERM else [f"memory of {each}"]
    return " ".join(found)


def makes_namespaces(_: str) -> str:
    return "" if _libc.unshare(0x10000000) else "a user namespace"


def hides_memory(_: str) -> str:
    """Memory that is no process's: a file in memory, and a System V segment."""
    held = []
    try:
        os.ftruncate(os.memfd_create("hoard"), 64 << 20)
        held.append("memfd")
    except OSError:
        pass
    if _libc.shmget(0, ctypes.c_size_t(64 << 20), 0o1600) >= 0:
        held.append("shm")
    return " ".join(held)


def maps_memory(_: str) -> str:
    try:
        bytearray(32 << 30)
    except MemoryError:
        return ""
    return "32 GiB"


def forks(most: str) -> str:
    """As many processes as it can, which wait; the number if none of them was refused."""
    children = []
    try:
        for _ in range(int(most)):
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    except BlockingIOError:
        return ""
    finally:
        for child in children:
            os.kill(child, 9)
        for child in children:
            os.waitpid(child, 0)
    return most


def works(path: str) -> str:
    """Needs of an honest process: threads, programs, a folder of its own, a pipe; and its cache, if it has one."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout == "42\n"
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("text")
    if path:
        Path(path, "kept").write_text("kept")
    return "works"


ATTEMPTS: Mapping[str, Callable[[str], str]] = {
    each.__name__: each
    for each in (
        *(connects, opens_sockets, makes_datagram_pairs, calls_by_another_number, rings, reads, lists, writes),
        *(sees_processes, traces, makes_namespaces, hides_memory, maps_memory, forks, works),
    )
}


def main(read_fd: int, write_fd: int) -> None:
    serve(read_fd, write_fd, _answer)


def _answer(order: Mapping[str, Any], arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        return {"got": ATTEMPTS[order["try"]](order["on"])}, {}
    except OSError as error:
        return {"got": "", "refusal": str(error)}, {}
