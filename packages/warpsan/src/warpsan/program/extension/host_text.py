"""Host code of a CUDA source for a C++ compiler: kernels become functions that record a launch.

``kernel<<<grid, block, bytes, stream>>>(...)`` becomes two steps, as nvcc compiles it: the configuration is stored, and
the host function of the kernel is called. Its body passes the kernel's name, its template arguments and its parameters
on. Functions with ``__device__`` alone become blanks; lines stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from warpsan.build import Module
from warpsan.build.declarations import Declaration
from warpsan.build.host_code import SourceFile, files_of
from warpsan.build.kernel_parameters import KernelSignature, signatures_in
from warpsan.build.source_text import without_literals

__all__ = ["HostCode", "host_code"]

_LAUNCH = re.compile(r"<<<")
_INTRINSICS = re.compile(r"\b(?:threadIdx|blockIdx|__syncthreads|__shfl\w*|asm|__ldg|atomicAdd)\b")


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class HostCode:
    """Host code of a source.

    Attributes
    ----------
    texts : mapping of str to str
        The source and its own headers by name, each with as many lines; the source has the name of its module.
    kernels : tuple of str
        Names of the kernels in them.
    """

    texts: Mapping[str, str]
    kernels: tuple[str, ...]


def host_code(module: Module) -> HostCode:
    """The host code of a source.

    Raises
    ------
    UserError
        As :func:`warpsan.build.headers.resolve_headers`.
    MachineError
        If the parser of C++ is not installed.
    """
    files = files_of(module)[0]
    kernels = (each.kernel for file in files for each in file.declarations if each.kernel)
    return HostCode({file.name or module.name: _host_text(file) for file in files}, tuple(dict.fromkeys(kernels)))


def _host_text(file: SourceFile) -> str:
    text = file.lexed.text
    edits = list(_edits(file))
    code = without_literals(text)
    inside = [(each.start, each.end) for each in edits]
    for match in _LAUNCH.finditer(code):
        if not any(start <= match.start() < end for start, end in inside):
            edits += _launch(code, match.start())
    return _applied(text, edits)


def _edits(file: SourceFile) -> Iterator[_Edit]:
    """Kernels with their new bodies, and blanks for device code."""
    text, code = file.lexed.text, file.lexed.code
    yield from (_kernel(text, each) for each in signatures_in(file))
    for each in file.declarations:
        for one in (each, *each.members):
            if one.kernel:
                continue
            if (one.kind == "variable" and one.device) or (one.kind == "function" and _is_of_the_device(code, one)):
                yield _blank(text, one.start, one.end)


def _is_of_the_device(code: str, function: Declaration) -> bool:
    marked = function.device and not _on_host(code[function.start : function.end])
    return marked or _INTRINSICS.search(code, function.start, function.end) is not None


def _on_host(code: str) -> bool:
    """Whether host code sees a function with a device qualifier: one for both sides, or a kernel's prototype."""
    head = code.partition("{")[0]
    return any(word in head for word in ("__host__", "C10_HOST_DEVICE", "__global__"))


def _kernel(text: str, kernel: KernelSignature) -> _Edit:
    """The new body of a kernel."""
    ways = {True: "warpsan_host::of_type<{}>()", False: "warpsan_host::of_constant({})"}
    listed = ", ".join(ways[each.type == "typename"].format(each.name) for each in kernel.templates)
    passed = "".join(f", {each.name}" for each in kernel.parameters)
    body = f'{{ warpsan_host::kernel("{kernel.name}", {{{listed}}}{passed}); }}'
    return _Edit(*kernel.body, body + "\n" * text.count("\n", *kernel.body))


def _launch(code: str, at: int) -> list[_Edit]:
    """Edits of one launch: its configuration before the kernel, and none between the kernel and its arguments."""
    end = _end_of_configuration(code, at + 3)
    begin = _begin_of_kernel(code, at)
    if end < 0 or begin < 0:
        return []
    configuration = code[at + 3 : end]
    before = f"::warpsan_host::configure(__FILE__, __LINE__, {configuration.strip()}) ? (void)0 : "
    if "\n" in before:
        before = before.replace("\\\n", " ").replace("\n", " ")
    gap = re.sub(r"[^\n]", "", configuration)
    if gap and "\\\n" in configuration:
        gap = "\\\n" * len(gap)
    return [_Edit(begin, begin, before), _Edit(at, end + 3, gap)]


def _end_of_configuration(code: str, begin: int) -> int:
    depth = 0
    for place in range(begin, len(code)):
        depth += (code[place] in "([{") - (code[place] in ")]}")
        if depth < 0:
            return -1
        if not depth and code.startswith(">>>", place):
            return place
    return -1


def _begin_of_kernel(code: str, end: int) -> int:
    """Start of ``name``, ``space::name`` or ``name<...>`` before a position; -1 without one."""
    place = len(code[:end].rstrip(" \t\n\\"))
    if place and code[place - 1] == ">":
        depth = 0
        for each in range(place - 1, -1, -1):
            depth += (code[each] in ">)") - (code[each] in "<(")
            if not depth:
                place = len(code[:each].rstrip())
                break
    elif place and code[place - 1] == ")":
        depth = 0
        for each in range(place - 1, -1, -1):
            depth += (code[each] == ")") - (code[each] == "(")
            if not depth:
                return each
    match = re.search(r"(?:::)?(?:[A-Za-z_]\w*\s*::\s*)*[A-Za-z_]\w*$", code[:place])
    return match.start() if match else -1


def _blank(text: str, start: int, end: int) -> _Edit:
    return _Edit(start, end, re.sub(r"[^\n]", " ", text[start:end]))


def _applied(text: str, edits: Sequence[_Edit]) -> str:
    for each in sorted(edits, key=lambda one: (one.start, one.end), reverse=True):
        text = text[: each.start] + each.text + text[each.end :]
    return text
