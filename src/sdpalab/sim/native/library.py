"""The native code of this process: compiled on first use, kept in the user's cache, loaded once.

What is kept is one object for the loop, and one for each set of operations that a kernel needed and the process did not
have yet. An object's name is a digest of everything that it depends on: this package's sources, the rules that they
take from the reference engine, LLVM, the processor and its features. Its file begins with the digest of its content: a
file that does not match is made again, never used.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from sdpalab.sim.native.compiler import compile_functions, compile_operations, target_machine, target_name
from sdpalab.sim.native.operation import NativeOperation

__all__ = ["Library", "library"]

_PACKAGE = Path(__file__).parent
_RULES = (
    "types.py",
    "memory.py",
    "ring.py",
    "isa/rounding.py",
    "isa/fp8.py",
    "isa/fragments.py",
    "isa/logic.py",
    "isa/matrix_descriptor.py",
)
"""Files of the reference engine from which code or numbers go into the operations."""


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
        The folder of the cache. Default: ``sim-native`` in ``SDPALAB_CACHE_DIR``, or in the user's cache.
    """

    def __init__(self, cpu: str, features: str, root: Path | None = None) -> None:
        self.cpu, self.features, self.root = cpu, features, root or _cache_root()
        self._addresses: dict[str, int] = {}
        self._lock = threading.RLock()
        machine = target_machine(cpu, features)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._version = _version()

    def address(self, name: str) -> int:
        """The address of a function that has been loaded."""
        return self._addresses[name]

    def loop(self) -> int:
        """The address of :func:`~sdpalab.sim.native.scheduler.run_clusters`."""
        from sdpalab.sim.native.scheduler import run_clusters

        with self._lock:
            if "run_clusters" not in self._addresses:
                build = functools.partial(compile_functions, (run_clusters,), self.cpu, self.features)
                self.load(self.object_of(("run_clusters",), build), ("run_clusters",))
        return self._addresses["run_clusters"]

    def operations(self, operations: Sequence[NativeOperation]) -> list[int]:
        """The addresses of operations, in their order; what is missing is compiled or read from the cache."""
        with self._lock:
            missing = [each for each in operations if each.name not in self._addresses]
            if missing:
                missing.sort(key=lambda each: each.name)
                names = tuple(each.name for each in missing)
                build = functools.partial(compile_operations, missing, self.cpu, self.features)
                self.load(self.object_of(names, build), names)
        return [self._addresses[each.name] for each in operations]

    def load(self, content: bytes, names: Sequence[str]) -> None:
        """Add an object's functions to the process."""
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(content))
        self._engine.finalize_object()
        for name in names:
            self._addresses[name] = self._engine.get_function_address(name)

    def object_of(self, names: Sequence[str], build: Callable[[], bytes]) -> bytes:
        """An object of these functions from the cache, or built and kept there; without room for it, only built."""
        digest = hashlib.sha256("\n".join((self._version, self.cpu, self.features, *names)).encode()).hexdigest()
        path = self.root / f"{digest}.o"
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        if len(content) > 32 and hashlib.sha256(content[32:]).digest() == content[:32]:
            return content[32:]
        if len(names) > 1 or sys.stderr.isatty():
            _progress(f"compiling {len(names)} operations of the simulator (once for this machine)")
        built = build()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root, delete=False) as file:
                file.write(hashlib.sha256(built).digest() + built)
            os.replace(file.name, path)
        except OSError:  # a full or read-only disk costs time, and nothing else
            pass
        return built


def _progress(text: str) -> None:
    """A line on a terminal."""
    if sys.stderr.isatty():
        print(f"simulator: {text}", file=sys.stderr)


def _cache_root() -> Path:
    chosen = os.environ.get("SDPALAB_CACHE_DIR")
    if not chosen:
        import platformdirs

        chosen = str(platformdirs.user_cache_path("sdpalab"))
    return Path(chosen).expanduser().absolute() / "sim-native"


def _version() -> str:
    """A digest of the sources that make the code, and the version of LLVM."""
    digest = hashlib.sha256(f"{llvmlite.__version__} {llvm.llvm_version_info} {sys.version_info[:2]}".encode())
    files = [*sorted(_PACKAGE.rglob("*.py")), *(_PACKAGE.parent / name for name in _RULES)]
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()
