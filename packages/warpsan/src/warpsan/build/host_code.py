"""Removal of host code from a source, because NVRTC compiles only device code.

A ``.cu`` file for nvcc has a ``main``, a launcher or a binding beside its kernels, and includes host headers. Functions
without ``__device__`` or ``__global__`` become blanks in the compiled text, so line numbers stay; host headers become
empty. Constexpr functions, constants and types stay where device code uses them (CUDA C++ Programming Guide, "C++
Language Support").

A source that NVRTC would accept unchanged is not modified.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain

from warpsan.build.declarations import Declaration, Kind, declarations_of
from warpsan.build.headers import Header, header_of, resolve_headers
from warpsan.build.host_headers import IMPLICIT_HEADERS, implicit_includes, is_host_header
from warpsan.build.source import Module, Source
from warpsan.build.source_text import Lexed, Macro, Macros, PlainText, blanked, lexed, shadow_of, words

__all__ = [
    "DEFAULT_DEVICE",
    "DeviceCode",
    "SetAside",
    "SourceFile",
    "device_code",
    "file_name",
    "files_of",
    "full_name",
    "set_aside",
]

DEFAULT_DEVICE = "-default-device"
_DEFAULT_DEVICE = (DEFAULT_DEVICE, "--device-as-default-execution-space")
_HEADER_NAME = re.compile(r"\s*(?:<([^>\n]+)>|\"([^\"\n]+)\")")
_DEVICE_MACRO = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+\w+.*__(?:device|global|host)__.*$", re.MULTILINE)
_OF_MATH = re.compile(rf"\b({IMPLICIT_HEADERS['math.h']})\b")
_ARITHMETIC = frozenset(
    {"constexpr", "const", "static", "inline", "int", "unsigned", "long", "float", "double", "bool", "true", "false"}
)
"""Words of a constant without dependencies."""
_SHOWN = 4
_MAIN_FILE = ""


@dataclass(frozen=True)
class SetAside:
    """Removed host code of a build, by name, in source order.

    Attributes
    ----------
    functions, headers, declarations : tuple of str
        Functions and macros, includes, and other declarations used only by them.
    missing : tuple of str
        Members of ``headers`` that were not found and are not known host headers.
    """

    functions: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    declarations: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.functions or self.headers or self.declarations)

    def __str__(self) -> str:
        """One line, such as ``set aside: 2 host functions (main, launch), 1 host header (iostream)``."""
        kinds = (
            ("host function", self.functions),
            ("host header", self.headers),
            ("other declaration", self.declarations),
        )
        listed = [f"{len(names)} {kind}{'s' * (len(names) > 1)} ({_some(names)})" for kind, names in kinds if names]
        return f"set aside: {', '.join(listed)}" if listed else ""

    def to_dict(self) -> dict[str, list[str]]:
        """Plain JSON values."""
        return {name: list(getattr(self, name)) for name in ("functions", "headers", "declarations")}

    def hint(self, message: str) -> str:
        """Hint for a compiler's first error: a removed host function, or a missing header."""
        if not self:
            return ""
        lost = re.search(r'(?:identifier|name followed by "::" must be|class template) "?(\w+)"?', message)
        name = lost[1] if lost else ""
        if name and name in self.functions:
            return f"; {name} was set aside as a host function: mark it __device__ if device code calls it"
        if name and name in self.declarations:
            return f"; {name} was set aside with the host code: mark it __device__ or constexpr if device code needs it"
        nowhere = f"; nowhere found: {_some(self.missing)} (see include_dirs and --include)" if self.missing else ""
        return f"{nowhere}; {self}"


@dataclass(frozen=True)
class DeviceCode:
    """Input of NVRTC: the module and its headers, and the host code removed from them.

    ``originals`` are the unmodified headers.
    """

    module: Module
    headers: tuple[Header, ...]
    originals: tuple[Header, ...]
    set_aside: SetAside = field(default_factory=SetAside)


@dataclass(frozen=True)
class SourceFile:
    """The text of one of the build's own files."""

    name: str
    lexed: Lexed
    shadow: PlainText
    declarations: tuple[Declaration, ...]

    @property
    def includes(self) -> list[str]:
        """Names in active ``#include`` directives."""
        names = []
        for directive in self.shadow.live:
            if directive.name == "include":
                match = _HEADER_NAME.match(self.lexed.text[directive.start : directive.end].partition("include")[2])
                names += [match[1] or match[2]] if match else []
        return names


