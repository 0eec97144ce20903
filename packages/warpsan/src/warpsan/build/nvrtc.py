"""NVRTC through cuda.bindings: CUDA C++ in memory to PTX and cubin, without a driver, GPU or nvcc.

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
"""Oldest supported architecture, times ten: cp.async and mma.sync m16n8k16 need sm_80."""

_ARCH = re.compile(r"sm_(\d{2,3})([af]?)")


class BuildError(UserError):
    """Source that does not compile, or a disallowed option. ``log`` is the compiler's whole output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Compiled:
    """Output of one compiler run: PTX and cubin, lowered name of the entry, log."""

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
    except Exception as error:  # cuda.bindings raises a different class per version for a missing library
        reason = str(error).partition("\n")[0]
        raise MachineError(f"no CUDA compiler: pip install nvidia-cuda-nvrtc ({reason})") from None
    if int(status):
        raise MachineError(f"NVRTC does not start: {status.name}")
    module: ModuleType = nvrtc
    return module


@cache
def compiler_version() -> str:
    """Release and build of the compiler, such as ``NVRTC 13.0.88 (CL-36424714)``.

    The source is the PTX header of an empty program, because ``nvrtcVersion`` has no patch level.

    Raises
    ------
    MachineError
        If the compiler is missing; the message names the pip package.
    """
    head = compile_program("", "version.cu", None, (), (f"--gpu-architecture=compute_{MIN_ARCH}",)).ptx.decode()
    build = re.search(r"Compiler Build ID: (\S+)", head)
    release = re.search(r"release \S+ V(\d+\.\d+\.\d+)", head)
    if build is None or release is None:
        raise MachineError("NVRTC's PTX does not name its release")
    return f"NVRTC {release[1]} ({build[1]})"


@cache
def supported_archs() -> tuple[str, ...]:
    """Architectures supported by both the compiler and the build, such as ``("sm_80", ..., "sm_121")``."""
    status, numbers = _bindings().nvrtcGetSupportedArchs()
    if int(status):
        raise MachineError(f"NVRTC does not list its architectures: {status.name}")
    return tuple(f"sm_{number}" for number in numbers if number >= MIN_ARCH)


def check_arch(arch: str) -> None:
    """Raise UserError unless NVRTC can build for ``arch``.

    An architecture may end in ``a`` (features of one chip, from sm_90) or ``f`` (features of its family, from sm_100).
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
        File name in messages and line information; the output contains ``/name``.
    expression : str or None
        C++ name expression of the entry. None: no entry, and no cubin.
    headers : sequence of Header
        All headers that can be included.
    options : sequence of str
        NVRTC's options.

    Raises
    ------
    BuildError
        If the source does not compile, or does not have the entry.
    MachineError
        If the compiler is missing, or fails for an internal reason.
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
        # A zero byte separates ptxas's part of the log.
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
    """Log, PTX or cubin of a program; texts without their terminating zero."""
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _expect(status, f"give its {what}")
    # The binding writes into this object. CPython shares one object for all equal bytes of length 0 and 1, so the
    # buffer must be longer than that.
    buffer = b" " * (int(size) + 2)
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    _expect(status, f"give its {what}")
    return buffer[:size] if what == "CUBIN" else buffer[:size].rstrip(b"\0")


def _ptx_if_any(nvrtc: ModuleType, program: Any) -> bytes:
    """PTX of a program that failed in ptxas; empty for a program that failed before."""
    status, size = nvrtc.nvrtcGetPTXSize(program)
    return b"" if int(status) or not size else _get(nvrtc, "PTX", program)


def _expect(status: Any, action: str) -> None:
    if int(status):
        raise MachineError(f"NVRTC could not {action}: {status.name}")
