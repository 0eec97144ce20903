"""Sources for a build: CUDA C++, a Triton function, or PTX from another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["DEFAULT_ARCH", "Module", "PtxSource", "Source", "TritonModule"]

DEFAULT_ARCH = "sm_89"
"""Default architecture of a build (L4)."""


@dataclass(frozen=True)
class Module:
    """A CUDA C++ translation unit with fixed knobs: all inputs of its build.

    Attributes
    ----------
    name : str
        File name in diagnostics and line information, such as ``flash.cu``.
    source : str
        CUDA C++ text.
    entry : str
        C++ name expression of the ``__global__`` function, such as ``flash_attention`` or ``softmax<64>``.
    defines : mapping of str to str
        Preprocessor macros, including knobs of the configuration and traits of the problem.
    include_dirs : tuple of Path
        First folders of the ``#include`` search; shared folders and CUDA's follow.
    options : tuple of str
        Further options of NVRTC, such as ``-default-device``, from the list in :mod:`warpsan.build.options`.
    """

    name: str
    source: str
    entry: str
    defines: Mapping[str, str] = field(default_factory=dict)
    include_dirs: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class TritonModule:
    """A Triton function with fixed knobs: all inputs of its build.

    Attributes
    ----------
    name : str
        File name in diagnostics and line information, such as ``attention.py``.
    source : str
        Text of the file, for records only: Triton compiles ``fn`` and its callees.
    fn : triton.JITFunction
        Result of ``@triton.jit``.
    signature : mapping of str to str
        Triton type of each parameter in order, such as ``*fp16``, ``i32`` or ``constexpr``.
    constants : mapping of str to int, str or bool
        Values of the ``constexpr`` parameters.
    options : mapping of str to int
        Triton's compile options, such as ``num_warps``, from the same list.
    """

    name: str
    source: str
    fn: Any
    signature: Mapping[str, str]
    constants: Mapping[str, int | float | str | bool]
    options: Mapping[str, int]

    @property
    def entry(self) -> str:
        """Name of the function."""
        return str(self.fn.__name__)


_TRITON_MOST = {"threads": 1024, "dynamic_smem": 1 << 20, "scratch_params": 8}
"""Maximum launch values from Triton: threads per block, bytes of shared memory, appended pointers."""


@dataclass(frozen=True)
class PtxSource:
    """PTX of a Triton function from a user's file, compiled by another process, with the data for the build's record.

    Attributes
    ----------
    name, source : str
        File name and text of the source.
    entry : str
        Name in the PTX.
    arch : str
        Target architecture.
    ptx : bytes
    compiler : str
    command : tuple of str
        Input of the compiler.
    triton : mapping of str to int
        As in :class:`warpsan.build.Build`.

    Raises
    ------
    ValueError
        If ``triton`` has only some of the launch values, or a value out of range.
    """

    name: str
    source: str
    entry: str
    arch: str
    ptx: bytes
    compiler: str
    command: tuple[str, ...] = ()
    triton: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.triton and self.triton.keys() != _TRITON_MOST.keys():
            raise ValueError(f"PTX from Triton comes with {', '.join(_TRITON_MOST)}")
        for name, value in self.triton.items():
            if not 0 <= value <= _TRITON_MOST[name]:
                raise ValueError(f"{name} is {value}, and must be 0 to {_TRITON_MOST[name]}")


Source: TypeAlias = Module | TritonModule | PtxSource
"""A source for a build."""
