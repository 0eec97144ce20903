"""A candidate in a form that can be sent to a worker without loading it here."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sdpalab.errors import UserError
from sdpalab.judge.sandbox.confinement import SOURCE_SUFFIXES, kernel_files
from sdpalab.kernels import userfile
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.registry import get, is_shipped
from sdpalab.kernels.source import source_digest
from sdpalab.kernels.triton_kernel import bare_triton_reason
from sdpalab.kernels.userfile import is_user_file
from warpsan.build import FOREIGN, Cache

__all__ = [
    "Candidate",
    "CandidateSpec",
    "file_of",
    "foreign_builds_in",
    "foreign_cache",
    "is_file",
    "prepare",
    "source_of",
]

Candidate: TypeAlias = "str | Kernel | Callable[..., Any]"
"""A registry name, ``FILE.py[:NAME]``, ``module:NAME``, a CudaKernel or TritonKernel, or a function on torch tensors,
``fn(q, k, v, *, scale, causal) -> out``, with parameters such as ``window_size=(-1, -1)``, ``softcap=0.0``,
``attn_mask=None`` or ``enable_gqa=False`` for further features; without ``causal`` it supports no causal mask."""


def foreign_cache(digest: str) -> Path:
    """Build cache of an untrusted source with that digest, within the user's own unless :func:`foreign_builds_in`."""
    return (_foreign_folder or Cache().root / FOREIGN) / digest[:32]


_foreign_folder: Path | None = None


@contextlib.contextmanager
def foreign_builds_in(folder: Path) -> Iterator[None]:
    """Context in which builds of untrusted sources are kept in this folder."""
    global _foreign_folder
    before, _foreign_folder = _foreign_folder, folder
    try:
        yield
    finally:
        _foreign_folder = before


def is_file(spec: str) -> bool:
    """Whether ``spec`` is a user's file: ``FILE.py[:NAME]``, ``FILE.cu`` or ``FILE.ptx``."""
    return is_user_file(spec) or spec.endswith((".cu", ".ptx"))


def file_of(spec: str) -> Path:
    """The file that ``spec`` names."""
    return userfile.file_of(spec) if is_user_file(spec) else Path(spec)


@dataclass(frozen=True)
class CandidateSpec:
    """A candidate to send to a worker. ``kind`` is ``registry``, ``file`` or ``module``, with the name in ``spec``, or
    ``pickle``."""

    kind: str
    spec: str
    pickle: npt.NDArray[np.uint8]

    def cache(self, include_dirs: Sequence[Path] = ()) -> Path:
        """Build cache: the user's own for a shipped kernel, otherwise a cache for exactly this source.

        An untrusted source may compromise the process that compiles it, and must not affect other kernels.
        """
        if self.kind == "registry":
            return Cache().root
        named = self.kind in ("file", "module")
        return foreign_cache(source_of(self.spec, include_dirs) if named else sha256(self.pickle.tobytes()).hexdigest())

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that its processes may read, beside this Python and the lab: a file's folder; for an object of this
        process the working folder, from which its modules are imported."""
        if self.kind == "file":
            return kernel_files(file_of(self.spec))
        here = Path.cwd()
        return (here,) if self.kind in ("pickle", "module") and str(here) in map(os.path.abspath, sys.path) else ()


def source_of(spec: str, include_dirs: Sequence[Path] = ()) -> str:
    """Digest of the source of a named kernel.

    The digest of a user's file covers the Python and CUDA sources in its folder, which it may read, and all files below
    the header folders; the digest of a shipped kernel is :func:`sdpalab.kernels.source.source_digest`; an importable
    function is identified by its name alone.

    Raises
    ------
    UserError
        If the kernel or file does not exist.
    """
    if not is_file(spec):
        return sha256(spec.encode()).hexdigest() if ":" in spec else source_digest(get(spec))
    path, digest = file_of(spec), sha256()
    try:
        files = {folder: set(folder.rglob("*")) for folder in include_dirs}
        files[path.parent] = {path, *path.parent.iterdir()}
        for folder, inside in files.items():
            for each in sorted(each for each in inside if each == path or each.suffix in SOURCE_SUFFIXES):
                text = each.read_bytes()
                digest.update(f"{each.relative_to(folder)} {len(text)}\n".encode() + text)
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def prepare(candidate: Candidate) -> CandidateSpec:
    """Make ``candidate`` ready to send. Names and files are loaded in the worker only; nothing is imported here.

    Raises
    ------
    UserError
        If the object is not a candidate, the file does not exist, or the object cannot be pickled.
    """
    nothing = np.empty(0, np.uint8)
    if isinstance(candidate, str):
        if not is_user_file(candidate):
            if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", candidate):
                return CandidateSpec("module", candidate, nothing)
            return CandidateSpec("registry", candidate, nothing)
        if not (file := file_of(candidate)).is_file():
            raise UserError(f"{file} does not exist or is not a file; a kernel is given as NAME or FILE.py[:NAME]")
        return CandidateSpec("file", candidate, nothing)
    if isinstance(candidate, Kernel) and is_shipped(candidate):
        return CandidateSpec("registry", candidate.name, nothing)
    if reason := bare_triton_reason(candidate):
        raise UserError(reason)
    if not (isinstance(candidate, Kernel) or callable(candidate)):
        raise UserError(
            "a candidate is a registry name, FILE.py[:NAME], a CudaKernel, a TritonKernel or a callable, "
            f"not {type(candidate).__name__}"
        )
    return CandidateSpec("pickle", "", np.frombuffer(_pickled(candidate), np.uint8))


def _pickled(candidate: object) -> bytes:
    import cloudpickle

    parts = vars(candidate).values() if isinstance(candidate, Kernel) else [candidate]
    modules = {getattr(part, "__module__", None) for part in parts if callable(part)}
    # A worker cannot import these by name, so their functions are sent as code.
    unimportable = [sys.modules[name] for name in modules if name in sys.modules and not _importable(name)]
    for module in unimportable:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(candidate))
    except Exception as error:
        raise UserError(
            f"the candidate cannot be sent to a worker process ({type(error).__name__}: {error}); "
            "give it as FILE.py:NAME instead"
        ) from error
    finally:
        for module in unimportable:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(module: str) -> bool:
    """True if ``import module`` in a fresh process with this one's ``sys.path`` would find the same file."""
    if module == "__main__":
        return True  # cloudpickle already sends it by value
    top = module.partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top)
    loaded = getattr(sys.modules.get(top), "__file__", None)
    return spec is not None and (loaded is None or spec.origin == loaded)
