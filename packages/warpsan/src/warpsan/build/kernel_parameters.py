"""Signatures of the kernels of a source: template parameters and parameters, by their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from warpsan.build.constants import arguments_in
from warpsan.build.host_code import SourceFile, files_of
from warpsan.build.source import Module
from warpsan.build.source_text import closing

__all__ = ["KernelSignature", "Parameter", "kernel_signatures", "signatures_in"]

_NAME_AND_BRACKET = re.compile(r"(\w+)\s*\(")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Parameter:
    """A parameter: its type without qualifiers, such as ``const float*``, and its name."""

    type: str
    name: str


@dataclass(frozen=True)
class KernelSignature:
    """A kernel with a body.

    Attributes
    ----------
    name : str
        With its namespaces.
    templates : tuple of Parameter
        Template parameters; ``typename`` is the type of a type.
    parameters : tuple of Parameter
    body : (int, int)
        Range of the body in the text of its file, with its braces.
    """

    name: str
    templates: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]
    body: tuple[int, int]


def kernel_signatures(module: Module) -> list[KernelSignature]:
    """The kernels of a source, without those of its headers; raises as :func:`warpsan.build.host_code.device_code`."""
    return list(signatures_in(files_of(module)[0][0]))


def signatures_in(file: SourceFile) -> Iterator[KernelSignature]:
    """The kernels of one file."""
    code = file.lexed.code
    for kernel in (each for each in file.declarations if each.kernel):
        name = kernel.kernel.rpartition("::")[2]
        named = (match for match in _NAME_AND_BRACKET.finditer(code, kernel.start, kernel.end) if match[1] == name)
        begin = next(named, None)
        after = closing(code, begin.end() - 1) if begin is not None else 0
        opening = code.find("{", after, kernel.end)
        if begin is None or opening < 0:
            continue
        templates = tuple(_template_parameters(code[kernel.start : begin.start()]))
        parameters = tuple(_parameters(code[begin.end() : after - 1]))
        yield KernelSignature(kernel.kernel, templates, parameters, (opening, closing(code, opening)))


def _parameters(text: str) -> Iterator[Parameter]:
    for each in arguments_in(text, angles=True):
        declared = re.sub(r"\[.*?\]", "*", each.partition("=")[0])
        named = _WORD.findall(declared)
        if named and declared.strip() != "void":
            kind = declared.rpartition(named[-1])[0] + declared.rpartition(named[-1])[2]
            bare = re.sub(r"\b(__restrict__|__restrict|restrict|volatile|__grid_constant__)\b", " ", kind)
            yield Parameter(re.sub(r"\s*\*", "*", " ".join(bare.split())), named[-1])


def _template_parameters(head: str) -> Iterator[Parameter]:
    match = re.search(r"\btemplate\s*<", head)
    for each in arguments_in(head[match.end() : _closing_angle(head, match.end())], angles=True) if match else ():
        named = _WORD.findall(each.partition("=")[0])
        if named:
            kind = "typename" if named[0] in ("typename", "class") else " ".join(named[:-1])
            yield Parameter(kind, named[-1])


def _closing_angle(text: str, begin: int) -> int:
    depth = 1
    for place in range(begin, len(text)):
        depth += (text[place] in "<(") - (text[place] in ">)")
        if not depth:
            return place
    return len(text)
