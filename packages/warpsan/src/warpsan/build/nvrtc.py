"""NVRTC through cuda.bindings: CUDA C++ in memory to PTX and cubin, without driver, GPU or nvcc.

API: NVRTC user guide, https://docs.nvidia.com/cuda/nvrtc/.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from warpsan.build.diagnostics import first_error
from warpsan.build.headers import Header
from warpsan.errors import MachineError, UserError

__all__ = [
    "BuildError",
    "Compiled",
    "check_arch",
    "compile_program",
    "compiler_version",
    "supported_archs",
]

MIN_ARCH = 80
"""Least architecture of the lab: cp.async and mma.sync m16n8k16 begin with sm_80."""

_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")


class BuildError(UserError):
    """Source that does not compile, or an option that it may not set. ``log`` is the compiler's whole output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Compiled:
    """What one run of the compiler gives: PTX and cubin, the entry's lowered name, the log."""

    ptx: bytes
    cubin: bytes
    entry: str
    log: str


@cache
def _bindings() -> ModuleType:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise MachineError(f"no CUDA compiler: pip install cuda-bindings ({error})") from None
    try:
        status, _, _ = nvrtc.nvrtcVersion()
    except Exception as error:  # cuda.bindings has a class of error per version for a library that is not there
        reason = str(error).partition("\n")[0]
        raise MachineError(f"no CUDA compiler: pip install nvidia-cuda-nvrtc ({reason})") from None
    if int(status):
        raise MachineError(f"NVRTC does not start: {status.name}")
    module: ModuleType = nvrtc
    return module


@cache
def compiler_version() -> str:
    """Release and build of the compiler as it reports them, such as ``NVRTC 13.0.88 (CL-36424714)``.

    It is read from the head of the PTX of an empty program, since ``nvrtcVersion`` has no patch level.

    Raises
    ------
    MachineError
        If there is no compiler; names the pip package.
    """
    head = compile_program("", "version.cu", None, (), (f"--gpu-architecture=compute_{MIN_ARCH}",)).ptx.decode()
    build = re.search(r"Compiler Build ID: (\S+)", head)
    release = re.search(r"release \S+ V(\d+\.\d+\.\d+)", head)
    if build is None or release is None:
        raise MachineError("NVRTC's PTX does not name its release")
    return f"NVRTC {release[1]} ({build[1]})"


@cache
def supported_archs() -> tuple[str, ...]:
    """Architectures that the compiler supports and the lab builds for, such as ``("sm_80", ..., "sm_121")``."""
    status, numbers = _bindings().nvrtcGetSupportedArchs()
    if int(status):
        raise MachineError(f"NVRTC does not list its architectures: {status.name}")
    return tuple(f"sm_{number}" for number in numbers if number >= MIN_ARCH)


def check_arch(arch: str) -> None:
    """Raise UserError unless NVRTC can build for ``arch``.

    An architecture may end in ``a`` (features of this one chip, from sm_90) or ``f`` (of its family, from sm_100).
    """
    match = _ARCH.fullmatch(arch)
    known = supported_archs()
    least = {"": 0, "a": 90, "f": 100}
    if match is None or f"sm_{match[1]}" not in known or int(match[1]) < least[match[2]]:
        listed = ", ".join(known)
        raise UserError(
            f"unknown architecture {arch!r}: use one of {listed} (sm_90 and later also with an a at the end)"
        )


def compile_program(
    source: str, name: str, expression: str | None, headers: Sequence[Header], options: Sequence[str]
) -> Compiled:
    """Compile one translation unit.

    Parameters
    ----------
    source : str
        CUDA C++ text.
    name : str
        File name for messages and line information; written as ``/name`` into the output.
    expression : str or None
        C++ name expression of the entry. None: no entry, and no cubin.
    headers : sequence of Header
        All that can be included.
    options : sequence of str
        NVRTC's options.

    Raises
    ------
    BuildError
        If the source does not compile, or has no such entry.
    MachineError
        If there is no compiler, or it fails for a reason of its own.
    """
    nvrtc = _bindings()
    texts = [header.text for header in headers]
    names = [header.name.encode() for header in headers]
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"/{name}".encode(), len(texts), texts, names)
    _expect(status, "create a program")
    try:
        if expression is not None:
            (status,) = nvrtc.nvrtcAddNameExpression(program, expression.encode())
            _expect(status, f"take the entry {expression!r}")
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        # ptxas's part of the log begins after a zero byte of its own.
        log = _get(nvrtc, "ProgramLog", program).decode(errors="replace").replace("\0", "").strip()
        if status.name in ("NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INVALID_OPTION"):
            raise BuildError(first_error(name, expression, log or status.name, _ptx_if_any(nvrtc, program)), log)
        _expect(status, f"compile {name}")
        ptx = _get(nvrtc, "PTX", program)
        if expression is None:
            return Compiled(ptx, b"", "", log)
        status, lowered = nvrtc.nvrtcGetLoweredName(program, expression.encode())
        if int(status):
            raise BuildError(f"{name} has no entry {expression!r}: it must name a __global__ function", log)
        return Compiled(ptx, _get(nvrtc, "CUBIN", program), lowered.decode(), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _get(nvrtc: ModuleType, what: str, program: Any) -> bytes:
    """The log, PTX or cubin of a program; texts come without their terminating zero."""
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _expect(status, f"give its {what}")
    # The binding writes into this object. CPython shares one object for all equal bytes of length 0 and 1, so the
    # buffer must be longer than that.
    buffer = b" " * (int(size) + 2)
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    _expect(status, f"give its {what}")
    return buffer[:size] if what == "CUBIN" else buffer[:size].rstrip(b"\0")


def _ptx_if_any(nvrtc: ModuleType, program: Any) -> bytes:
    """The PTX of a program that did not compile: there is some if it was ptxas that failed."""
    status, size = nvrtc.nvrtcGetPTXSize(program)
    return b"" if int(status) or not size else _get(nvrtc, "PTX", program)


def _expect(status: Any, action: str) -> None:
    if int(status):
        raise MachineError(f"NVRTC could not {action}: {status.name}")
