"""File locks for synchronization between processes."""

from __future__ import annotations

import errno
import platform

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["lock_file"]


def lock_file(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open file until it is closed or the process ends.

    Raises
    ------
    BlockingIOError
        If another process holds the lock, without ``wait``.
    OSError
        If the file system or the operating system does not support locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, f"{platform.system()} has no usable file locks; Linux has")
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
