"""Names of kernels and variables as C++ has them: demangled by this machine's C++ runtime library, if it has one."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from functools import lru_cache

from warpsan.errors import LaunchError

__all__ = ["demangled", "resolve", "short_name"]

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")
_SHORT = 80
"""Characters of a name in a message."""
_LISTED = 8
"""Names that a message lists."""


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL | None:
    """The C++ runtime library with ``__cxa_demangle`` (Itanium C++ ABI, "Demangler API"); None where there is none."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            demangle, free = library.__cxa_demangle, library.free
        except (OSError, AttributeError):
            continue
        demangle.restype, free.restype = ctypes.c_void_p, None
        demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
        free.argtypes = (ctypes.c_void_p,)
        return library
    return None


@lru_cache(maxsize=1024)
def demangled(name: str) -> str:
    """A C++ name with its template and function parameters; the name itself if it is not mangled."""
    if not name.startswith("_Z"):
        return name
    library = _runtime()
    if library is None:
        return _beginning(name)
    place = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(ctypes.c_int()))
    if not place:  # nvcc writes some template arguments in a way that other demanglers do not know
        return _beginning(name)
    text = ctypes.string_at(place).decode()
    library.free(place)
    return text


def _beginning(name: str) -> str:
    """The namespaces and the name at the beginning of a mangled one: ``cutlass::Kernel<...>``; the name itself if it
    does not begin so (Itanium C++ ABI, "Mangling": each is written behind its length)."""
    at, parts = (3 if name.startswith("_ZN") else 2), []
    while length := re.match(r"\d+", name[at:]):
        at += length.end()
        parts.append(name[at : at + int(length[0])])
        at += int(length[0])
    if not parts:
        return name
    return "::".join(parts) + ("<...>" if name[at : at + 1] == "I" else "")


def short_name(name: str) -> str:
    """A name for messages: demangled, without parameters and result, and not long."""
    text = _bare(demangled(name))
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


def resolve(name: str, names: Iterable[str], what: str) -> str:
    """The one of ``names`` that ``name`` means: itself, or as C++ writes it, with or without parameters.

    Parameters
    ----------
    name : str
        Mangled, or demangled: ``scale<float>(float*, int)``, ``scale<float>`` or ``scale``.
    names : iterable of str
        As they stand in the PTX.
    what : str
        What it is, for the message: ``entry``.

    Raises
    ------
    LaunchError
        If there is none, or more than one.
    """
    known = list(names)
    if name in known:
        return name
    wanted = _spaceless(name)
    for form in (str, _bare, _without_templates, lambda each: _without_templates(each).rpartition("::")[2]):
        matches = [each for each in known if _spaceless(form(demangled(each))) == wanted]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise LaunchError(f"the {what} {name!r} may be any of {_listed(map(demangled, matches))}")
    raise LaunchError(f"the PTX has no {what} {_clipped(name)!r}; it has: {_listed(map(short_name, known)) or 'none'}")


def _listed(names: Iterable[str]) -> str:
    every = [_clipped(each) for each in names]
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more


def _clipped(text: str) -> str:
    return text if len(text) <= 2 * _SHORT else f"{text[: 2 * _SHORT - 3]}..."


def _spaceless(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _bare(text: str) -> str:
    """A demangled function without its result and its parameters: ``void scale<float>(float*)`` is
    ``scale<float>``."""
    depth, end = 0, len(text)
    for at, character in enumerate(text.replace("(anonymous namespace)", "{anonymous namespace}")):
        if character in "<{":
            depth += 1
        elif character in ">}":
            depth -= 1
        elif character == "(" and depth == 0:
            end = at
            break
    text, depth, begin = text[:end], 0, 0
    for at, character in enumerate(text.replace("(anonymous namespace)", "{anonymous_namespace}")):
        if character in "<({":
            depth += 1
        elif character in ">)}":
            depth -= 1
        elif character == " " and depth == 0:
            begin = at + 1
    return text[begin:]


def _without_templates(text: str) -> str:
    """A function's name with its namespaces alone: ``ns::scale``."""
    depth, out = 0, ""
    for character in _bare(text):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth == 0:
            out += character
    return out
