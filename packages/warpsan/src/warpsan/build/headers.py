"""Closure of a translation unit's ``#include`` directives; with it the compiler needs no search path.

NVRTC gets every header in memory, under its included name, and no ``-I``. Consequences:

- the cache key covers exactly the compiler's input;
- the output depends on no directory. NVRTC puts the working directory before each relative file name that it writes
  into PTX and debug information, so a ``#line`` directive gives each header the name ``/NAME`` instead.

The standard headers, which NVRTC lacks, are libcu++ headers under their usual names (:mod:`.standard_headers`). CUDA's
own headers are written for NVRTC and do not use them.

NVRTC identifies an in-memory header by its spelling only. Two files under one spelling are therefore an error; a
compiler with a search path would silently take the first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from warpsan.build.host_headers import is_host_header
from warpsan.build.source import Module
from warpsan.build.standard_headers import standard_header
from warpsan.errors import MachineError, UserError

__all__ = ["Header", "cuda_include_dirs", "header_of", "resolve_headers", "share_headers"]

_SHARED: list[str] = []

_GAP = rb"(?:[ \t]|/\*.*?\*/|\\\r?\n)*"
_DIRECTIVE = re.compile(rb"^%b(?:#|%%:)%binclude\b%b(.*)" % (_GAP, _GAP, _GAP), re.MULTILINE)
_DEFINITION = re.compile(
    rb"^%b(?:#|%%:)%bdefine[ \t]+(\w+)(?:\((\w+)\))?[ \t]+(<[^>\n]+>|\"[^\"\n]+\")" % (_GAP, _GAP), re.MULTILINE
)
"""A macro with at most one parameter that expands to the name of a header."""
_CALL = re.compile(rb"(\w+)(?:[ \t]*\([ \t]*([^()\n]*?)[ \t]*\))?")
MOST_BYTES = 16 << 20
"""Maximum size of a header in bytes."""
_NAME = re.compile(rb'<([^>\n]+)>|"([^"\n]+)"')


@dataclass(frozen=True)
class Header:
    """An in-memory header.

    Attributes
    ----------
    name : str
        Spelling in ``#include``, such as ``cuda_fp16.h``.
    text : bytes
        Text for the compiler: a ``#line`` directive, then the file.
    sha256 : str
        Digest of ``text``.
    includes : tuple of (str, bool)
        Included names; True for the quoted form, which is searched beside the includer first.
    macros : tuple of (str, str, str)
        Definitions of macros that expand to the name of a header: name, parameter (empty without one), and the name
        with its brackets or quotes.
    unreadable : tuple of str
        Operands of ``#include`` that are neither ``<name>`` nor ``"name"``, such as macros.
    own : bool
        Whether it is a user header, outside the shared folders and CUDA.
    cuda : bool
        Whether it is a CUDA header or a standard header.
    """

    name: str
    text: bytes
    sha256: str
    includes: tuple[tuple[str, bool], ...]
    macros: tuple[tuple[str, str, str], ...]
    unreadable: tuple[str, ...]
    own: bool = False
    cuda: bool = False

    @property
    def body(self) -> bytes:
        """Text of the file."""
        return self.text.partition(b"\n")[2]


def _scan(text: bytes) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, str, str], ...], tuple[str, ...]]:
    """Names in all ``#include`` directives, active or not; macros for such names; and all other operands."""
    names: list[tuple[str, bool]] = []
    unreadable: list[str] = []
    for operand in _DIRECTIVE.findall(text):
        name = _name_in(operand)
        if name is None:
            unreadable.append(operand.decode(errors="replace").strip())
        else:
            names.append(name)
    macros = [tuple(part.decode(errors="replace") for part in definition) for definition in _DEFINITION.findall(text)]
    return (
        tuple(dict.fromkeys(names)),
        tuple((name, parameter, body) for name, parameter, body in macros),
        (*dict.fromkeys(unreadable),),
    )


def _name_in(operand: bytes) -> tuple[str, bool] | None:
    """Name in ``<name>`` or ``"name"``, and whether it is quoted; None for any other operand."""
    match = _NAME.match(operand)
    if match is None:
        return None
    angled, quoted = match.groups()
    return (angled or quoted).decode(errors="replace"), quoted is not None


