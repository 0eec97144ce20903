"""C++ names of kernels and variables, demangled by the machine's C++ runtime library if present."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from functools import lru_cache

from warpsan.errors import LaunchError

__all__ = ["demangled", "resolve", "short_name"]

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")
_SHORT = 80
"""Maximum characters of a name in a message."""
_LISTED = 8
"""Maximum names in a message."""


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL | None:
    """The C++ runtime library with ``__cxa_demangle`` (Itanium C++ ABI, "Demangler API"); None if not found."""
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
    """A C++ name with template and function parameters; the name itself if it is not mangled."""
    if not name.startswith("_Z"):
        return name
    library = _runtime()
    if library is None:
        return _beginning(name)
    place = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(ctypes.c_int()))
    if not place:  # some template arguments of nvcc are unknown to other demanglers
        return _beginning(name)
    text = ctypes.string_at(place).decode()
    library.free(place)
    return text


def _beginning(name: str) -> str:
    """Namespaces and name at the start of a mangled name: ``cutlass::Kernel<...>``; the name itself for other forms
    (Itanium C++ ABI, "Mangling": each part follows its length).
    """
    at, parts = (3 if name.startswith("_ZN") else 2), []
    while length := re.match(r"\d+", name[at:]):
        at += length.end()
        parts.append(name[at : at + int(length[0])])
        at += int(length[0])
    if not parts:
        return name
    return "::".join(parts) + ("<...>" if name[at : at + 1] == "I" else "")


def short_name(name: str) -> str:
    """A short name for messages: demangled, without parameters and result."""
    text = _bare(demangled(name))
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


def resolve(name: str, names: Iterable[str], what: str) -> str:
    """The item of ``names`` with a given mangled or C++ name, with or without parameters.

    Parameters
    ----------
    name : str
        Mangled, or demangled: ``scale<float>(float*, int)``, ``scale<float>`` or ``scale``.
    names : iterable of str
        Names in the PTX.
    what : str
        Noun for the message: ``entry``.

    Raises
    ------
    LaunchError
        If no item or more than one item matches.
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
    """A demangled function without result and parameters: ``void scale<float>(float*)`` becomes ``scale<float>``."""
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
    """A function's name with its namespaces only: ``ns::scale``."""
    depth, out = 0, ""
    for character in _bare(text):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth == 0:
            out += character
    return out