def set_aside(*modules: Source) -> SetAside:
    """Removed host code of several modules; Triton and PTX have none. Raises as :func:`device_code`."""
    parts = [device_code(module).set_aside for module in modules if isinstance(module, Module)]
    return SetAside(
        *(tuple(dict.fromkeys(chain(*(getattr(each, one.name) for each in parts)))) for one in fields(SetAside))
    )


def files_of(module: Module) -> tuple[list[SourceFile], list[Macro]]:
    """The build's own files, the source first, and their macros."""
    headers = resolve_headers(module)
    files = _read(module, {each.name: each for each in headers if each.own}, headers)
    return files, [macro for file in files for macro in file.lexed.macros]


def full_name(module: Module) -> str:
    """The entry with its namespaces, if the source has one kernel of this name and the names differ; else empty."""
    name = module.entry.partition("<")[0].strip()
    fitting = {each.kernel for file in files_of(module)[0] for each in file.declarations if each.kernel}
    fitting = {each for each in fitting if each.endswith(f"::{name}")}
    return fitting.pop() if len(fitting) == 1 else ""


def device_code(module: Module, command: Sequence[str] = ()) -> DeviceCode:
    """Device code of a module and its reachable headers, with the macros of the compiler's ``command``.

    Raises
    ------
    UserError
        As :func:`warpsan.build.headers.resolve_headers`.
    MachineError
        If CUDA's headers are not installed, or the C++ parser is missing for a source with host code.
    """
    headers = resolve_headers(module, command)
    by_default = any(option in _DEFAULT_DEVICE for option in module.options)
    own = {} if by_default else {each.name: each for each in headers if each.own}
    files = _read(module, own, headers)
    known = {header.name for header in headers}
    if not any(_refused(file, known, by_default) for file in files) and not _lacks_constants(files, headers):
        return DeviceCode(module, headers, headers)
    staying, needed = _staying(files, module, by_default)
    texts: dict[str, str] = {}
    gone: list[Declaration] = []
    for file in files:
        lost = [
            one for each in file.declarations for one in ((each, *each.members) if id(each) in staying else (each,))
        ]
        lost = [one for one in lost if id(one) not in staying]
        texts[file.name] = blanked(file.lexed, [(one.start, one.end) for one in lost])
        gone += lost
    asked = list(dict.fromkeys(name for file in files for name in file.includes))
    nowhere = [name for name in asked if name not in known]
    aside = SetAside(
        _names(gone, ("function", "macro")),
        tuple(nowhere),
        _names(gone, ("type", "variable", "namespace", "assertion")),
        tuple(name for name in nowhere if not is_host_header(name)),
    )
    declared = {name for file in files for each in file.declarations if id(each) in staying for name in each.names}
    declared |= {macro.name for file in files for macro in file.lexed.macros}
    implicit = implicit_includes(needed, declared)
    if "cuda.h" in known:
        # the source includes these, and CUDA's folders lack them
        implicit += "#include <stdint.h>\n#include <stdlib.h>\n"
    return _assembled(module, command, headers, texts, aside, implicit)


def _names(some: Sequence[Declaration], kinds: tuple[Kind, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in some if each.kind in kinds for name in each.names if name))


def _read(module: Module, own: Mapping[str, Header], headers: Sequence[Header]) -> list[SourceFile]:
    sources = {_MAIN_FILE: lexed(module.source)}
    sources |= {name: lexed(header.body.decode(errors="replace")) for name, header in own.items()}
    macros = Macros(
        [macro for source in sources.values() for macro in source.macros],
        [macro for header in headers if header.name not in own for macro in _device_macros(header.text)],
        module.defines,
    )
    files = []
    for name, source in sources.items():
        shadow = shadow_of(source, macros)
        files.append(SourceFile(name, source, shadow, tuple(declarations_of(source, shadow, macros))))
    return files


@lru_cache(maxsize=4096)
def _device_macros(text: bytes) -> tuple[Macro, ...]:
    return lexed("\n".join(line.decode(errors="replace") for line in _DEVICE_MACRO.findall(text))).macros


