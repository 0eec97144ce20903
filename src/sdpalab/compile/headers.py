"""The closure of a translation unit's ``#include`` directives, found here so that the compiler needs no search path.

Every header is handed to NVRTC in memory, under the name by which it is included, and NVRTC gets no ``-I``. Hence:

- the cache key covers exactly what the compiler can read;
- the output depends on no directory. NVRTC puts the working directory before each relative file name that it writes
  into PTX and debug information, so a ``#line`` directive gives each header the name ``/NAME`` instead.

NVRTC identifies an in-memory header by its spelling alone. Two files included under one spelling are therefore an
error, where a compiler with a search path would silently take the first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sdpalab.errors import MachineError, UserError
from sdpalab.kernels.plan import INCLUDE_DIR, Module

__all__ = ["Header", "cuda_include_dirs", "resolve_headers"]

_GAP = rb"(?:[ \t]|/\*.*?\*/|\\\r?\n)*"
_DIRECTIVE = re.compile(rb"^%b(?:#|%%:)%binclude\b%b(.*)" % (_GAP, _GAP, _GAP), re.MULTILINE)
_NAME = re.compile(rb'<([^>\n]+)>|"([^"\n]+)"')


@dataclass(frozen=True)
class Header:
    """One in-memory header.

    Attributes
    ----------
    name : str
        The spelling by which it is included, such as ``cuda_fp16.h``.
    text : bytes
        What the compiler gets: a ``#line`` directive, then the file.
    sha256 : str
        Digest of ``text``.
    includes : tuple of (str, bool)
        What it includes in turn; True for the quoted form, which looks beside the includer first.
    unreadable : tuple of str
        Operands of ``#include`` that are neither ``<name>`` nor ``"name"``.
    """

    name: str
    text: bytes
    sha256: str
    includes: tuple[tuple[str, bool], ...]
    unreadable: tuple[str, ...]


def _scan(text: bytes) -> tuple[tuple[tuple[str, bool], ...], tuple[str, ...]]:
    """Names in all ``#include`` directives, live or not, and the operands that are not names."""
    names: list[tuple[str, bool]] = []
    unreadable: list[str] = []
    for operand in _DIRECTIVE.findall(text):
        match = _NAME.match(operand)
        if match is None:
            unreadable.append(operand.decode(errors="replace").strip())
        else:
            angled, quoted = match.groups()
            names.append(((angled or quoted).decode(errors="replace"), quoted is not None))
    return tuple(dict.fromkeys(names)), tuple(unreadable)


def _load(path: str, name: str) -> Header:
    with open(path, "rb") as file:
        body = file.read()
    line_name = posixpath.normpath("/" + name)
    text = f'#line 1 "{line_name}"\n'.encode() + body
    return Header(name, text, hashlib.sha256(text).hexdigest(), *_scan(body))


_load_cuda = cache(_load)
"""CUDA's own headers, 1.7 MB behind ``mma.h``, are read once a process; the lab's and the user's every time."""


@cache
def cuda_include_dirs() -> tuple[str, ...]:
    """Where CUDA's device headers are: from pip, else from ``CUDA_HOME``, ``CUDA_PATH`` or ``/usr/local/cuda``.

    Returns
    -------
    tuple of str
        The include folder, and its ``cccl`` folder where there is one (pip: ``nvidia-cuda-cccl``).

    Raises
    ------
    MachineError
        If no folder holds ``cuda_fp16.h`` and ``crt/host_defines.h``; names the pip packages that have them.
    """
    wheels = importlib.util.find_spec("nvidia")
    roots = wheels.submodule_search_locations if wheels else None
    candidates = [Path(root) / "cu13" / "include" for root in roots or ()]
    candidates += [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates.append(Path("/usr/local/cuda/include"))
    for folder in candidates:
        if (folder / "cuda_fp16.h").is_file() and (folder / "crt" / "host_defines.h").is_file():
            return tuple(str(path) for path in (folder, folder / "cccl") if path.is_dir())
    raise MachineError("CUDA's headers are not installed: pip install nvidia-cuda-runtime nvidia-cuda-crt")


def resolve_headers(module: Module) -> tuple[Header, ...]:
    """Every header that ``module`` can reach, sorted by name.

    A quoted name is looked for beside the file that includes it, then in ``module.include_dirs``, then among the lab's
    headers, then among CUDA's; an angled one likewise without the first. A name that is nowhere is left to NVRTC, which
    has a few built in, and whose error message names the line. Directives in comments and in branches not taken count:
    the closure may be too large, never too small.

    Raises
    ------
    UserError
        If an include is an absolute path or computed by a macro, or if two files are included by the same name.
    MachineError
        If CUDA's headers are needed and not installed.
    """
    own = [os.path.abspath(folder) for folder in (*module.include_dirs, INCLUDE_DIR)]
    headers: dict[str, Header] = {}
    paths: dict[str, str] = {}
    includes, unreadable = _scan(module.source.encode())
    _reject_unreadable(unreadable, module.name)
    # (name, folder of the includer if quoted, includer, whether the includer is one of CUDA's headers)
    pending = [(name, "", module.name, False) for name, _ in includes]
    seen: set[tuple[str, str]] = set()
    while pending:
        name, beside, includer, cuda = pending.pop()
        if (name, beside) in seen:
            continue
        seen.add((name, beside))
        if os.path.isabs(name):
            raise UserError(
                f"{includer} includes the absolute path {name}: use a name, and include_dirs for its folder"
            )
        path = _find(name, [beside]) if beside else None
        if path is None:
            path, cuda = _find(name, own), False
        if path is None:
            path, cuda = _find(name, cuda_include_dirs()), True
        if path is None:
            continue
        if name in paths:
            if paths[name] != path and headers[name].text != _load(path, name).text:
                raise UserError(f"two different files are included as {name!r}, one of them by {includer}: rename one")
            continue
        header = (_load_cuda if cuda else _load)(path, name)
        if not cuda:
            _reject_unreadable(header.unreadable, name)
        paths[name], headers[name] = path, header
        folder = os.path.dirname(path)
        pending += [(inner, folder if quoted else "", name, cuda) for inner, quoted in header.includes]
    return tuple(headers[name] for name in sorted(headers))


def _find(name: str, folders: Iterable[str]) -> str | None:
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return os.path.normpath(path)
    return None


def _reject_unreadable(operands: tuple[str, ...], includer: str) -> None:
    if operands:
        raise UserError(
            f'{includer} has #include {operands[0]}: write <name> or "name", since the build must see every source'
        )