def _expanded(operand: str, macros: Iterable[tuple[str, str, str]]) -> list[tuple[str, bool]]:
    """Possible names of an ``#include`` operand, by every definition of its macro, active or not."""
    call = _CALL.match(operand.encode())
    if call is None:
        return []
    name, argument = (part.decode() if part is not None else "" for part in call.groups())
    bodies = [
        re.sub(rf"\b{parameter}\b", lambda _: argument, body) if parameter and body.startswith("<") else body
        for defined, parameter, body in macros
        if defined == name and bool(parameter) == bool(argument)
    ]
    return [include for body in bodies if (include := _name_in(body.encode())) is not None]


def _load(path: str, name: str, own: bool = False, cuda: bool = False) -> Header:
    with open(path, "rb") as file:
        body = file.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise UserError(f"{path} is included as {name!r} and has more than {MOST_BYTES >> 20} MiB: it is no header")
    return header_of(name, body, own, cuda)


@lru_cache(maxsize=2048)
def header_of(name: str, body: bytes, own: bool = False, cuda: bool = False) -> Header:
    """Header of a file, cached by content: scanned once per process, and again after an edit."""
    line_name = posixpath.normpath("/" + name)
    text = f'#line 1 "{line_name}"\n'.encode() + body
    return Header(name, text, hashlib.sha256(text).hexdigest(), *_scan(body), own, cuda)


_load_cuda = cache(_load)
"""Cached once per process for CUDA's headers (1.7 MB behind ``mma.h``); other headers are read every time."""