def _refused(file: SourceFile, known: Collection[str], by_default: bool) -> bool:
    """Whether NVRTC would reject the file because of its host code."""
    if any((name not in known and is_host_header(name)) or name == "cuda.h" for name in file.includes):
        return True
    every = [one for each in file.declarations for one in (each, *each.members)]
    if by_default:
        return any(each.launches or "main" in each.names for each in every if each.kind == "function")
    return any(each.unmarked and each.kind in ("function", "variable", "macro") for each in every)


def _lacks_constants(files: Sequence[SourceFile], headers: Sequence[Header]) -> bool:
    """Whether a source uses constants of math.h that nvcc includes implicitly, and no header defines them."""
    used = {name for file in files for name in _OF_MATH.findall(file.shadow.text)}
    used -= {macro.name for file in files for macro in file.lexed.macros}
    texts = [header.text for header in headers] if used else []
    return any(not any(re.search(rb"define\s+" + name.encode(), text) for text in texts) for name in used)


def _staying(files: Sequence[SourceFile], module: Module, by_default: bool) -> tuple[set[int], set[str]]:
    """Kept declarations (by identity): device code and its dependencies; and all names that they use."""
    by_name: dict[str, list[tuple[SourceFile, Declaration]]] = {}
    macros: dict[str, list[Macro]] = {}
    for file in files:
        for each in file.declarations:
            for name in each.names:
                by_name.setdefault(name, []).append((file, each))
        for macro in file.lexed.macros:
            macros.setdefault(macro.name, []).append(macro)
    staying: set[int] = set()
    needed: set[str] = set()
    pending = list(words(" ".join((module.entry, *module.defines.values()))))

    def keep(file: SourceFile, each: Declaration) -> None:
        if id(each) not in staying:
            members = [one for one in each.members if _may_stay(one, by_default)]
            staying.update(map(id, (each, *members)))
            pending.extend(each.needs if len(members) == len(each.members) else _needs_without(file, each, staying))

    for file in files:
        for each in file.declarations:
            if each.device:
                keep(file, each)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending.extend(word for macro in macros.get(name, ()) for word in words(macro.body))
            for file, each in by_name.get(name, ()):
                if _may_stay(each, by_default):
                    keep(file, each)
    defined = {name for name, some in by_name.items() if any(id(each) in staying for _, each in some)}
    for each in (each for file in files for each in file.declarations if id(each) not in staying):
        harmless = each.kind == "variable" and each.constant and each.needs <= {*each.names, *defined, *_ARITHMETIC}
        asserted = each.kind == "assertion" and not each.needs & (by_name.keys() - defined)
        if harmless or asserted or (each.kind == "namespace" and not each.unmarked):
            staying.add(id(each))
            defined.update(each.names)
            needed |= each.needs
    return staying, needed


def _may_stay(each: Declaration, by_default: bool) -> bool:
    """Whether device code may use a declaration by name."""
    own = by_default and not each.launches and "main" not in each.names
    return each.device or each.constant or not each.unmarked or own


def _needs_without(file: SourceFile, each: Declaration, staying: Collection[int]) -> frozenset[str]:
    """Identifiers in a class, without those of its host functions."""
    code = file.lexed.code
    for one in each.members:
        if id(one) not in staying:
            code = code[: one.start] + " " * (one.end - one.start) + code[one.end :]
    return words(code[each.start : each.end])


def _assembled(
    module: Module,
    command: Sequence[str],
    originals: tuple[Header, ...],
    texts: Mapping[str, str],
    aside: SetAside,
    implicit: str,
) -> DeviceCode:
    """The module with device code only, and replacements for its host headers."""
    source = texts[_MAIN_FILE]
    if implicit:
        source = f'{implicit}#line 1 "/{file_name(module)}"\n{source}'
    options = tuple(dict.fromkeys((*module.options, DEFAULT_DEVICE)))
    separated = replace(module, source=source, options=options)
    headers = {header.name: header for header in resolve_headers(separated, command)}
    for name in aside.headers:
        headers.setdefault(name, header_of(name, b""))
    for name, text in texts.items():
        if name != _MAIN_FILE:
            headers[name] = header_of(name, text.encode())
    return DeviceCode(separated, tuple(headers[name] for name in sorted(headers)), originals, aside)


def file_name(module: Module) -> str:
    """File name for the compiler, without a folder or a character that a PTX ``.file`` line must escape."""
    return re.sub(r"[^\w.+-]", "_", module.name.rpartition("/")[2]) or "kernel.cu"


def _some(names: Sequence[str]) -> str:
    """Some of the names, as text."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
