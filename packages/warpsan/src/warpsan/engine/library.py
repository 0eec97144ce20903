"""The native code of this process: compiled on first use, kept in the user's cache, loaded once.

The cache keeps one object for the loop and all other code that is translated from Python (:mod:`.runtime`), and one for
each operation; an operation's calls of translated functions are linked when it is loaded. A kernel with new operations
takes some milliseconds for each of those, once. If the first object is missing, another process compiles it, while this
one compiles the operations. If several processes need the same object, one compiles it.

An object's name is a digest of all its inputs: the simulator's sources, LLVM, the processor and its features. Its file
begins with the digest of its content: a file that does not match is built again, and never used. A process whose
sources have changed since it imported them neither reads nor keeps objects, because the digest does not describe its
code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from warpsan.engine.compiler import compile_functions, compile_operation, target_machine, target_name
from warpsan.engine.operation import NativeOperation
from warpsan.engine.sources import changed_since_import, sources_digest
from warpsan.engine.translate import symbol
from warpsan.folders import cache_root, shared_root
from warpsan.host.cpus import usable_cpus

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Library", "compile_runtime", "library"]

_OPERATION_SECONDS, _RUNTIME_SECONDS = 10.0, 60.0
"""Longest wait for another process's object in seconds: many times the compile time, as the process may have been
stopped."""
_LOOK_SECONDS = 0.01

_BESIDE = f"import sys; sys.path[:] = sys.argv[4:]; from {__name__} import compile_runtime; compile_runtime()"
"""Program of the process that compiles the runtime; its arguments are those of a library and the import path."""


@functools.cache
def library() -> Library:
    """The library of this process."""
    return Library(*target_name())


class Library:
    """Native functions by their names.

    Parameters
    ----------
    cpu, features : str
        The processor to compile for, as LLVM names it.
    root : Path, optional
        The folder of the cache. Default: :func:`warpsan.folders.cache_root`; a second folder is only read.
    """

    def __init__(self, cpu: str, features: str, root: Path | None = None) -> None:
        self.cpu, self.features, self._root = cpu, features, root
        self._addresses: dict[str, int] = {}
        self._runtime = False
        self._beside: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        self._locks: dict[tuple[Path, int], int] = {}
        machine = target_machine(cpu, features)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._version = _version()
        self._keeps = not changed_since_import()

    @property
    def root(self) -> Path:
        """The folder of the cache; that of the environment may change in a copy of the process."""
        return self._root or cache_root()

    def address(self, name: str) -> int:
        """The address of a loaded function."""
        return self._addresses[name]

    def loop(self) -> int:
        """The address of :func:`~warpsan.engine.scheduler.run_clusters`."""
        from warpsan.engine.scheduler import run_clusters

        with self._lock:
            self._load_runtime()
        return self._addresses[symbol(run_clusters)]

    def prepare(self) -> None:
        """Start to compile the runtime in another process, if it is missing in the cache.

        Without a second core, a cache or a process, it is compiled on first use.
        """
        with self._lock:
            if self._runtime or self._beside or not self._keeps or usable_cpus() < 2:
                return
            with self._building("runtime", 0.0) as alone:
                if not alone or self._kept("runtime") is not None:
                    return
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                if not os.access(self.root, os.W_OK):
                    return
                command = [sys.executable, "-c", _BESIDE, self.cpu, self.features, str(self.root), *sys.path]
                nowhere = subprocess.DEVNULL
                self._beside = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
            except OSError:
                return
            _progress()

    def wait(self) -> None:
        """Wait for the process of :meth:`prepare`."""
        with self._lock:
            if self._beside:
                self._beside.wait()

    def runtime(self) -> bytes:
        """The object of all translated functions that have symbols."""
        from warpsan.engine.runtime import runtime_functions

        def build() -> bytes:
            _progress()
            return compile_functions(runtime_functions(), self.cpu, self.features)

        content = self.object_of("runtime", build, _RUNTIME_SECONDS)
        assert content is not None, "it waits, and then builds"
        return content

    def _load_runtime(self) -> None:
        if not self._runtime:
            from warpsan.engine.runtime import runtime_functions

            self.wait()
            self.load({"runtime": self.runtime()}, [symbol(each) for each in runtime_functions()])
            self._runtime = True

    def operations(self, operations: Sequence[NativeOperation]) -> list[int]:
        """The addresses of operations, in their order; missing ones are compiled or read from the cache."""
        with self._lock:
            missing = {each.name: each for each in operations if each.name not in self._addresses}
            objects: dict[str, bytes] = {}
            for seconds in (0.0, _OPERATION_SECONDS):  # operations that other processes compile come last
                for name in missing.keys() - objects.keys():
                    build = functools.partial(compile_operation, missing[name], self.cpu, self.features)
                    content = self.object_of(name, build, seconds)
                    if content is not None:
                        objects[name] = content
            self._load_runtime()
            if missing:
                self.load(objects, list(missing))
        return [self._addresses[each.name] for each in operations]

    def load(self, objects: Mapping[str, bytes], names: Sequence[str]) -> None:
        """Add objects with functions of these names to the process."""
        for content in objects.values():
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(content))
        self._engine.finalize_object()
        for name in names:
            self._addresses[name] = self._engine.get_function_address(name)

    def path_of(self, name: str) -> Path:
        """The path of an object."""
        digest = hashlib.sha256("\n".join((self._version, self.cpu, self.features, name)).encode()).hexdigest()
        return self.root / f"{digest}.o"

    def object_of(self, name: str, build: Callable[[], bytes], seconds: float) -> bytes | None:
        """An object from the cache, or a new one that is kept there; without space for it, only built.

        While another process builds it, this one waits for at most the given seconds, and then builds it itself, or,
        for 0 seconds, returns None.
        """
        if not self._keeps:
            return build()
        content = self._kept(name)
        if content is not None:
            return content
        with self._building(name, seconds) as alone:
            if not alone and not seconds:
                return None
            content = self._kept(name)  # another process has built it
            if content is None:
                content = build()
                self._keep(name, content)
            return content

    @contextlib.contextmanager
    def _building(self, name: str, seconds: float) -> Iterator[bool]:
        """Whether no other process builds an object meanwhile; waits for that, for at most the given seconds.

        A lock is one byte of a file, which need not exist; the end of a process releases its locks. Without a folder,
        or on a file system without locks, each process proceeds alone.
        """
        place, deadline = int(self.path_of(name).name[:12], 16), time.monotonic() + seconds
        locks, alone = -1, True
        with contextlib.suppress(OSError):
            locks = self._open_locks()
            while not (alone := _locked(locks, place)) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
        try:
            yield alone
        finally:
            if alone and locks >= 0 and fcntl is not None:
                with contextlib.suppress(OSError):
                    fcntl.lockf(locks, fcntl.LOCK_UN, 1, place)

    def _open_locks(self) -> int:
        """The file of locks of this process, which stays open: closing it would release all locks."""
        key = self.root, os.getpid()
        if key not in self._locks:
            self.root.mkdir(parents=True, exist_ok=True)
            self._locks[key] = os.open(self.root / "locks", os.O_RDWR | os.O_CREAT, 0o666)
        return self._locks[key]

    def _keep(self, name: str, content: bytes) -> None:
        """Keep an object in the cache."""
        try:
            with tempfile.NamedTemporaryFile(dir=self.root, delete=False) as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(file.name, self.path_of(name))
        except OSError:  # a full or read-only disk only takes time
            pass

    def _kept(self, name: str) -> bytes | None:
        """An object from the cache; None if it is missing or damaged."""
        for root in filter(None, (self.root, None if self._root else shared_root())):
            with contextlib.suppress(OSError):
                content = (root / self.path_of(name).name).read_bytes()
                if len(content) > 32 and hashlib.sha256(content[32:]).digest() == content[:32]:
                    return content[32:]
        return None


def compile_runtime() -> None:
    """Compile the runtime into the cache; the program's arguments are those of a :class:`Library`."""
    cpu, features, root = sys.argv[1:4]
    Library(cpu, features, Path(root)).runtime()


def _locked(file: int, place: int) -> bool:
    """Lock a byte of a file, if locks are supported; False if another process has it."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except BlockingIOError:
        return False
    return True


def _progress() -> None:
    """Print a line on a terminal."""
    if sys.stderr.isatty():
        print("simulator: compiling its engine (once for this machine)", file=sys.stderr)


def _version() -> str:
    """The files of the simulator, and of its compiler."""
    return f"{sources_digest()} {llvmlite.__version__} {llvm.llvm_version_info} {sys.version_info[:2]}"
