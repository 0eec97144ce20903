"""The digest of a kernel's source: its own text, the Python that plans it, and the shared device headers."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from inspect import isfunction
from pathlib import Path

from sdpalab.errors import UserError
from sdpalab.kernels.import_graph import digest_of
from sdpalab.kernels.kernel import Kernel
from sdpalab.kernels.plan import INCLUDE_DIR

__all__ = ["source_digest", "source_text"]

_KERNELS = __name__.rpartition(".")[0]


def source_digest(kernel: Kernel) -> str:
    """Sha256 of the kernel's source text and of the shared device headers, which with the knobs determine its code.

    Raises
    ------
    UserError
        If the source cannot be read.
    """
    return sha256(f"{source_text(kernel)}\0{_headers()}".encode()).hexdigest()


def source_text(kernel: Kernel) -> str:
    """Text of the kernel's own source: CUDA C++ or its Triton function, and the Python of its plans and declarations.

    A digest replaces the Python of a shipped kernel.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    described: str | None = getattr(kernel, "described_source", None)
    if described is not None:  # the kernel's Python is in another process, which has called this function
        return described
    texts = [_text_of(kernel, getattr(kernel, name, None)) for name in ("source", "variant")]
    texts.append(str(getattr(getattr(kernel, "fn", None), "src", "")))
    functions = [getattr(value, "fn", value) for value in vars(kernel).values()]
    written = {function.__code__.co_filename: function.__module__ for function in functions if isfunction(function)}
    shipped = {module for module in written.values() if module.startswith(_KERNELS)}
    texts.append(_digest_of_python(tuple(sorted(shipped))))
    files = (Path(file) for file, module in sorted(written.items()) if module not in shipped)
    return "\0".join((*texts, *(_text_of(kernel, file) for file in files if file.is_file())))


def _text_of(kernel: Kernel, source: str | Path | None) -> str:
    if not isinstance(source, Path):
        return source or ""
    try:
        return source.read_text()
    except OSError as error:
        raise UserError(f"kernel {kernel.name}: cannot read {source}: {error.strerror}") from None


@lru_cache(maxsize=64)
def _digest_of_python(modules: tuple[str, ...]) -> str:
    return digest_of(*modules, within=_KERNELS)


@lru_cache(maxsize=1)
def _headers() -> str:
    """Digest of all shared headers."""
    digest = sha256()
    for path in sorted(INCLUDE_DIR.rglob("*.cuh")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(INCLUDE_DIR)} {len(text)}\n".encode() + text)
    return digest.hexdigest()