@cache
def cuda_include_dirs() -> tuple[str, ...]:
    """Folders of CUDA's device headers: from pip, else from ``CUDA_HOME``, ``CUDA_PATH`` or ``/usr/local/cuda``.

    Returns
    -------
    tuple of str
        The include folder, and the CCCL folder (pip: ``nvidia-cuda-cccl``), which has libcu++, CUB and Thrust, with its
        parent folder.

    Raises
    ------
    MachineError
        If no folder contains ``cuda_fp16.h`` and ``crt/host_defines.h``; the message names the pip packages.
    """
    wheels = importlib.util.find_spec("nvidia")
    roots = wheels.submodule_search_locations if wheels else None
    candidates = [Path(root) / "cu13" / "include" for root in roots or ()]
    candidates += [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates.append(Path("/usr/local/cuda/include"))
    for folder in candidates:
        if (folder / "cuda_fp16.h").is_file() and (folder / "crt" / "host_defines.h").is_file():
            libraries = next((other for other in candidates if (other / "cccl" / "cuda" / "std").is_dir()), None)
            more = (libraries / "cccl", libraries) if libraries else ()
            return tuple(dict.fromkeys(str(path) for path in (folder, *more)))
    raise MachineError("CUDA's headers are not installed: pip install nvidia-cuda-runtime nvidia-cuda-crt")


def share_headers(folder: Path) -> None:
    """Add a header folder for all sources of this process, searched after their own folders."""
    if os.path.abspath(folder) not in _SHARED:
        _SHARED.append(os.path.abspath(folder))


def resolve_headers(module: Module, command: Sequence[str] = ()) -> tuple[Header, ...]:
    """All headers reachable from ``module``, sorted by name, with the macros of the compiler's ``command``.

    A quoted name is searched beside the including file, then in ``module.include_dirs``, the shared folders, and CUDA's
    folders; an angled name likewise without the first. Names without a file are left to NVRTC, which has some built-in
    headers and reports the line of the others. Directives in comments and inactive branches count, and all definitions
    of a macro for a header name: the closure may be too large, never too small.

    Raises
    ------
    UserError
        If an include is an absolute path, a file larger than :data:`MOST_BYTES`, or a macro without a definition as a
        name; or if two files are included under one name.
    MachineError
        If CUDA's headers are needed and not installed.
    """
    own = [*map(os.path.abspath, module.include_dirs), *_SHARED]
    headers: dict[str, Header] = {}
    paths: dict[str, str] = {}
    includes, definitions, unreadable = _scan(module.source.encode())
    macros = [*definitions, *_scan(_definitions(command).encode())[1]]
    # (name, folder of the includer if quoted, includer, whether the includer is a CUDA header)
    pending = [(name, "", module.name, False) for name, _ in includes]
    computed = [(operand, "", module.name, False) for operand in unreadable]
    seen: set[tuple[str, str, bool]] = set()
    expanded_by = 0, 0
    while pending or expanded_by != (len(computed), len(macros)):
        if not pending:  # repeat until no include and no definition is new
            expanded_by = len(computed), len(macros)
            pending = _computed(computed, macros, headers)
            continue
        name, beside, includer, cuda = pending.pop()
        if (name, beside, cuda) in seen:
            continue
        seen.add((name, beside, cuda))
        if os.path.isabs(name):
            raise UserError(
                f"{includer} includes the absolute path {name}: use a name, and include_dirs for its folder"
            )
        path = _find(name, [beside]) if beside else None
        from_cuda = cuda
        if path is None:
            path, from_cuda = _find(name, own), False
        shared = tuple(f"{folder}{os.sep}" for folder in _SHARED)
        own_file = path is not None and not cuda and not path.startswith(shared)
        if path is None and (cuda or not is_host_header(name)):
            path, from_cuda = _find(name, cuda_include_dirs()), True
        standard = standard_header(name) if path is None and not cuda else None
        if path is None and standard is None:
            continue
        if name in paths:
            if path is not None and paths[name] != path and headers[name].text != _load(path, name).text:
                raise UserError(f"two different files are included as {name!r}, one of them by {includer}: rename one")
            continue
        if path is None:
            path, from_cuda, header = "", True, header_of(name, (standard or "").encode(), cuda=True)
        else:
            header = _load_cuda(path, name, cuda=True) if from_cuda else _load(path, name, own_file)
        paths[name], headers[name] = path, header
        macros += header.macros
        folder = os.path.dirname(path)
        pending += [(inner, folder if quoted else "", name, from_cuda) for inner, quoted in header.includes]
        computed += [(operand, folder, name, from_cuda) for operand in header.unreadable]
    for operand, _, includer, cuda in computed:  # CUDA headers select by macros of the compiler, defined in one of them
        if not cuda and not _expanded(operand, macros):
            raise UserError(
                f'{includer} has #include {operand}: write <name> or "name", since the build must see every source'
            )
    return tuple(headers[name] for name in sorted(headers))


def _definitions(command: Sequence[str]) -> str:
    """Macros of a command line, as directives."""
    options = (re.fullmatch(r"(?:-D|--define-macro=)([^=]*)=?(.*)", option) for option in command)
    return "\n".join(f"#define {match[1]} {match[2]}" for match in options if match)


def _find(name: str, folders: Iterable[str]) -> str | None:
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return os.path.normpath(path)
    return None


def _computed(
    operands: Iterable[tuple[str, str, str, bool]],
    macros: Sequence[tuple[str, str, str]],
    headers: Mapping[str, Header],
) -> list[tuple[str, str, str, bool]]:
    """Possible names of ``#include`` operands that are macros, by the definitions so far."""
    return [
        (name, folder if quoted else "", includer, cuda)
        for operand, folder, includer, cuda in operands
        for named, quoted in _expanded(operand, macros)
        for name in (_paths(named, headers) if cuda else [named])
    ]


def _paths(name: str, headers: Mapping[str, Header]) -> list[str]:
    """Possible names of a path with Thrust macros, such as ``__THRUST_HOST_SYSTEM_ROOT/copy.h``."""
    part = re.search(r"\b_[A-Z_]{4,}\b", name)
    if part is None:
        return [name]
    definition = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+%b[ \t]+([\w/]+)[ \t]*$" % part[0].encode(), re.MULTILINE)
    values = {each.decode() for header in headers.values() for each in definition.findall(header.text)}
    return [path for value in sorted(values - {part[0]}) for path in _paths(name.replace(part[0], value), headers)]
