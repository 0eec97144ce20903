"""First error of a compiler log as one sentence, with the file and line of the source."""

from __future__ import annotations

import re

from warpsan.build.host_headers import IMPLICIT_HEADERS

__all__ = ["first_error"]

_LOCATED = re.compile(r"^/?(.+?)\((\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (.+)$", re.MULTILINE)
_PTXAS = re.compile(r"^ptxas (?:.*?, line (\d+); )?(?:fatal|error)\s*: +(.+)$", re.MULTILINE)
_OTHER = re.compile(r"\berror\s*: +(.+)$", re.MULTILINE)
_NO_HEADER = re.compile(r'open source file "(.+?)"')
_CCCL = ("cuda/", "cub/", "thrust/", "nv/")
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
_NAME_EXPRESSIONS = "__nv_name_map"
"""The file in which NVRTC looks up name expressions; it is not a user file."""


def first_error(name: str, entry: str | None, log: str, ptx: bytes) -> str:
    """First error of a source and its location, as one sentence.

    Parameters
    ----------
    name : str
        File name of the source.
    entry : str or None
        Name expression of the entry.
    log : str
        Output of NVRTC and ptxas.
    ptx : bytes
        The PTX, if NVRTC produced it: ptxas reports lines of the PTX, which ``.loc`` maps to source lines.
    """
    located = _LOCATED.search(log)
    if located is not None:
        file, line, message = located.groups()
        if file == _NAME_EXPRESSIONS:
            return f"{name} has no __global__ function {entry!r}: {message}"
        missing = _NO_HEADER.search(message)
        if missing is not None:
            where = "the kernel's include_dirs, --include, the lab's headers, CUDA's or the standard ones"
            hint = " (pip install nvidia-cuda-cccl)" if missing[1].startswith(_CCCL) else ""
            return f"{file}, line {line}: there is no {missing[1]} in {where}{hint}"
        return f"{file}, line {line}: {message}{_header_hint(message)}"
    from_ptxas = _PTXAS.search(log)
    if from_ptxas is not None:
        ptx_line, message = from_ptxas.groups()
        return f"{_source_line(name, ptx, ptx_line)}: ptxas: {message}"
    other = _OTHER.search(log)
    return f"{name}: {other[1] if other else log.partition(chr(10))[0]}"


def _header_hint(message: str) -> str:
    """Header that nvcc includes implicitly and NVRTC does not, for an undefined name."""
    undefined = _UNDEFINED.search(message)
    header = undefined and next(
        (each for each, names in IMPLICIT_HEADERS.items() if re.fullmatch(names, undefined[1])), None
    )
    return f": #include <{header}>, which nvcc includes implicitly and NVRTC does not" if header else ""


def _source_line(name: str, ptx: bytes, ptx_line: str | None) -> str:
    """``FILE, line N`` for a line of the PTX, from the last ``.loc`` before it; only the name without one."""
    if ptx_line is None:
        return name
    text = ptx.decode(errors="replace")
    above = "\n".join(text.split("\n")[: int(ptx_line)])
    locations = re.findall(r"^\s*\.loc\s+(\d+)\s+(\d+)", above, re.MULTILINE)
    if not locations:
        return name
    index, line = locations[-1]
    file = re.search(rf'^\s*\.file\s+{index}\s+"/?([^"]+)"', text, re.MULTILINE)
    return f"{file[1] if file else name}, line {line}"
