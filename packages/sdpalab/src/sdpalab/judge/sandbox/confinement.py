"""Contents of a confinement: the files that a confined process sees, and the system calls that it may make.

The guard (:mod:`sdpalab.judge.sandbox.guard`) applies both; here they are plain data, computed by the process that
starts the guard.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shutil
import struct
import sys
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path

from sdpalab.installation import IMPORT_FOLDERS
from warpsan.build import MOST_BYTES

__all__ = ["bubblewrap_command", "call_filter", "is_shared_folder", "kernel_files", "view_of"]

View = list[tuple[str, str, str]]
"""``link``, ``read``, ``write`` or ``device``; the file; and its path in the confined process."""

SOURCE_SUFFIXES = (".py", ".cu", ".cuh", ".h", ".hpp", ".inl", ".ptx")
"""File name suffixes of a kernel's sources."""

_FROM_ABOVE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"(\.\./[^"\n]+)"', re.MULTILINE)
"""An include of a file above the folder of its source."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_SETTINGS = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "passwd",
    "group",
    "nsswitch.conf",
    "localtime",
    "alternatives",
)
"""Files of ``/etc`` that the loader, the C library and Python read."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
"""Devices without data: root could write to a disk device, even if it is mounted read-only."""
_GPU_DEVICES = ("/dev/nvidia*", "/dev/dxg")
_SHARED = ("/", "/tmp", "/var", "/var/tmp", "/dev/shm", "/run", "/var/run", "/etc", "/home", "/mnt", "/media", "/srv")
"""Folders shared by many owners: only sources in them are visible, never the whole folder."""

_PACKAGES = tuple(str(Path(folder, name)) for folder, name in zip(IMPORT_FOLDERS, ("sdpalab", "warpsan"), strict=True))

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of the machines with a table of system calls here."""
_CALLS: dict[str, tuple[int, int]] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "listen": (50, 201),
    "shmget": (29, 194),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
}
"""Refused system calls, with their numbers on x86_64 and aarch64: sockets, other processes, memory that no limit
counts, namespaces and mounts, and kernel interfaces that attention does not need."""
_NEEDED_BY_CUDA = frozenset({"memfd_create", "userfaultfd"})
_SOCKETPAIR, _CLONE, _CLONE3 = (53, 199), (56, 220), (435, 435)
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_X32 = 0x40000000
"""Bit of the system call numbers of x86_64's x32 interface, which the table does not list."""
_EPERM, _ENOSYS = 1, 38


def call_filter(*, gpu: bool = False) -> bytes:
    """A seccomp program for this machine that filters the system calls of a confined process.

    Sockets of all families are refused with EPERM; ``socketpair``, which Python's own modules use, may create stream
    and sequenced pairs only, because a datagram socket of a pair can send to any address. ``clone3`` is reported as
    missing, so the C library uses ``clone``, whose flags a filter can read. A call of another architecture is refused.

    Returns
    -------
    bytes
        Instructions of 8 bytes (``struct sock_filter``); empty for an unknown architecture, where no filter is
        installed. Source: seccomp(2), the kernel's ``filter.h``.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return b""
    column = list(_ARCHITECTURES).index(machine)
    load, equal, at_least, any_bit, mask, give = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    allow, refuse, missing = 0x7FFF0000, 0x00050000 | _EPERM, 0x00050000 | _ENOSYS
    code = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURES[machine]), (give, 0, 0, refuse), (load, 0, 0, 0)]
    if machine == "x86_64":
        code += [(at_least, 0, 1, _X32), (give, 0, 0, refuse)]
    code += [(equal, 0, 1, _CLONE3[column]), (give, 0, 0, missing)]
    for name, numbers in _CALLS.items():
        if not (gpu and name in _NEEDED_BY_CUDA):
            code += [(equal, 0, 1, numbers[column]), (give, 0, 0, refuse)]
    flags, kind = 16, 24  # offsets of the first and the second argument in struct seccomp_data
    code += [(equal, 0, 4, _CLONE[column]), (load, 0, 0, flags), (any_bit, 0, 1, _NEW_NAMESPACES)]
    code += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    code += [(equal, 0, 5, _SOCKETPAIR[column]), (load, 0, 0, kind), (mask, 0, 0, 0xF)]
    code += [(equal, 2, 0, 1), (equal, 1, 0, 5), (give, 0, 0, refuse), (give, 0, 0, allow)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def view_of(
    imports: Iterable[str], *, read: Sequence[Path] = (), write: Sequence[Path] = (), gpu: bool = False
) -> View:
    """Files that a confined process sees: the system's programs and libraries, this Python, and the named files.

    Parameters
    ----------
    imports : iterable of str
        The import path, without the working folder and shared folders such as the user's home.
    read, write : sequence of Path
        Readable files and folders, and folders that are also writable.
    gpu : bool
        Whether the GPU devices are visible.
    """
    wanted = [*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS), *glob("/etc/python3*"), "/sys/devices/system"]
    python = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.dirname(_real(sys.executable))))
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    tools = (os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH"))
    named = (*python, *libraries, *tools, *(path for path in imports if path != os.getcwd()))
    wanted += [path for path in (*named, *map(str, read)) if path and not is_shared_folder(Path(path))]
    wanted += [*_PACKAGES, *(["/sys"] if gpu else [])]
    shown: dict[str, tuple[str, str, str]] = {}
    for path in map(os.path.abspath, wanted):
        if os.path.islink(path) and path in _SYSTEM:
            shown[path] = "link", os.readlink(path), path
        elif os.path.exists(path):
            for place in (path, _real(path)):
                shown.setdefault(place, ("read", _real(path), place))
    for path in (os.path.abspath(each) for each in write):
        shown[path] = "write", _real(path), path
    devices = [f"/dev/{name}" for name in _DEVICES]
    devices += [path for pattern in _GPU_DEVICES for path in glob(pattern)] if gpu else []
    shown |= {path: ("device", path, path) for path in devices if os.path.exists(path)}
    # Parents come first: a later mount of a parent would hide its children.
    own = [shown[path] for path in sorted(shown) if not _shown_by_parent(path, shown)]
    return sorted(own, key=lambda each: each[2].count("/"))


def _shown_by_parent(path: str, shown: dict[str, tuple[str, str, str]]) -> bool:
    """Whether a folder above ``path`` shows the same file in the same way."""
    kind, source, _ = shown[path]
    return any(
        str(parent) in shown
        and shown[str(parent)][0] == kind
        and os.path.join(shown[str(parent)][1], os.path.relpath(path, parent)) == source
        for parent in Path(path).parents
    )


def is_shared_folder(path: Path) -> bool:
    """Whether a folder is the user's home, a folder above it, or shared by many owners, such as ``/tmp``."""
    place, homes = Path(_real(path)), [Path(_real(Path.home()))]
    with contextlib.suppress(KeyError):
        import pwd  # imported here: only POSIX has it

        homes.append(Path(_real(pwd.getpwuid(os.getuid()).pw_dir)))
    shared = {*map(Path, _SHARED), Path(os.environ.get("XDG_RUNTIME_DIR") or "/run")}
    return place in shared or any(place == home or place in home.parents for home in homes)


def kernel_files(file: Path) -> tuple[Path, ...]:
    """Files that a user's kernel may read: its folder (of a shared folder only the sources directly in it), and the
    sources outside that these include by ``"../NAME"``."""
    folder = file.absolute().parent
    beside = [each for each in sorted(folder.iterdir()) if each.suffix in SOURCE_SUFFIXES and each.is_file()]
    inside = beside if is_shared_folder(folder) else [folder]
    return (*inside, *_included_from_above(beside))


def _included_from_above(sources: Sequence[Path]) -> list[Path]:
    """Files that sources include by a name that begins with ``..``, and files that these include."""
    above: dict[Path, None] = {}
    waiting = list(sources)
    while waiting:
        source = waiting.pop()
        if source.stat().st_size > MOST_BYTES:
            continue
        for name in _FROM_ABOVE.findall(source.read_bytes()):
            path = Path(os.path.normpath(source.parent / os.fsdecode(name)))
            if path not in above and path.suffix in SOURCE_SUFFIXES and path.is_file() and not path.is_symlink():
                above[path] = None
                waiting.append(path)
    return list(above)


def bubblewrap_command(view: View, private: str, *, same: Sequence[str] = ()) -> list[str]:
    """The options of bubblewrap for the same confinement, without filter and program; empty if it is not installed.

    ``private`` is the private folder, and ``same`` lists further paths for folders in memory.
    """
    program = _bubblewrap()
    if program is None:
        return []
    command = [program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for place in (private, *same):
        command += ["--tmpfs", place]
    options = {"link": "--symlink", "read": "--ro-bind", "write": "--bind", "device": "--dev-bind"}
    for kind, source, target in view:
        command += [options[kind], source, target]
    here = os.getcwd()
    return [*command, "--proc", "/proc", "--dir", here, "--remount-ro", "/", "--chdir", here]


@functools.cache
def _bubblewrap() -> str | None:
    return shutil.which("bwrap")


def _real(path: str | Path) -> str:
    return os.path.realpath(path)
